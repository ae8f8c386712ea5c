/** Waiting for PostgreSQL at the start: containers come up in any order. */
import pg from 'pg';
import type { Clock } from '../system/clock.ts';
import type { Logger } from '../system/logger.ts';
import { asUnavailable, sessionOptions } from './database.ts';

const pauseMs = 500;
/** Between two lines of the log that say that we still wait. */
const lineEveryMs = 10_000;

export interface WaitOptions {
  readonly connectionString: string;
  readonly logger: Logger;
  readonly clock: Clock;
  readonly withinMs: number;
  /** Gives up the wait. */
  readonly signal: AbortSignal;
}

/**
 * Resolves when PostgreSQL takes connections, or the signal aborts. Throws DatabaseUnavailableError when the time is over,
 * and the driver's error at once where waiting does not help: a wrong password, a database that does not exist.
 */
export async function waitUntilReachable(options: WaitOptions): Promise<void> {
  const { connectionString, logger, clock, withinMs, signal } = options;
  const start = clock.monotonicMs();
  let nextLineMs = start;
  while (!signal.aborted) {
    try {
      await connectOnce(connectionString);
      return;
    } catch (error) {
      const unavailable = asUnavailable(error);
      if (unavailable === undefined) throw error;
      const now = clock.monotonicMs();
      if (now - start >= withinMs) throw unavailable;
      if (now >= nextLineMs) {
        logger.warn({ err: unavailable }, `waiting for PostgreSQL, for at most ${Math.round(withinMs / 1000)} s`);
        nextLineMs = now + lineEveryMs;
      }
      await clock.sleep(pauseMs, signal);
    }
  }
}

async function connectOnce(connectionString: string): Promise<void> {
  const client = new pg.Client(sessionOptions(connectionString, 'sluice start'));
  client.on('error', () => undefined);
  try {
    await client.connect();
  } finally {
    await client.end().catch(() => undefined);
  }
}
