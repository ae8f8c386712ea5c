/**
 * The upstream's own quota, kept by the exact log of what it let in: slow, simple and right, so that it can catch a caller that
 * sends too much.
 */
import type { Answer } from './answers.ts';

/** At most `limit` calls in any `perMs` milliseconds; the rest get 429, and a Retry-After unless `silent`. */
export interface Quota {
  readonly limit: number;
  readonly perMs: number;
  readonly silent?: boolean;
}

export class QuotaKeeper {
  readonly #quota: Quota;
  /** Arrivals that were let in, oldest first, in monotonic milliseconds. */
  readonly #admitted: number[] = [];

  constructor(quota: Quota) {
    this.#quota = quota;
  }

  /** Counts the call and gives null, or gives the refusal, which counts nothing. */
  admit(nowMs: number): Answer | null {
    const { limit, perMs, silent } = this.#quota;
    while (this.#admitted.length > 0 && nowMs - (this.#admitted[0] ?? 0) >= perMs) this.#admitted.shift();
    if (this.#admitted.length < limit) {
      this.#admitted.push(nowMs);
      return null;
    }
    const waitMs = perMs - (nowMs - (this.#admitted[0] ?? nowMs));
    const seconds = String(Math.max(1, Math.ceil(waitMs / 1000)));
    return { status: 429, headers: silent ? [] : [['Retry-After', seconds]], body: '{"error":"over_quota"}' };
  }
}
