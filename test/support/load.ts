/**
 * Load that does not give up: batches posted to each replica in turn without a pause, and posted again until they are
 * accepted, as a careful client would. Every answer is kept, so that a test can judge them afterwards.
 */
import { type Clock, systemClock } from '../../src/system/clock.ts';
import { type BatchAnswer, numberedItems, type TestClient } from './client.ts';

export interface LoadAnswer {
  /** null: no answer came at all. */
  readonly status: number | null;
  readonly code: string | null;
  readonly retryAfter: string | null;
  readonly tookMs: number;
}

export interface LoadOptions {
  readonly clients: readonly TestClient[];
  readonly upstream: string;
  /** Of its keys. */
  readonly prefix: string;
  /** Default 10. */
  readonly itemsPerBatch?: number;
  /** Between two posts of one client; default 100. */
  readonly pauseMs?: number;
}

export class Load {
  readonly answers: LoadAnswer[] = [];
  /** Of batches that were accepted. */
  readonly keys: string[] = [];
  readonly batchIds: string[] = [];
  readonly #options: LoadOptions;
  readonly #clock: Clock = systemClock;
  readonly #stopping = new AbortController();
  readonly #loops: Promise<void>[];

  constructor(options: LoadOptions) {
    this.#options = options;
    this.#loops = options.clients.map((client, index) => this.#run(client, index));
  }

  /** No new batches; resolves when those that were begun are accepted. */
  async stop(): Promise<void> {
    this.#stopping.abort();
    await Promise.all(this.#loops);
  }

  async #run(client: TestClient, index: number): Promise<void> {
    const { itemsPerBatch = 10, pauseMs = 100, upstream, prefix } = this.#options;
    const defaults = { upstream, path: '/charges' };
    for (let number = 1; !this.#stopping.signal.aborted; number += 1) {
      const items = numberedItems(`${prefix}-${index}-${number}`, itemsPerBatch);
      let batch = await this.#post(client, { defaults, items });
      while (batch === null) {
        await this.#clock.sleep(pauseMs);
        batch = await this.#post(client, { defaults, items });
      }
      this.batchIds.push(batch.batch_id);
      this.keys.push(...items.map((item) => item.idempotency_key));
      await this.#clock.sleep(pauseMs, this.#stopping.signal);
    }
  }

  /** null: not accepted. */
  async #post(client: TestClient, body: object): Promise<BatchAnswer | null> {
    const startMs = this.#clock.monotonicMs();
    const answer = await client
      .send<BatchAnswer & { code?: string }>('POST', '/v1/batches', { body })
      .catch(() => null);
    this.answers.push({
      status: answer?.status ?? null,
      code: answer?.body?.code ?? null,
      retryAfter: answer?.headers.get('retry-after') ?? null,
      tookMs: this.#clock.monotonicMs() - startMs,
    });
    return answer?.status === 202 ? answer.body : null;
  }
}
