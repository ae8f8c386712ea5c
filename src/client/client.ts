/**
 * The client of the public API: a method for each route of `/v1`, and `admin` for operators. Types are those of the OpenAPI
 * document; calls that are safe to make again are made again by themselves (see `transport.ts`).
 */
import { AdminClient } from './admin.ts';
import type {
  BatchAnswer,
  BatchInput,
  BatchItem,
  BatchProgress,
  BatchSummary,
  DryRunAnswer,
  EvidenceInput,
  Explanation,
  Job,
  JobEvent,
  JobSummary,
  ListBatchItemsParams,
  ListJobsParams,
  LookUpReceiptsData,
  Problem,
  Receipt,
} from './api-types.ts';
import { SluiceError } from './errors.ts';
import { type FollowOptions, followEvents } from './events.ts';
import { checkNames } from './known-options.ts';
import { decodeLines } from './ndjson.ts';
import { itemsOf } from './pages.ts';
import { headerKey } from './request-key.ts';
import { LineSubmission, type Lines, type SubmitLinesOptions } from './submit-lines.ts';
import { type ApiAnswer, type ApiRequest, type CallOptions, type ClientOptions, Transport } from './transport.ts';

export interface SubmitOptions extends CallOptions {
  /**
   * Names the submission: the same batch under the same key is stored once, and answered with `replayed: true` the second
   * time. Default: a random one, so that a lost answer is asked for again safely. null: none.
   */
  readonly idempotencyKey?: string | null | undefined;
}

export interface GetBatchOptions extends CallOptions {
  /** Seconds that the service may wait for the batch's end before it answers. */
  readonly wait?: number | undefined;
}

/** What items can be narrowed to. */
export type ItemFilter = Omit<ListBatchItemsParams, 'batchId' | 'cursor' | 'limit'>;

/** An event of a batch; `id` is what `lastEventId` takes. */
export type BatchEvent =
  | { readonly type: 'progress'; readonly id: string | undefined; readonly data: BatchProgress }
  | { readonly type: 'job'; readonly id: string | undefined; readonly data: JobEvent }
  | { readonly type: 'done'; readonly id: string | undefined; readonly data: BatchProgress };

/** Seconds of one wait; below the idle time of the usual proxies. */
const waitSeconds = 30;
const optionNames = { baseUrl: true, apiKey: true, attempts: true, longestWaitMs: true, fetch: true } as const;
const ndjson = 'application/x-ndjson';

export class SluiceClient {
  /** Definitions, rate windows, dead letters, workers and keys; needs a key with the scope `admin`. */
  readonly admin: AdminClient;
  readonly #transport: Transport;

  /** Throws a TypeError or RangeError for options that cannot be right. */
  constructor(options: ClientOptions = {}) {
    checkNames('SluiceClient', options, optionNames);
    this.#transport = new Transport(options);
    this.admin = new AdminClient(this.#transport);
  }

  /** Without a slash at the end. */
  get baseUrl(): string {
    return this.#transport.baseUrl;
  }

  /** A verdict for each item. `batch` may be JSON text, which goes out as it is. */
  async submitBatch(batch: BatchInput | string, options: SubmitOptions = {}): Promise<BatchAnswer> {
    checkNames('submitBatch', options, { idempotencyKey: true, signal: true });
    const { signal, idempotencyKey = crypto.randomUUID() } = options;
    return this.call('POST', '/v1/batches', {
      body: batch,
      signal,
      repeatable: idempotencyKey !== null,
      headers: idempotencyKey === null ? {} : { 'idempotency-key': headerKey(idempotencyKey) },
    });
  }

  /** The verdicts and the finish that a batch would have; stores nothing. */
  dryRun(batch: BatchInput | string, options: CallOptions = {}): Promise<DryRunAnswer> {
    return this.call('POST', '/v1/batches', { ...options, body: batch, query: { dry_run: true }, repeatable: true });
  }

  /**
   * Any number of lines, with bounded memory. Nothing is sent until what it gives is read: iterate over it for the verdicts,
   * or await its `end()` for the summary alone. Throws a TypeError for an option that there is not.
   */
  submitLines(lines: Lines, options: SubmitLinesOptions = {}): LineSubmission {
    return new LineSubmission(this.#transport, lines, options);
  }

  getBatch(batchId: string, { wait, signal }: GetBatchOptions = {}): Promise<BatchProgress> {
    return this.call('GET', batchPath(batchId), { query: { wait }, signal });
  }

  /** Waits for the batch's end (`completed` or `cancelled`), however long that takes; `held` jobs have no end. */
  async waitForEnd(batchId: string, { signal }: CallOptions = {}): Promise<BatchProgress> {
    for (;;) {
      const batch = await this.getBatch(batchId, { wait: waitSeconds, signal });
      if (batch.status === 'completed' || batch.status === 'cancelled') return batch;
    }
  }

  /** Newest first. */
  listBatches(options: CallOptions = {}): AsyncGenerator<BatchSummary> {
    return itemsOf(this.#transport, '/v1/batches', {}, options);
  }

  /** Items in their order, page by page. */
  batchItems(batchId: string, filter: ItemFilter = {}, options: CallOptions = {}): AsyncGenerator<BatchItem> {
    return itemsOf(this.#transport, `${batchPath(batchId)}/items`, filter, options);
  }

  /** All items in one answer: the fastest way to compare with the receiver's books. Throws where it breaks off. */
  async *exportItems(
    batchId: string,
    filter: ItemFilter = {},
    { signal }: CallOptions = {},
  ): AsyncGenerator<BatchItem> {
    const path = `${batchPath(batchId)}/items`;
    const transport = this.#transport;
    const request = { query: filter, headers: { accept: ndjson }, signal };
    const response = await transport.tries('GET', path, request, (answer) =>
      transport.checked('GET', path, answer, signal),
    );
    try {
      for await (const line of decodeLines(response.body as AsyncIterable<Uint8Array> | null)) {
        if ('error' in (line as object)) throw new SluiceError(`GET ${path}`, (line as { error: Problem }).error);
        yield line as BatchItem;
      }
    } catch (error) {
      signal?.throwIfAborted();
      if (error instanceof SluiceError) throw error;
      throw transport.connectionError(`GET ${path}`, error);
    }
  }

  /** What happens to a batch until it is done; goes on by itself where the connection breaks. */
  events(batchId: string, options: FollowOptions = {}): AsyncGenerator<BatchEvent> {
    const path = `${batchPath(batchId)}/events`;
    return followEvents(this.#transport, path, 'done', options) as AsyncGenerator<BatchEvent>;
  }

  cancelBatch(batchId: string, options: CallOptions = {}): Promise<BatchProgress> {
    return this.call('POST', `${batchPath(batchId)}/cancel`, { ...options, repeatable: true });
  }

  /** Ends a stream that will not be resumed. */
  closeBatch(batchId: string, options: CallOptions = {}): Promise<BatchProgress> {
    return this.call('POST', `${batchPath(batchId)}/close`, { ...options, repeatable: true });
  }

  /** Goes on with what a fuse has held. */
  resumeBatch(batchId: string, options: CallOptions = {}): Promise<BatchProgress> {
    return this.call('POST', `${batchPath(batchId)}/resume`, { ...options, repeatable: true });
  }

  /** All of a job, its attempts included. */
  getJob(jobId: string, options: CallOptions = {}): Promise<Job> {
    return this.call('GET', jobPath(jobId), options);
  }

  /** Newest first. */
  listJobs(
    filter: Omit<ListJobsParams, 'cursor' | 'limit'> = {},
    options: CallOptions = {},
  ): AsyncGenerator<JobSummary> {
    return itemsOf(this.#transport, '/v1/jobs', filter, options);
  }

  /** Why it has not run yet. */
  explainJob(jobId: string, options: CallOptions = {}): Promise<Explanation> {
    return this.call('GET', `${jobPath(jobId)}/explain`, options);
  }

  cancelJob(jobId: string, options: CallOptions = {}): Promise<Job> {
    return this.call('POST', `${jobPath(jobId)}/cancel`, options);
  }

  /** Starts an ended or held job again. `freshKey`: under a new idempotency key. */
  retryJob(jobId: string, { freshKey = false, ...options }: CallOptions & { freshKey?: boolean } = {}): Promise<Job> {
    return this.call('POST', `${jobPath(jobId)}/retry`, { ...options, body: { fresh_key: freshKey } });
  }

  /** What became of a key. */
  getReceipt(key: string, options: CallOptions = {}): Promise<Receipt> {
    return this.call('GET', '/v1/receipts', { ...options, query: { key } });
  }

  /** In the order of the keys; at most 1,000. A key that is not known has the state `unknown_key`. */
  async lookUpReceipts(keys: readonly string[], options: CallOptions = {}): Promise<LookUpReceiptsData['items']> {
    const request = { ...options, body: { keys }, repeatable: true };
    return (await this.call<LookUpReceiptsData>('POST', '/v1/receipts/lookup', request)).items;
  }

  /** The receiver's own evidence that the effect was applied; ends an unfinished job as succeeded. */
  putReceipt(key: string, evidence: EvidenceInput = {}, options: CallOptions = {}): Promise<Receipt> {
    // A second one is a 409: whoever lost the answer of the first would take it for a refusal.
    return this.call('PUT', '/v1/receipts', { ...options, query: { key }, body: evidence, repeatable: false });
  }

  /** Any call of the API: the body of a 2xx; throws a SluiceError for anything else. `path` starts with a slash. */
  call<T>(method: string, path: string, request: ApiRequest = {}): Promise<T> {
    return this.#transport.call<T>(method, path, request);
  }

  /** As `call`, but gives whatever is answered. */
  send<T>(method: string, path: string, request: ApiRequest = {}): Promise<ApiAnswer<T>> {
    return this.#transport.send<T>(method, path, request);
  }
}

function batchPath(batchId: string): string {
  return `/v1/batches/${encodeURIComponent(batchId)}`;
}

function jobPath(jobId: string): string {
  return `/v1/jobs/${encodeURIComponent(jobId)}`;
}
