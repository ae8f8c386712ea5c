/**
 * One call to the service over native fetch: address, key, tries. A call is made again only where that cannot do anything
 * twice (`repeatable`), or where it was refused before anything was done (429); and only a bounded number of times.
 */
import { asProblem, SluiceConnectionError, SluiceError } from './errors.ts';
import { pause, retryAfterMs, waitMs } from './retries.ts';

export interface ClientOptions {
  /** Of the service, with the path of a proxy where it is behind one. Default: `http://127.0.0.1:3000`. */
  readonly baseUrl?: string | URL;
  /** Sent as `Authorization: Bearer …`. */
  readonly apiKey?: string | undefined;
  /** Tries of one call, the first included; 1: it is never made again. Default: 5. */
  readonly attempts?: number;
  /** A Retry-After that is longer, in milliseconds, is not waited for: the call fails with it. Default: 60,000. */
  readonly longestWaitMs?: number;
  /** Instead of the native fetch: to pass a proxy, say. */
  readonly fetch?: typeof fetch;
}

/** What every call takes. */
export interface CallOptions {
  /** Stops the call and its tries; it rejects with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
}

/** Query parameters; those that are undefined are left out. */
export type Query = Readonly<Record<string, string | number | boolean | undefined>>;

export interface ApiRequest extends CallOptions {
  /** Sent as JSON; text goes as it is. */
  readonly body?: unknown;
  readonly headers?: Readonly<Record<string, string>>;
  readonly query?: Query | undefined;
  /** To make it twice is to make it once. Default: GET, PUT and DELETE are, POST is not. */
  readonly repeatable?: boolean;
}

export interface ApiAnswer<T> {
  readonly status: number;
  readonly headers: Headers;
  readonly body: T;
}

const defaultUrl = 'http://127.0.0.1:3000';
/** Statuses of something that passes: refused for the rate, or (502, 504: a proxy) the service is away. */
const passing: ReadonlySet<number> = new Set([429, 502, 503, 504]);

export class Transport {
  /** Without a slash at the end. */
  readonly baseUrl: string;
  readonly attempts: number;
  readonly longestWaitMs: number;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #fetch: typeof fetch;

  constructor(options: ClientOptions) {
    const { baseUrl = defaultUrl, apiKey, attempts = 5, longestWaitMs = 60_000 } = options;
    this.baseUrl = checkBaseUrl(baseUrl);
    if (!Number.isInteger(attempts) || attempts < 1) throw new RangeError('attempts must be an integer from 1');
    this.attempts = attempts;
    this.longestWaitMs = longestWaitMs;
    this.#headers = apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` };
    this.#fetch = options.fetch ?? globalThis.fetch;
  }

  /**
   * What `read` makes of the answer, whatever its status, after as many tries as there may be. Rejects with a
   * SluiceConnectionError where there is none, or where it breaks off while it is read.
   */
  async tries<T>(
    method: string,
    path: string,
    request: ApiRequest,
    read: (response: Response) => T | Promise<T>,
  ): Promise<T> {
    const repeatable = request.repeatable ?? method !== 'POST';
    for (let tries = 1; ; tries += 1) {
      let wantedMs: number | undefined;
      try {
        const response = await this.once(method, path, request);
        const again = response.status === 429 || (repeatable && passing.has(response.status));
        wantedMs = retryAfterMs(response.headers.get('retry-after'));
        if (!again || tries >= this.attempts || (wantedMs ?? 0) > this.longestWaitMs) return await read(response);
        await response.body?.cancel();
      } catch (error) {
        if (!(error instanceof SluiceConnectionError) || !repeatable || tries >= this.attempts) throw error;
      }
      await pause(waitMs(tries, wantedMs), request.signal);
    }
  }

  /** One try, no more. `stream`: the body comes piece by piece, while the answer is read. */
  async once(
    method: string,
    path: string,
    request: ApiRequest & { readonly stream?: AsyncIterable<Uint8Array> },
  ): Promise<Response> {
    const { body, query, signal, stream } = request;
    signal?.throwIfAborted();
    const headers: Record<string, string> = { accept: 'application/json', ...this.#headers };
    if (body !== undefined) headers['content-type'] = 'application/json';
    const init = {
      method,
      headers: { ...headers, ...request.headers },
      // A redirected POST would become a GET, or lose its body.
      redirect: 'manual',
      ...(stream !== undefined ? { body: stream, duplex: 'half' } : {}),
      ...(body !== undefined ? { body: typeof body === 'string' ? body : JSON.stringify(body) } : {}),
      ...(signal == null ? {} : { signal }),
    } as RequestInit;
    try {
      return await this.#fetch(`${this.baseUrl}${path}${queryText(query)}`, init);
    } catch (error) {
      signal?.throwIfAborted();
      throw this.connectionError(`${method} ${path}`, error);
    }
  }

  async send<T>(method: string, path: string, request: ApiRequest = {}): Promise<ApiAnswer<T>> {
    return this.tries(method, path, request, async (response) => {
      const { status, headers } = response;
      return { status, headers, body: (await this.readBody(method, path, response, request.signal)) as T };
    });
  }

  async call<T>(method: string, path: string, request: ApiRequest = {}): Promise<T> {
    const { status, headers, body } = await this.send<T>(method, path, request);
    if (status < 200 || status > 299) throw errorOf(`${method} ${path}`, status, headers, body);
    return body;
  }

  /** For answers that are read piece by piece; throws a SluiceError where it is no success. */
  async checked(method: string, path: string, response: Response, signal?: AbortSignal): Promise<Response> {
    if (response.ok) return response;
    const body = await this.readBody(method, path, response, signal);
    throw errorOf(`${method} ${path}`, response.status, response.headers, body);
  }

  async readBody(method: string, path: string, response: Response, signal?: AbortSignal): Promise<unknown> {
    try {
      return parsed(await response.text());
    } catch (error) {
      signal?.throwIfAborted();
      throw this.connectionError(`${method} ${path}`, error);
    }
  }

  connectionError(request: string, cause: unknown): SluiceConnectionError {
    if (cause instanceof SluiceConnectionError) return cause;
    const text = `${request}: no answer from ${this.baseUrl} (${reasonOf(cause)})`;
    return new SluiceConnectionError(text, { cause });
  }
}

export function errorOf(request: string, status: number, headers: Headers, body: unknown): SluiceError {
  return new SluiceError(request, asProblem(status, body), retryAfterMs(headers.get('retry-after')));
}

/** fetch says only "fetch failed"; what happened is in the cause, of several addresses in the cause's own errors. */
function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const { cause } = error;
  if (cause instanceof AggregateError && cause.errors.length > 0) return reasonOf(cause.errors[0]);
  if (cause instanceof Error && cause.message !== '') return cause.message;
  return error.message;
}

function checkBaseUrl(baseUrl: string | URL): string {
  let url: URL;
  try {
    url = new URL(baseUrl);
  } catch {
    throw new TypeError(`the base URL ${JSON.stringify(String(baseUrl))} is no URL, like http://127.0.0.1:3000`);
  }
  const { protocol, username, password, search, hash } = url;
  if (protocol !== 'http:' && protocol !== 'https:') {
    throw new TypeError(`the base URL must be http or https, not ${protocol}`);
  }
  if (username !== '' || password !== '') throw new TypeError('the base URL must have no credentials; give an apiKey');
  if (search !== '' || hash !== '') throw new TypeError('the base URL must have no query and no fragment');
  return url.href.replace(/\/+$/, '');
}

function queryText(query: Query = {}): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== undefined) parameters.set(name, String(value));
  const text = parameters.toString();
  return text === '' ? '' : `?${text}`;
}

/** JSON where it is JSON, else the text; an empty body is null. */
function parsed(text: string): unknown {
  if (text === '') return null;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
