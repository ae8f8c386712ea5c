/**
 * What became of one call, told by `outbound/send-request.ts` or by the loss of a lease; what it costs is decided in
 * `settle.ts`. Outcome classes are the contract's words and go as they are into attempts and metrics.
 */

export type OutcomeClass = 'success' | 'rejected' | 'throttled' | 'error' | 'timeout' | 'not_sent' | 'unknown';

/** What an attempt spent: one of the job's attempts, one of its throttles, or nothing. */
export type Charge = 'attempt' | 'throttle' | 'none';

/** An upstream's answer, its body read up to the bounds of `outbound/answer-body.ts`. */
export interface UpstreamAnswer {
  readonly status: number;
  /** Names in lower case; a header sent twice is an array. */
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  /** First 64 KiB as UTF-8, upstream secrets blotted out, NUL replaced by U+FFFD. */
  readonly excerpt: string;
  readonly truncated: boolean;
  /** SHA-256 over the bytes that were read, in hex. */
  readonly sha256: string;
}

/** `code` of a call that was cancelled on our side before the write: it says nothing about the upstream. */
export const cancelledCode = 'cancelled';

/** `code` of a call that was not made because a secret of its upstream is not set in this process. */
export const missingSecretCode = 'missing_secret';

/** How a started call ended, before any rule is applied. */
export type CallResult =
  /** The permit ran out before the request was written: nothing left, nothing is spent, no attempt is recorded. */
  | { readonly kind: 'permit_expired' }
  /**
   * The request surely never left (connection refused, address refused, TLS failed, cancelled before the write). `code` is
   * the system's or one of ours, such as `cancelledCode`.
   */
  | { readonly kind: 'not_sent'; readonly error: string; readonly code: string }
  /** It was written, wholly or in part, and no answer's head came: reset, timeout, abort. */
  | {
      readonly kind: 'no_answer';
      readonly reason: 'timeout' | 'reset' | 'aborted';
      readonly error: string;
      readonly sentAfterMs: number;
    }
  /**
   * An answer. `bodyError` is set where the head came but the body could not be read to its end; the status is known, so
   * the status decides, but for one case: `bodyTimedOut`, the deadline of the whole call passed while the body of a success
   * was still coming.
   */
  | {
      readonly kind: 'answered';
      readonly answer: UpstreamAnswer;
      readonly sentAfterMs: number;
      readonly bodyError?: string;
      readonly bodyTimedOut?: boolean;
    };
