/**
 * What a list of start times says about a rate limit: whether the bound held, and how much of the quota was used. Shares no
 * arithmetic with the windows it judges. Times are milliseconds.
 */
import { fullestInterval } from '../src/simulator/fullest-interval.ts';

/**
 * Share of a quota of `limit` per `perMs` that was used while it was the only brake. Counted from the first start to the
 * first start of a later period's worth, so that a window that opens in one burst is not counted at both ends; the last
 * period's worth is left out, since by then there may be too few jobs. null: too few starts to tell.
 *
 * @param skip starts at the beginning that a burst lets through
 */
export function quotaUsed(times: readonly number[], limit: number, perMs: number, skip = 0): number | null {
  const sorted = [...times].sort((a, b) => a - b).slice(skip);
  const all = Math.floor((sorted.length - 1) / limit);
  const whole = all > 1 ? all - 1 : all;
  if (whole < 1) return null;
  const spanMs = sorted[whole * limit]! - sorted[0]!;
  return (whole * perMs) / spanMs;
}

/**
 * Windows of one period that open with an admission cannot be seen from the starts alone: the call that opened one may never
 * have been made. But `k` periods touch `k + 1` windows at most. Gives the first `k` whose fullest interval holds more than
 * they let through; null: none does.
 */
export function periodsOverFixedWindows(times: readonly number[], limit: number, perMs: number): number | null {
  const spanMs = Math.max(...times) - Math.min(...times);
  for (let k = 1; (k - 1) * perMs <= spanMs; k += 1) {
    if (fullestInterval(times, k * perMs).count > (k + 1) * limit) return k;
  }
  return null;
}

/**
 * Over all intervals: the most starts beyond `burst + rate x (length + permit)`. Zero or less: the bound of a token bucket
 * holds.
 */
export function mostOverBucket(
  times: readonly number[],
  { limit, perMs, burst, permitMs }: { limit: number; perMs: number; burst: number; permitMs: number },
): number {
  const sorted = [...times].sort((a, b) => a - b);
  const rate = limit / perMs;
  let lowest = Number.POSITIVE_INFINITY;
  let most = Number.NEGATIVE_INFINITY;
  for (const [i, time] of sorted.entries()) {
    const level = i - rate * time;
    lowest = Math.min(lowest, level);
    most = Math.max(most, level - lowest + 1);
  }
  return most - burst - rate * permitMs;
}
