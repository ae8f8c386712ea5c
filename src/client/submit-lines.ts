/**
 * A batch as a stream: lines go out while verdicts come in, and a stream that broke off goes on where it stopped. Each line's
 * verdict is given once, in order, however often the connection broke. Needs a source that can be opened again for that.
 */
import type { BatchProgress, Problem, StreamAnswer, SubmitBatchParams } from './api-types.ts';
import { SluiceConnectionError, SluiceError } from './errors.ts';
import { checkNames } from './known-options.ts';
import { decodeLines, encodeLines, type LineSource } from './ndjson.ts';
import { headerKey } from './request-key.ts';
import { pause, waitMs } from './retries.ts';
import type { CallOptions, Query, Transport } from './transport.ts';

/** The verdict on one line. */
export type LineVerdict = Extract<StreamAnswer, { verdict: unknown }>;

/** What all lines share that does not say otherwise: query parameters of the request. */
export type LineDefaults = Omit<SubmitBatchParams, 'dry_run' | 'derive_keys'> & { readonly derive_keys?: boolean };

export interface SubmitLinesOptions extends CallOptions {
  /** Names the submission: the same lines under the same key are the same batch. Default: a random one. */
  readonly idempotencyKey?: string | undefined;
  readonly defaults?: LineDefaults;
  /** Called with the batch's id as soon as the service has given it. */
  readonly onBatch?: (batchId: string) => void;
  /** Called before each wait after which the stream is sent again. */
  readonly onBreak?: (error: SluiceError | SluiceConnectionError, waitMs: number) => void;
}

/** A list, or a function that opens the lines anew, can be sent again after a break; any other iterable only once. */
export type Lines = LineSource | (() => LineSource);

const optionNames = { idempotencyKey: true, defaults: true, onBatch: true, onBreak: true, signal: true } as const;
const defaultNames: Readonly<Record<keyof LineDefaults, true>> = {
  upstream: true,
  queue: true,
  method: true,
  path: true,
  partition_key: true,
  priority: true,
  run_at: true,
  expires_at: true,
  cost: true,
  max_attempts: true,
  payload_version: true,
  correlation_id: true,
  derive_keys: true,
};

const path = '/v1/batches';
const request = `POST ${path}`;
/** A stream whose connection is gone without a trace holds its batch for 10 seconds; the tries must outlast that. */
const inProgressWaitMs = 4_000;

/**
 * Verdicts as they come. Nothing is sent before they are read: iterate over it, or call `end()`. To stop iterating is to break the
 * stream off, and leaves the batch `incomplete`.
 */
export class LineSubmission implements AsyncIterable<LineVerdict> {
  /** To send the same lines again with, should this end early. */
  readonly idempotencyKey: string;
  readonly #transport: Transport;
  readonly #lines: Lines;
  readonly #options: SubmitLinesOptions;
  #batchId: string | undefined;
  #summary: BatchProgress | undefined;
  /** Index of the next verdict to give. */
  #next = 0;

  constructor(transport: Transport, lines: Lines, options: SubmitLinesOptions) {
    checkNames('submitLines', options, optionNames, (name) =>
      Object.hasOwn(defaultNames, name)
        ? `what lines share goes into defaults: { defaults: { ${name}: … } }`
        : undefined,
    );
    this.idempotencyKey = options.idempotencyKey ?? crypto.randomUUID();
    this.#transport = transport;
    this.#lines = lines;
    this.#options = options;
  }

  /** undefined until the service has answered. */
  get batchId(): string | undefined {
    return this.#batchId;
  }

  /** The batch as it was when its last line was stored; undefined until all verdicts were given. */
  get summary(): BatchProgress | undefined {
    return this.#summary;
  }

  /** Reads all verdicts that are left, keeps none, and gives the summary. */
  async end(): Promise<BatchProgress> {
    for await (const _verdict of this);
    if (this.#summary === undefined) throw new SluiceConnectionError(`${request}: the verdicts were read elsewhere`);
    return this.#summary;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<LineVerdict> {
    const { signal, onBreak } = this.#options;
    let failures = 0;
    while (this.#summary === undefined) {
      const before = this.#next;
      try {
        yield* this.#once();
      } catch (error) {
        if (!this.#goesOnAfter(error)) throw error;
        failures = this.#next > before ? 1 : failures + 1;
        if (failures >= this.#transport.attempts) throw error;
        const wantedMs = error instanceof SluiceError ? waitOf(error) : undefined;
        if ((wantedMs ?? 0) > this.#transport.longestWaitMs) throw error;
        const ms = waitMs(failures, wantedMs);
        onBreak?.(error, ms);
        await pause(ms, signal);
      }
    }
  }

  #goesOnAfter(error: unknown): error is SluiceError | SluiceConnectionError {
    if (typeof this.#lines !== 'function' && !Array.isArray(this.#lines)) return false;
    if (error instanceof SluiceConnectionError) return true;
    if (!(error instanceof SluiceError)) return false;
    return error.code === 'stream_in_progress' || [429, 502, 503, 504].includes(error.status);
  }

  /** The whole stream from its first line; gives the verdicts that were not given yet. */
  async *#once(): AsyncGenerator<LineVerdict> {
    const transport = this.#transport;
    const { signal } = this.#options;
    const stop = new AbortController();
    const abort = () => stop.abort(signal?.reason);
    signal?.addEventListener('abort', abort, { once: true });
    const sent = new Sent(typeof this.#lines === 'function' ? this.#lines() : this.#lines);
    try {
      signal?.throwIfAborted();
      const response = await transport.once('POST', path, {
        query: queryOf(this.#options.defaults),
        headers: {
          accept: 'application/x-ndjson',
          'content-type': 'application/x-ndjson',
          'idempotency-key': headerKey(this.idempotencyKey),
        },
        stream: sent.pieces(),
        signal: stop.signal,
      });
      await transport.checked('POST', path, response, stop.signal);
      this.#found(response.headers.get('sluice-batch-id'));
      yield* this.#read(response);
    } catch (error) {
      signal?.throwIfAborted();
      if (sent.failure !== undefined) throw sent.failure.error;
      throw error;
    } finally {
      signal?.removeEventListener('abort', abort);
      // Also where the reader has had enough: the service is told by the broken connection.
      stop.abort();
      sent.close();
    }
  }

  #found(batchId: string | null): void {
    if (batchId === null || batchId === this.#batchId) return;
    this.#batchId = batchId;
    this.#options.onBatch?.(batchId);
  }

  async *#read(response: Response): AsyncGenerator<LineVerdict> {
    const lines = decodeLines(response.body as AsyncIterable<Uint8Array> | null);
    for (;;) {
      let next: IteratorResult<unknown>;
      try {
        next = await lines.next();
      } catch (error) {
        throw this.#transport.connectionError(request, error);
      }
      if (next.done === true) throw new SluiceConnectionError(`${request}: the answer ended before its summary`);
      const line = next.value as LineVerdict | { summary: BatchProgress } | { error: Problem };
      if ('error' in line) throw new SluiceError(request, line.error);
      if ('summary' in line) {
        this.#summary = line.summary;
        return;
      }
      if (line.index < this.#next) continue;
      this.#next = line.index + 1;
      yield line;
    }
  }
}

/** Lines on their way out. What their source throws is kept: fetch makes another error of it. */
class Sent {
  readonly #pieces: AsyncGenerator<Uint8Array>;
  failure: { readonly error: unknown } | undefined;

  constructor(source: LineSource) {
    this.#pieces = encodeLines(source);
  }

  async *pieces(): AsyncGenerator<Uint8Array> {
    try {
      yield* this.#pieces;
    } catch (error) {
      this.failure = { error };
      throw error;
    }
  }

  /** Lets go of the source, which fetch does not where it is stopped; one that is waited for, when it gives its next line. */
  close(): void {
    this.#pieces.return(undefined).catch(() => undefined);
  }
}

function waitOf({ code, retryAfterMs }: SluiceError): number | undefined {
  return code === 'stream_in_progress' ? Math.max(retryAfterMs ?? 0, inProgressWaitMs) : retryAfterMs;
}

function queryOf(defaults: LineDefaults = {}): Query {
  return defaults;
}
