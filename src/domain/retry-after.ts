/**
 * Reads a Retry-After header (RFC 9110, 10.2.3): delay-seconds, or one of the three forms of HTTP-date (5.6.7).
 * Strict on purpose: what is not of the grammar counts as absent, never as 0, so that no upstream's typing error becomes
 * a hot loop. One extension: a plain decimal, which real APIs send, rounded up. What to do with the delay is decided in
 * `settle.ts`.
 */

export type RetryAfter =
  | { readonly kind: 'absent' }
  | { readonly kind: 'invalid'; readonly raw: string }
  /** `ms` is whole milliseconds, 0 where the time is past, and never over the cap. */
  | { readonly kind: 'delay'; readonly ms: number; readonly capped: boolean; readonly raw: string };

export interface RetryAfterContext {
  /**
   * The same answer's Date header: an HTTP-date is read against it, so that the two clocks need not agree. Absent or not
   * a date: `nowMs` counts.
   */
  readonly responseDate: string | string[] | undefined;
  /** This process's time of day, in milliseconds since 1970. */
  readonly nowMs: number;
  /** Longest delay that is believed, in milliseconds. */
  readonly capMs: number;
}

/**
 * The delay that one or several Retry-After headers ask for; of several, the largest valid one. A number that looks like
 * a time since 1970 is not guessed at: it is capped.
 */
export function parseRetryAfter(value: string | string[] | undefined, context: RetryAfterContext): RetryAfter {
  if (value === undefined) return { kind: 'absent' };
  const values = typeof value === 'string' ? [value] : value;
  if (values.length === 0) return { kind: 'absent' };
  let longest: number | null = null;
  for (const one of values) {
    const ms = delayOf(trimWhitespace(one), context);
    if (ms !== null && (longest === null || ms > longest)) longest = ms;
  }
  const raw = values.join(', ');
  if (longest === null) return { kind: 'invalid', raw };
  const capped = longest > context.capMs;
  return { kind: 'delay', ms: capped ? context.capMs : longest, capped, raw };
}

/** Milliseconds (Infinity for a number beyond a double's range, which the cap then bounds), or null: not of the grammar. */
function delayOf(text: string, context: RetryAfterContext): number | null {
  if (/^\d+(\.\d+)?$/.test(text)) return secondsToMs(text);
  const at = parseHttpDate(text, context.nowMs);
  if (at === null) return null;
  const date = typeof context.responseDate === 'string' ? context.responseDate : context.responseDate?.[0];
  const from = date === undefined ? null : parseHttpDate(trimWhitespace(date), context.nowMs);
  return Math.max(0, at - (from ?? context.nowMs));
}

/** Decimal digits rather than a double's product decide: 0.001 is 1 ms and not 1.0000000000000002 rounded up to 2. */
function secondsToMs(text: string): number {
  const [whole, fraction = ''] = text.split('.') as [string, string?];
  const ms = Number(whole) * 1000 + Number(fraction.slice(0, 3).padEnd(3, '0'));
  return /[1-9]/.test(fraction.slice(3)) ? ms + 1 : ms;
}

const dayNames = '(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)';
const longDayNames = '(?:Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday)';
const months = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];
const month = `(?<month>${months.join('|')})`;
const time = '(?<hour>\\d\\d):(?<minute>\\d\\d):(?<second>\\d\\d)';

const imfFixdate = new RegExp(`^${dayNames}, (?<day>\\d\\d) ${month} (?<year>\\d{4}) ${time} GMT$`);
const rfc850Date = new RegExp(`^${longDayNames}, (?<day>\\d\\d)-${month}-(?<year>\\d\\d) ${time} GMT$`);
const asctimeDate = new RegExp(`^${dayNames} ${month} (?<day>\\d\\d| \\d) ${time} (?<year>\\d{4})$`);

/**
 * Milliseconds since 1970 of an HTTP-date in any of its three forms, or null where it is none, or names a day or an hour
 * that does not exist. A two-digit year is taken as RFC 9110 says: the latest that is not over 50 years ahead of `nowMs`.
 */
export function parseHttpDate(text: string, nowMs: number): number | null {
  const parts = (imfFixdate.exec(text) ?? rfc850Date.exec(text) ?? asctimeDate.exec(text))?.groups;
  if (parts === undefined) return null;
  const day = Number(parts.day);
  const monthIndex = months.indexOf(parts.month as string);
  const hour = Number(parts.hour);
  const minute = Number(parts.minute);
  const second = Number(parts.second);
  // 60 is a leap second, which the grammar allows; it becomes the second after.
  if (hour > 23 || minute > 59 || second > 60) return null;
  const year = parts.year?.length === 2 ? fullYear(Number(parts.year), nowMs) : Number(parts.year);
  const midnight = new Date(0);
  // Not Date.UTC: it takes the years 0 to 99 for 1900 to 1999.
  midnight.setUTCFullYear(year, monthIndex, day);
  // 30 February rolls over into March: an invented date is none.
  if (midnight.getUTCMonth() !== monthIndex || midnight.getUTCDate() !== day) return null;
  return midnight.getTime() + ((hour * 60 + minute) * 60 + second) * 1000;
}

function fullYear(twoDigits: number, nowMs: number): number {
  const thisYear = new Date(nowMs).getUTCFullYear();
  const candidate = thisYear - (thisYear % 100) + twoDigits;
  if (candidate > thisYear + 50) return candidate - 100;
  return candidate <= thisYear - 50 ? candidate + 100 : candidate;
}

/** Optional whitespace of a field value is SP and HTAB only (RFC 9110, 5.6.3); trim() would take much more. */
function trimWhitespace(text: string): string {
  return text.replace(/^[ \t]+|[ \t]+$/g, '');
}
