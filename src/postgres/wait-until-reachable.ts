/**
 * Waiting for PostgreSQL at the start: containers come up in any order, and what is there may go away again before the start
 * is through.
 */
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
 * Takes a step of the start as soon as PostgreSQL takes connections, and again where it goes away in the midst of it; gives
 * what the step gave, or undefined where the signal aborts. Without a step it only waits. Throws DatabaseUnavailableError when
 * the time is over, and the driver's error at once where waiting does not help: a wrong password, a database that does not
 * exist.
 */
export async function waitUntilReachable<T = void>(
  options: WaitOptions,
  step?: () => Promise<T>,
): Promise<T | undefined> {
  const { connectionString, logger, clock, withinMs, signal } = options;
  const start = clock.monotonicMs();
  let nextLineMs = start;
  while (!signal.aborted) {
    try {
      await connectOnce(connectionString);
      return await step?.();
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
  return undefined;
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
