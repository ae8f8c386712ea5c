/**
 * How long a job waits after a failure that may be retried: capped exponential backoff with full jitter
 * (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/). Pure; the caller brings the random number.
 * What counts as a failure is decided in `settle.ts`; a time named by the upstream (`retry-after.ts`) replaces this one.
 */
import type { RetryPolicy } from './definitions.ts';

/**
 * Wait before the next attempt, in whole milliseconds from 0 to `min(cap_ms, base_ms * 2^(failures - 1))`.
 *
 * @param failures attempts spent so far, this one included (1 or more)
 * @param random01 uniform in [0, 1)
 * @throws RangeError for arguments that would give NaN: a wrong delay must not become a hot loop
 */
export function backoffMs(policy: Pick<RetryPolicy, 'base_ms' | 'cap_ms'>, failures: number, random01: number): number {
  if (!(failures >= 1)) throw new RangeError(`failures must be 1 or more, got ${failures}`);
  if (!(random01 >= 0 && random01 <= 1)) throw new RangeError(`random01 must be within 0 and 1, got ${random01}`);
  // 2 ** 1024 is Infinity and the minimum is still the cap, so any number of failures is safe.
  const ceiling = Math.min(policy.cap_ms, policy.base_ms * 2 ** (failures - 1));
  return Math.round(ceiling * random01);
}
