/**
 * The API as tests speak it: typed answers for what they look at, and waiting by polling for a condition.
 */
import { SluiceClient } from '../../src/client/index.ts';
import { systemClock } from '../../src/system/clock.ts';

export interface VerdictItem {
  readonly index: number;
  readonly idempotency_key: string | null;
  readonly key_source?: string | null;
  readonly verdict: 'accepted' | 'duplicate' | 'conflict' | 'rejected';
  readonly job_id?: string | null;
  readonly job_state?: string | null;
  readonly response_status?: number | null;
  readonly needs_retry?: boolean;
  readonly errors?: ReadonlyArray<{
    readonly pointer?: string;
    readonly code: string;
    readonly message: string;
  }> | null;
}

export interface BatchAnswer {
  readonly batch_id: string;
  readonly status: string;
  readonly replayed: boolean;
  readonly counts: Readonly<Record<'total' | 'accepted' | 'duplicate' | 'conflict' | 'rejected', number>>;
  readonly items: readonly VerdictItem[];
}

export interface BatchStatus {
  readonly batch_id: string;
  readonly status: string;
  readonly counts: BatchAnswer['counts'];
  readonly jobs: Readonly<Record<string, number>>;
  readonly progress: number;
}

export interface Attempt {
  readonly number: number;
  readonly epoch: number;
  readonly worker_id: string;
  readonly outcome: string;
  readonly charged: 'attempt' | 'throttle' | 'none';
  readonly status: number | null;
  readonly started_at: string;
  readonly sent_at: string | null;
  readonly ended_at: string;
  readonly retry_after_ms: number | null;
  readonly late: { readonly outcome: string; readonly status: number | null } | null;
}

export interface Job {
  readonly job_id: string;
  readonly idempotency_key: string;
  readonly state: string;
  readonly reason: string | null;
  readonly attempts_used: number;
  readonly throttles: number;
  readonly evidence: string | null;
  readonly response: { readonly status: number } | null;
  readonly attempts: readonly Attempt[];
  readonly reconciliations: ReadonlyArray<{
    readonly at: string;
    readonly status: number | null;
    readonly verdict: string;
  }>;
}

/** An item as a test writes it; `defaults` of the batch fill in the rest. */
export type Item = Readonly<Record<string, unknown>>;

const pollMs = 50;

export class TestClient extends SluiceClient {
  /** Makes no call again by itself: what the service says is what the test sees. */
  constructor(baseUrl: string, apiKey?: string) {
    super({ baseUrl, apiKey, attempts: 1 });
  }

  /** PUT of an upstream at this address, with short retries and loopback allowed; `more` goes over the defaults. */
  async putUpstream(name: string, url: string, more: object = {}): Promise<void> {
    const retry = { max_attempts: 12, base_ms: 100, cap_ms: 1000 };
    const body = { base_url: url, timeout_ms: 5000, retry, allow_private_addresses: true, ...more };
    await this.call('PUT', `/admin/upstreams/${name}`, { body });
  }

  async putRateLimit(name: string, body: object): Promise<void> {
    await this.call('PUT', `/admin/rate-limits/${name}`, { body });
  }

  /** POST of a batch whose items go to POST /charges of this upstream unless they say otherwise. */
  submit(upstream: string, items: readonly Item[], more: object = {}): Promise<BatchAnswer> {
    const body = { defaults: { upstream, method: 'POST', path: '/charges' }, items, ...more };
    return this.call<BatchAnswer>('POST', '/v1/batches', { body });
  }

  batch(id: string): Promise<BatchStatus> {
    return this.call<BatchStatus>('GET', `/v1/batches/${id}`);
  }

  job(id: string): Promise<Job> {
    return this.call<Job>('GET', `/v1/jobs/${id}`);
  }

  /** Every item of the batch, page by page. */
  async items(batchId: string): Promise<VerdictItem[]> {
    const items: VerdictItem[] = [];
    for await (const item of this.batchItems(batchId)) items.push(item);
    return items;
  }

  /** Resolves with the batch when it fulfils the condition (default: completed); rejects with what it was after `timeoutMs`. */
  waitForBatch(id: string, timeoutMs: number, until = completed): Promise<BatchStatus> {
    return waitFor(() => this.batch(id), until, timeoutMs);
  }

  waitForJob(id: string, timeoutMs: number, until: (job: Job) => boolean): Promise<Job> {
    return waitFor(() => this.job(id), until, timeoutMs);
  }
}

/** Polls until the condition holds; rejects with the last value after `timeoutMs`. */
export async function waitFor<T>(read: () => Promise<T>, until: (value: T) => boolean, timeoutMs: number): Promise<T> {
  const endMs = systemClock.monotonicMs() + timeoutMs;
  for (;;) {
    const value = await read();
    if (until(value)) return value;
    if (systemClock.monotonicMs() > endMs) {
      throw new Error(`the condition did not hold within ${timeoutMs} ms; at the end: ${JSON.stringify(value)}`);
    }
    await systemClock.sleep(pollMs);
  }
}

function completed(batch: BatchStatus): boolean {
  return batch.status === 'completed';
}

/** `count` items with keys `prefix-0001`, … and a small body each. */
export function numberedItems(prefix: string, count: number): Array<{ idempotency_key: string; body: object }> {
  return Array.from({ length: count }, (_, i) => ({
    idempotency_key: `${prefix}-${String(i + 1).padStart(4, '0')}`,
    body: { number: i + 1 },
  }));
}
