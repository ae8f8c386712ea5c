/**
 * Speaks with a running service over its public API: the way every command, the demo and the end-to-end tests take.
 * `send` gives whatever came back; `call` wants a success and turns a problem (RFC 9457) into an error that reads well.
 */

export interface ApiAnswer<T> {
  readonly status: number;
  readonly headers: Headers;
  readonly body: T;
}

export interface CallOptions {
  /** Sent as JSON; a string goes out as it is. */
  readonly body?: unknown;
  readonly headers?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
}

/** The service answered, but with a problem. */
export class ApiError extends Error {
  readonly status: number;
  /** The problem's stable code, where it is one. */
  readonly code: string | undefined;

  constructor(method: string, path: string, answer: ApiAnswer<unknown>) {
    const problem = asProblem(answer.body);
    const faults = problem.errors.map(({ pointer, message }) => `\n  ${pointer ?? ''} ${message ?? ''}`).join('');
    super(`${method} ${path} was answered ${answer.status}: ${problem.detail}${faults}`);
    this.name = 'ApiError';
    this.status = answer.status;
    this.code = problem.code;
  }
}

export class ApiClient {
  /** Without a slash at the end. */
  readonly baseUrl: string;
  readonly #apiKey: string | undefined;

  constructor(baseUrl: string, apiKey?: string) {
    this.baseUrl = baseUrl.replace(/\/$/, '');
    this.#apiKey = apiKey;
  }

  /** `path` starts with a slash. Rejects only where no answer came. */
  async send<T>(method: string, path: string, options: CallOptions = {}): Promise<ApiAnswer<T>> {
    const headers: Record<string, string> = {};
    if (options.body !== undefined) headers['content-type'] = 'application/json';
    if (this.#apiKey !== undefined) headers.authorization = `Bearer ${this.#apiKey}`;
    const response = await fetch(this.baseUrl + path, {
      method,
      headers: { ...headers, ...options.headers },
      ...(options.body === undefined ? {} : { body: asText(options.body) }),
      ...(options.signal === undefined ? {} : { signal: options.signal }),
    });
    const text = await response.text();
    return { status: response.status, headers: response.headers, body: parsed(text) as T };
  }

  /** The body of a 2xx; throws an `ApiError` for anything else. */
  async call<T>(method: string, path: string, options: CallOptions = {}): Promise<T> {
    const answer = await this.send<T>(method, path, options);
    if (answer.status < 200 || answer.status > 299) throw new ApiError(method, path, answer);
    return answer.body;
  }
}

function asText(body: unknown): string {
  return typeof body === 'string' ? body : JSON.stringify(body);
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

interface Problem {
  readonly detail: string;
  readonly code: string | undefined;
  readonly errors: ReadonlyArray<{ pointer?: string; message?: string }>;
}

function asProblem(body: unknown): Problem {
  if (typeof body !== 'object' || body === null) return { detail: String(body), code: undefined, errors: [] };
  const { detail, title, code, errors } = body as Record<string, unknown>;
  return {
    detail: String(detail ?? title ?? JSON.stringify(body)),
    code: typeof code === 'string' ? code : undefined,
    errors: Array.isArray(errors) ? errors : [],
  };
}
