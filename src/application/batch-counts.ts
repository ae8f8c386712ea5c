/**
 * How far batches are, for all who ask in this process. Counting a large batch and estimating its end takes the database tenths
 * of a second, and clients poll; so of each batch one count is made at a time, the next one is shared by all who have asked
 * since that one began, and few run at once, whatever is asked. Nothing is kept: a count that is given was begun after it was
 * asked for, so it shows what the caller was told of before, by this process or another.
 */
import { setMaxListeners } from 'node:events';
import { ProblemError } from '../domain/errors.ts';
import type { Database } from '../postgres/database.ts';
import type { Clock } from '../system/clock.ts';
import { Turns } from '../system/turns.ts';
import { type BatchProgress, getBatch } from './batches.ts';

/** Counts of a process at once: the database has other things to do. */
const mostAtOnce = 2;
/** Between two of one batch as long as the first of them took, so that readers cost half of a processor at the most … */
const longestPauseMs = 250;
/** … and nobody waits for much longer because of it. How long a caller waits for its count to begin. */
const patienceMs = 5_000;
const retryAfterSeconds = 2;

interface Count {
  readonly begun: AbortController;
  readonly result: Promise<BatchProgress>;
  /** Who waits for it. */
  askers: number;
}

interface Line {
  /** Not begun. */
  next: Count | undefined;
  /** Resolves, whatever became of the count before, when the next may begin; undefined: now. */
  free: Promise<void> | undefined;
}

export class BatchCounts {
  readonly #database: Database;
  readonly #clock: Clock;
  readonly #turns: Turns;
  readonly #lines = new Map<string, Line>();

  constructor({ database, clock }: { readonly database: Database; readonly clock: Clock }) {
    this.#database = database;
    this.#clock = clock;
    this.#turns = new Turns(mostAtOnce, clock);
  }

  /**
   * The batch as it stands at some moment after this was called. Throws ProblemError `not_found`, also for a batch of another
   * tenant, and `overloaded` where its count has not begun within `ms` milliseconds.
   */
  async read(tenant: string, batchId: string, ms = patienceMs): Promise<BatchProgress> {
    // Of two tenants that ask for the same batch, one finds nothing.
    const key = `${batchId} ${tenant}`;
    const line = this.#lines.get(key) ?? { next: undefined, free: undefined };
    this.#lines.set(key, line);
    line.next ??= this.#plan(key, line, () => getBatch({ database: this.#database }, tenant, batchId));
    const count = line.next;
    count.askers += 1;
    await this.#clock.sleep(ms, count.begun.signal);
    count.askers -= 1;
    if (count.begun.signal.aborted) return count.result;
    throw new ProblemError('overloaded', 'counting batches takes too long just now; try again', {
      retryAfterSeconds,
    });
  }

  #plan(key: string, line: Line, count: () => Promise<BatchProgress>): Count {
    const begun = new AbortController();
    // One for each who waits.
    setMaxListeners(0, begun.signal);
    const begin = async (): Promise<BatchProgress> => {
      await line.free;
      await this.#turns.take(Number.POSITIVE_INFINITY);
      line.next = undefined;
      // Nobody waits any longer.
      if (planned.askers === 0) {
        this.#turns.give();
        this.#forget(key, line);
        throw new Error('nobody has waited for this count');
      }
      begun.abort();
      const startMs = this.#clock.monotonicMs();
      const result = count();
      line.free = this.#settle(result, startMs).then(() => {
        line.free = undefined;
        this.#forget(key, line);
      });
      return result;
    };
    const planned: Count = { begun, result: begin(), askers: 0 };
    planned.result.catch(() => undefined);
    return planned;
  }

  async #settle(result: Promise<unknown>, startMs: number): Promise<void> {
    await result.catch(() => undefined);
    this.#turns.give();
    await this.#clock.sleep(Math.min(longestPauseMs, this.#clock.monotonicMs() - startMs));
  }

  #forget(key: string, line: Line): void {
    if (line.next === undefined && line.free === undefined) this.#lines.delete(key);
  }
}
