/**
 * When retention steps: a round every minute, spread out so that it never takes more than a part of the process's share of
 * the database; a walk from the oldest on every hour. Decides nothing about what goes (postgres/retention.ts).
 */
import type { Database } from '../postgres/database.ts';
import { newRetentionCursor, type RetentionPolicy, retainOnce } from '../postgres/retention.ts';
import type { Clock } from '../system/clock.ts';
import type { Logger } from '../system/logger.ts';

/** Items of one step: some tens of milliseconds. */
const mostItems = 500;
/** Steps of one turn end after this long; the next turn is a round of maintenance away, about a second. */
const turnMs = 250;
const roundEveryMs = 60_000;
/** What was too young or not ended is looked at again after this long. */
const walkAnewMs = 3_600_000;

export interface RetentionOptions {
  readonly database: Database;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly policy: RetentionPolicy;
}

export class RetentionRounds {
  readonly #options: RetentionOptions;
  #cursor = newRetentionCursor();
  #nextRoundMs = 0;
  #nextWalkMs: number;
  #gone = { keys: 0, batches: 0, jobs: 0 };

  constructor(options: RetentionOptions) {
    this.#options = options;
    this.#nextWalkMs = options.clock.monotonicMs() + this.#walkAnewMs;
  }

  /** Where nothing is kept at all, a walk of the hour would keep it for an hour. */
  get #walkAnewMs(): number {
    const { retentionDays, keyRetentionDays } = this.#options.policy;
    return retentionDays === 0 || keyRetentionDays === 0 ? roundEveryMs : walkAnewMs;
  }

  /** Some steps, if a round is due or under way. */
  async turn(): Promise<void> {
    const { database, clock, logger, policy } = this.#options;
    const startMs = clock.monotonicMs();
    if (startMs < this.#nextRoundMs) return;
    while (clock.monotonicMs() - startMs < turnMs) {
      const { roundOver, ...gone } = await retainOnce(database, policy, this.#cursor, { most: mostItems });
      this.#gone.keys += gone.keys;
      this.#gone.batches += gone.batches;
      this.#gone.jobs += gone.jobs;
      if (!roundOver) continue;
      this.#nextRoundMs = clock.monotonicMs() + roundEveryMs * (0.8 + 0.4 * Math.random());
      if (Object.values(this.#gone).some((count) => count > 0))
        logger.info(this.#gone, 'past their retention: deleted');
      this.#gone = { keys: 0, batches: 0, jobs: 0 };
      if (clock.monotonicMs() >= this.#nextWalkMs) {
        this.#cursor = newRetentionCursor();
        this.#nextWalkMs = clock.monotonicMs() + this.#walkAnewMs;
      }
      return;
    }
  }
}
