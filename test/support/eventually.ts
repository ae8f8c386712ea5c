/** Waiting in tests: for a condition, never for a time. */
import { systemClock } from '../../src/system/clock.ts';

const pollMs = 20;

/**
 * Resolves with what `probe` gives as soon as that is neither undefined nor false; a probe that throws is asked again.
 * Rejects after `withinMs` (a bound for hanging, not a measure of speed), saying what was waited for.
 */
export async function eventually<T>(
  what: string,
  probe: () => Promise<T | undefined | false> | T | undefined | false,
  withinMs = 30_000,
): Promise<T> {
  const end = systemClock.monotonicMs() + withinMs;
  let last: unknown;
  while (systemClock.monotonicMs() < end) {
    try {
      const value = await probe();
      if (value !== undefined && value !== false) return value;
    } catch (error) {
      last = error;
    }
    await systemClock.sleep(pollMs);
  }
  throw new Error(`waited ${withinMs} ms in vain for: ${what}`, { cause: last });
}
