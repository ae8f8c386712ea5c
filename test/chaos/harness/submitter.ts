/**
 * A careful client: posts batches over some time, each under an Idempotency-Key, to whatever replica comes next, and posts a
 * batch again, to another replica, until it is accepted. At times it acts as if an accepted answer had been lost, and expects
 * the same answer again. Each batch repeats an item of the one before it, so that keys meet across batches and replicas; but for
 * every other one, which is a new item alone, as most clients send them: a worker at rest has such a job in the commit that stores it.
 */
import { draw } from '../../../src/simulator/draw.ts';
import { systemClock as clock } from '../../../src/system/clock.ts';
import { type BatchAnswer, TestClient } from '../../support/client.ts';

export interface SubmitterOptions {
  readonly seed: number;
  /** Keys in all. */
  readonly items: number;
  readonly upstream: string;
  /** The batches are spread over so long. */
  readonly spreadMs: number;
  readonly urls: () => readonly string[];
  readonly onProblem: (text: string) => void;
  readonly signal: AbortSignal;
}

export interface SentBatch {
  readonly batchId: string;
  readonly keys: readonly string[];
}

interface BatchToSend {
  /** Idempotency-Key of the request. */
  readonly key: string;
  readonly keys: readonly string[];
  readonly body: string;
  readonly dueMs: number;
}

/** How many post at once; on the same pace none of them waits for another's retries. */
const posters = 4;
const fewestItems = 5;
const mostItems = 95;
/** Of the batches, a single new item. */
const singles = 0.5;
/** Also a short run has so many batches, about. */
const fewestBatches = 40;
/** A replica that stands still answers nobody. */
const answerWithinMs = 6_000;
const [leastPauseMs, mostPauseMs] = [100, 500] as const;
/** Of accepted batches, asked for once more. */
const askedAgain = 0.1;

export class Submitter {
  readonly batches: SentBatch[] = [];
  /** Requests by what came of them. */
  readonly answers = new Map<string, number>();
  readonly #options: SubmitterOptions;
  /** All of them, of batches that were not accepted too. */
  readonly keys: readonly string[];
  readonly total: number;
  readonly #left: BatchToSend[];
  #accepted = 0;
  #turn = 0;

  constructor(options: SubmitterOptions) {
    this.#options = options;
    this.#left = batchesOf(options);
    this.total = this.#left.length;
    this.keys = [...new Set(this.#left.flatMap(({ keys }) => keys))];
  }

  /** Items with the verdict `accepted` so far. */
  get accepted(): number {
    return this.#accepted;
  }

  /** Resolves when every batch is accepted, or the signal aborts. */
  async run(): Promise<void> {
    const startMs = clock.monotonicMs();
    const post = async () => {
      for (let batch = this.#left.shift(); batch !== undefined; batch = this.#left.shift()) {
        const waitMs = batch.dueMs - (clock.monotonicMs() - startMs);
        if (waitMs > 0) await clock.sleep(waitMs, this.#options.signal);
        if (this.#options.signal.aborted) return;
        await this.#send(batch);
      }
    };
    await Promise.all(Array.from({ length: posters }, post));
  }

  async #send(batch: BatchToSend): Promise<void> {
    const first = await this.#untilAccepted(batch);
    if (first === null) return;
    this.#check(batch, first);
    this.#accepted += first.counts.accepted;
    this.batches.push({ batchId: first.batch_id, keys: batch.keys });
    if (draw(this.#options.seed, `again ${batch.key}`) >= askedAgain) return;
    const again = await this.#untilAccepted(batch);
    if (again === null) return;
    const same = again.batch_id === first.batch_id && verdicts(again) === verdicts(first);
    if (!same || !again.replayed) {
      this.#options.onProblem(`batch ${batch.key}, asked again, was not answered as at first (${again.batch_id})`);
    }
  }

  async #untilAccepted(batch: BatchToSend): Promise<BatchAnswer | null> {
    for (let tries = 1; !this.#options.signal.aborted; tries += 1) {
      const answer = await this.#post(batch);
      if (answer?.status === 202) return answer.body;
      const told = Number(answer?.headers.get('retry-after') ?? 0) * 1000;
      const drawn = draw(this.#options.seed, `pause ${batch.key} ${tries}`);
      await clock.sleep(
        Math.min(2_000, Math.max(told, leastPauseMs + (mostPauseMs - leastPauseMs) * drawn)),
        this.#options.signal,
      );
    }
    return null;
  }

  /** null: no answer came. */
  async #post({ key, body }: BatchToSend) {
    const urls = this.#options.urls();
    if (urls.length === 0) return null;
    this.#turn += 1;
    const api = new TestClient(urls[this.#turn % urls.length]!);
    const headers = { 'content-type': 'application/json', 'idempotency-key': key };
    const signal = AbortSignal.any([this.#options.signal, AbortSignal.timeout(answerWithinMs)]);
    const answer = await api
      .send<BatchAnswer & { code?: string }>('POST', '/v1/batches', { body, headers, signal })
      .catch(() => null);
    const { status = null } = answer ?? {};
    const kind = status === null ? 'no answer' : status === 202 && answer?.body.replayed ? '202 replayed' : `${status}`;
    this.answers.set(kind, (this.answers.get(kind) ?? 0) + 1);
    // 429: the service's own intake limit.
    if (status !== null && ![202, 429, 503].includes(status)) {
      this.#options.onProblem(`batch ${key} was answered ${status} ${answer?.body.code ?? ''}`);
    }
    return answer;
  }

  #check({ key, keys }: BatchToSend, { counts, items }: BatchAnswer): void {
    const inOrder = items.length === keys.length && items.every((item, n) => item.idempotency_key === keys[n]);
    if (!inOrder) this.#options.onProblem(`batch ${key} was answered with other items than were sent`);
    if (counts.accepted + counts.duplicate !== keys.length) {
      this.#options.onProblem(`batch ${key} was answered ${JSON.stringify(counts)} for ${keys.length} legal items`);
    }
  }
}

function verdicts({ items }: BatchAnswer): string {
  return items.map(({ verdict, job_id }) => `${verdict} ${job_id}`).join();
}

function batchesOf({ seed, items, upstream, spreadMs }: SubmitterOptions): BatchToSend[] {
  const batches: BatchToSend[] = [];
  const digits = String(items).length;
  const most = Math.max(fewestItems, Math.min(mostItems, (2 * items) / fewestBatches - fewestItems));
  for (let from = 0; from < items; ) {
    const drawn = draw(seed, `size ${batches.length}`);
    const isSingle = draw(seed, `single ${batches.length}`) < singles;
    const size = isSingle ? 1 : Math.min(items - from, Math.round(fewestItems + (most - fewestItems) * drawn));
    const own = Array.from({ length: size }, (_, n) => `item-${String(from + n + 1).padStart(digits, '0')}`);
    const repeated = isSingle ? undefined : batches.at(-1)?.keys.at(-1);
    const keys = repeated === undefined ? own : [repeated, ...own];
    const body = {
      defaults: { upstream, method: 'POST', path: '/charges' },
      items: keys.map((key) => ({ idempotency_key: key, body: { item: key } })),
    };
    batches.push({
      key: `chaos-${seed}-${batches.length + 1}`,
      keys,
      body: JSON.stringify(body),
      dueMs: (from / items) * spreadMs,
    });
    from += size;
  }
  return batches;
}
