/**
 * Whether this process should get traffic. PostgreSQL is asked at most once a second, however many ask, and an answer that
 * does not come in time counts as a loss; so a loss shows within 5 seconds, and so does a recovery.
 */
import type { Fault } from '../domain/errors.ts';
import { checkWritable } from '../postgres/check-writable.ts';
import type { Database } from '../postgres/database.ts';
import type { Clock } from '../system/clock.ts';

/** How long an answer of PostgreSQL is believed. */
const believedMs = 1_000;
/** How long one is waited for; with the time above it stays under the 5 s in which a loss must show. */
const patienceMs = 3_500;
/** How long a connection may owe the answer before it is given up; the rest of the patience is for getting one. */
const queryMs = 3_000;

export interface ReadinessOptions {
  readonly database: Database;
  readonly clock: Clock;
  /** Why this process takes no more work, if so: claims that have stopped, a shutdown. Empty: nothing is wrong. */
  readonly ownFaults: () => readonly Fault[];
}

/** Gives a function that tells everything that speaks against traffic; empty: ready. It never rejects. */
export function createReadinessCheck({ database, clock, ownFaults }: ReadinessOptions): () => Promise<Fault[]> {
  let asked: Promise<Fault[]> | undefined;
  let believedUntil = 0;

  async function ask(): Promise<Fault[]> {
    const faults = await databaseFaults(database, clock);
    believedUntil = clock.monotonicMs() + believedMs;
    return faults;
  }

  return async () => {
    if (asked === undefined || clock.monotonicMs() >= believedUntil) {
      believedUntil = Number.POSITIVE_INFINITY;
      asked = ask();
    }
    return [...(await asked), ...ownFaults()];
  };
}

async function databaseFaults(database: Database, clock: Clock): Promise<Fault[]> {
  const decided = new AbortController();
  const answer = checkWritable(database, queryMs).then(
    () => [],
    () => [{ code: 'database_unavailable', message: 'PostgreSQL cannot be used' }],
  );
  const silence = clock
    .sleep(patienceMs, decided.signal)
    .then(() => [{ code: 'database_unavailable', message: `PostgreSQL has not answered for ${patienceMs} ms` }]);
  try {
    return await Promise.race([answer, silence]);
  } finally {
    decided.abort();
  }
}
