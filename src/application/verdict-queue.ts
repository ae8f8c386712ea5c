/**
 * Verdicts on their way to the client, in order. A client may read at any pace, or only after it has sent everything; the
 * intake does not wait for it. So only the next few are kept in memory, and those beyond are read from the store again when
 * the client comes to them: nothing here grows with the stream.
 */
import type { ItemVerdict } from '../domain/submission.ts';
import type { Clock } from '../system/clock.ts';
import { WakeSignal } from '../system/wake-signal.ts';

/** Kept in memory at most; what a client that reads at once needs is a chunk or two. One with every fault takes 16 kB. */
const mostInMemory = 2_000;
/** Read at once from the store. */
const mostRead = 1_000;

export interface VerdictQueueOptions {
  readonly clock: Clock;
  /** Stored verdicts from this index on, as many as `most`. */
  readonly read: (from: number, most: number) => Promise<readonly ItemVerdict[]>;
}

export class VerdictQueue {
  readonly #options: VerdictQueueOptions;
  readonly #come: WakeSignal;
  /** In order, with gaps where there was no room. */
  #inMemory: (readonly ItemVerdict[])[] = [];
  #inMemoryCount = 0;
  #added = 0;
  #ended = false;

  constructor(options: VerdictQueueOptions) {
    this.#options = options;
    this.#come = new WakeSignal(options.clock);
  }

  /** Verdicts that are durable, right after those before. */
  add(items: readonly ItemVerdict[]): void {
    if (items.length === 0) return;
    this.#added += items.length;
    if (this.#inMemoryCount + items.length <= mostInMemory) {
      this.#inMemory.push(items);
      this.#inMemoryCount += items.length;
    }
    this.#come.set();
  }

  /** There will be no more. */
  end(): void {
    this.#ended = true;
    this.#come.set();
  }

  /** All verdicts in order, in pieces; rejects where the store cannot be read. For one reader. */
  async *take(): AsyncGenerator<readonly ItemVerdict[]> {
    let next = 0;
    while (true) {
      if (next < this.#added) {
        const items = await this.#from(next);
        next += items.length;
        yield items;
      } else if (this.#ended) {
        return;
      } else {
        await this.#come.wait(Number.POSITIVE_INFINITY);
      }
    }
  }

  async #from(next: number): Promise<readonly ItemVerdict[]> {
    const nearest = this.#inMemory[0];
    if (nearest?.[0]?.index === next) {
      this.#inMemory.shift();
      this.#inMemoryCount -= nearest.length;
      return nearest;
    }
    const end = nearest?.[0]?.index ?? this.#added;
    const items = await this.#options.read(next, Math.min(end - next, mostRead));
    if (items.length === 0) throw new Error(`the verdicts from item ${next} on are gone`);
    return items;
  }
}
