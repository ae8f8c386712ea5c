/** Figures of repeated runs: the middle one, how far they lie apart, and both as text. */

export interface Spread {
  readonly median: number;
  readonly least: number;
  readonly most: number;
  readonly runs: readonly number[];
}

/** Of at least one figure. */
export function spread(runs: readonly number[]): Spread {
  const sorted = [...runs].sort((a, b) => a - b);
  return { median: percentile(sorted, 50), least: sorted[0]!, most: sorted.at(-1)!, runs };
}

/** Nearest rank, of figures in ascending order. */
export function percentile(sorted: readonly number[], percent: number): number {
  return sorted[Math.max(0, Math.ceil((sorted.length * percent) / 100) - 1)]!;
}

/** With as many digits as a reader wants: 12,345 or 12.3 or 0.123. */
export function inWords(value: number): string {
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : Math.abs(value) >= 1 ? 2 : 3;
  return value.toLocaleString('en-US', { maximumFractionDigits: digits });
}

/** The median, and the least and the most beside it. */
export function spreadInWords({ median, least, most }: Spread): string {
  return `${inWords(median)}  (${inWords(least)} to ${inWords(most)})`;
}

/** As a reader wants it, to the whole percent. @param share 1 is all of it */
export function inPercent(share: number): string {
  return `${(share * 100).toFixed(0)} %`;
}
