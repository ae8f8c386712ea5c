/**
 * Brute force over a log of starts: the interval of a given length that holds the most of them. It shares no arithmetic with
 * the rate windows, so it can judge them. Intervals are half-open: two starts exactly one length apart are not in one.
 */

export interface FullestInterval {
  readonly count: number;
  /** Time of the first start in it; null where there are none. */
  readonly startMs: number | null;
}

/** Times in milliseconds, in any order. */
export function fullestInterval(timesMs: readonly number[], lengthMs: number): FullestInterval {
  if (!(lengthMs > 0)) throw new RangeError(`an interval must be longer than 0 ms, got ${lengthMs}`);
  const sorted = [...timesMs].sort((a, b) => a - b);
  let best: FullestInterval = { count: 0, startMs: null };
  let first = 0;
  for (const [last, time] of sorted.entries()) {
    while (time - (sorted[first] ?? time) >= lengthMs) first += 1;
    const count = last - first + 1;
    if (count > best.count) best = { count, startMs: sorted[first] ?? null };
  }
  return best;
}
