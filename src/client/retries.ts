/**
 * How long to wait before a call is made again. What the service asks for with Retry-After is kept to; else the wait grows,
 * with full jitter, so that many clients do not come back at once.
 */
import { systemClock } from '../system/clock.ts';

/** First wait without a Retry-After, in milliseconds, … */
const baseMs = 250;
/** … and the longest. */
const capMs = 8_000;

/** Milliseconds before try `failures + 1`. */
export function waitMs(failures: number, retryAfterMs: number | undefined): number {
  const backoffMs = Math.random() * Math.min(capMs, baseMs * 2 ** Math.min(failures, 10));
  return Math.max(retryAfterMs ?? 0, backoffMs);
}

/** Retry-After as seconds or an HTTP date (RFC 9110, section 10.2.3), in milliseconds; undefined: none, or not legal. */
export function retryAfterMs(header: string | null): number | undefined {
  if (header === null) return undefined;
  if (/^\d{1,9}$/.test(header)) return Number(header) * 1000;
  const at = Date.parse(header);
  return Number.isNaN(at) ? undefined : Math.max(0, at - systemClock.wallMs());
}

/** Waits; rejects with the signal's reason as soon as it aborts. */
export async function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  await systemClock.sleep(ms, signal);
  signal?.throwIfAborted();
}
