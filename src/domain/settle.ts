/**
 * What an answer, or the lack of one, does to a job: the one place where outcomes, budgets and waits are decided. Pure;
 * the store writes what is returned here, in the transaction that gives up the lease.
 * Invariants: a throttle never spends an attempt; a call that surely never left never makes an outcome unknown; nothing is
 * sent again later than the upstream remembers its key. `expires_at` is the store's: it is judged when a start is due.
 * Calls that only ask what became of an earlier one are `reconcile.ts`.
 */
import type { Reconcile, Upstream } from './definitions.ts';
import type { ClaimedJob, EndedState, Ledger, Method } from './job.ts';
import {
  type CallResult,
  type Charge,
  cancelledCode,
  missingSecretCode,
  type OutcomeClass,
  type UpstreamAnswer,
} from './outcome.ts';
import { parseRetryAfter, type RetryAfter } from './retry-after.ts';
import { backoffMs } from './retry-policy.ts';

/** Where the job goes. */
export type Next =
  | {
      readonly kind: 'done';
      readonly state: EndedState;
      readonly reason: string | null;
      readonly evidence: 'response' | 'receipt' | 'reconciled' | null;
    }
  /** Due at once, in its old place. */
  | { readonly kind: 'ready' }
  /** `delayMs` counts from the moment the settlement is written, on the database's clock. */
  | { readonly kind: 'scheduled'; readonly delayMs: number; readonly reason: string | null }
  | { readonly kind: 'held'; readonly reason: string };

/** A throttled answer, as the cooldown needs it. */
export interface Throttle {
  /** null: no usable Retry-After, or 0: the streak's own backoff, kept with the cooldown. */
  readonly delayMs: number | null;
  readonly capped: boolean;
  readonly status: number;
  /** The header as it came; null: none. */
  readonly header: string | null;
}

/**
 * What was learnt when the upstream was asked about a call. `applied`: the effect is there; `absent`: it is not;
 * `throttled`, `unclear`: nothing.
 */
export type ReconcileVerdict = 'applied' | 'absent' | 'throttled' | 'unclear';

export interface Settlement {
  readonly next: Next;
  /** null: no attempt is recorded. */
  readonly outcome: OutcomeClass | null;
  readonly charge: Charge;
  readonly throttle: Throttle | null;
  /** The wait that the answer asked for, in milliseconds, whether or not a rule used it; null: none that can be read. */
  readonly retryAfterMs: number | null;
  readonly retryAfterCapped: boolean;
  /** An answer came and was no throttle: a cooldown's ramp may grow. */
  readonly answeredWithoutThrottle: boolean;
  /** Sent, and not answered by a throttle: from the first such call on, the upstream's memory of the key counts. */
  readonly mayHaveHadEffect: boolean;
  /** The job's flag from now on. */
  readonly outcomeUnknown: boolean;
  /** The call asked about an earlier one instead of making the job's own; null: it did not. */
  readonly reconciliation: ReconcileVerdict | null;
  /** For the attempt's record: what went wrong in words, upstream secrets already blotted out; null: nothing. */
  readonly error: string | null;
}

/** With the default `cap_ms` ten minutes of waiting for an operator. */
const mostCallsWithoutSecret = 20;

/** Of a job whose batch is stopped by an answer that its upstream's `fuse` lists. */
export const fuseReason = 'fuse';

/**
 * Unauthorized, Forbidden and Proxy Authentication Required (RFC 9110, 15.5.2, 15.5.4, 15.5.8): refused at the door, so the
 * call has done nothing.
 */
const refusedAtTheDoor: ReadonlySet<number> = new Set([401, 403, 407]);

/** What a decision needs of a job. */
export type SettledJob = Ledger & Pick<ClaimedJob, 'method' | 'maxAttempts'>;

/** What a worker saw of its call, or what the reaper concludes of one that a lost lease left behind (sent, for all we know). */
export type SettledCall = CallResult | { readonly kind: 'lease_expired' };

export interface SettleContext {
  /** Uniform in [0, 1). */
  readonly random01: number;
  /** This process's time of day in milliseconds since 1970: only for an HTTP-date in an answer without Date. */
  readonly nowWallMs: number;
}

/**
 * Decides by the ended call alone: same arguments, same settlement.
 *
 * @param job as it was claimed: `attemptsUsed`, `throttles` and `firstSentAgeMs` are without this call
 */
export function decideSettlement(
  job: SettledJob,
  upstream: Upstream,
  result: SettledCall,
  context: SettleContext,
): Settlement {
  switch (result.kind) {
    case 'permit_expired':
      return spendNothing(job, null);
    case 'not_sent':
      // Cancelled on our side (a drain, a lost lease): nothing was learnt about the upstream.
      if (result.code === cancelledCode) return spendNothing(job, result.error);
      if (result.code === missingSecretCode) return waitForSecret(job, upstream, result.error);
      return {
        ...withoutAnswer(job, 'not_sent', result.error),
        next: retryOrEnd(job, upstream, {
          firstSentAgeMs: job.firstSentAgeMs,
          delayMs: backoff(job, upstream, context),
        }),
      };
    case 'no_answer': {
      // Handed back by a drain: the next worker takes it at once.
      const delayMs = result.reason === 'aborted' ? null : backoff(job, upstream, context);
      return outcomeUnknown(job, upstream, delayMs, withoutAnswer(job, 'unknown', result.error));
    }
    case 'lease_expired':
      return outcomeUnknown(job, upstream, null, withoutAnswer(job, 'unknown', 'the worker lost its lease'));
    case 'answered':
      return decideAnswer(job, upstream, result, context);
  }
}

/**
 * A claimed job that must not be sent any more, because the upstream may have forgotten its key while it waited; null: it
 * may be sent.
 */
export function refuseLateResend(job: SettledJob, upstream: Upstream): Settlement | null {
  if (!keyMayBeForgotten(job, upstream)) return null;
  return { ...spendNothing(job, null), next: { kind: 'held', reason: 'outcome_unknown' } };
}

/**
 * Whether the upstream is asked what became of an earlier call before the job's own is made again: that call's answer was
 * never seen, or the key may be forgotten by now.
 */
export function asksFirst(
  job: Pick<Ledger, 'outcomeUnknown' | 'firstSentAgeMs'>,
  upstream: Upstream,
): upstream is Upstream & { readonly reconcile: Reconcile } {
  return upstream.reconcile !== null && (job.outcomeUnknown || keyMayBeForgotten(job, upstream));
}

/** Whether the job's attempts are spent, once `more` of them are taken. */
export function attemptsSpent(job: SettledJob, upstream: Upstream, more = 0): boolean {
  return job.attemptsUsed + more >= (job.maxAttempts ?? upstream.retry.max_attempts);
}

/** The upstream's `on_unknown`, or its default: an effect that nothing deduplicates is not risked twice. */
export function onUnknownOf(upstream: Upstream, method: Method): 'resend' | 'hold' {
  if (upstream.on_unknown !== null) return upstream.on_unknown;
  return upstream.idempotency_header === null && (method === 'POST' || method === 'PATCH') ? 'hold' : 'resend';
}

/**
 * Whether the upstream may have forgotten the key `inMs` milliseconds from now, so that sending again might do the work
 * twice. Also to be asked right before a send: a job can have waited long since its settlement.
 */
export function keyMayBeForgotten(ledger: Pick<Ledger, 'firstSentAgeMs'>, upstream: Upstream, inMs = 0): boolean {
  return ledger.firstSentAgeMs !== null && ledger.firstSentAgeMs + inMs > upstream.key_ttl_s * 1000;
}

function decideAnswer(
  job: SettledJob,
  upstream: Upstream,
  { answer, bodyError, bodyTimedOut }: Extract<CallResult, { kind: 'answered' }>,
  context: SettleContext,
): Settlement {
  const { status } = answer;
  const success = isSuccess(status, upstream);
  // Nearly all answers, so without a look at anything that could not change it.
  if (success && status !== 429 && bodyTimedOut !== true) return succeeded(bodyError ?? null);
  const retryAfter = readRetryAfter(answer, upstream, context);
  const told = retryAfter.kind === 'delay' ? retryAfter : null;
  const blows = !success && upstream.fuse.statuses.includes(status);
  const throttle = throttleIn(status, retryAfter, success || blows);
  if (throttle !== null) return throttled(job, upstream, throttle, retryAfter);
  const answered = {
    retryAfterMs: success ? null : (told?.ms ?? null),
    retryAfterCapped: success ? false : (told?.capped ?? false),
    answeredWithoutThrottle: true,
    error: bodyError ?? null,
  };
  if (success && bodyTimedOut === true) {
    // The whole call has a deadline, body included, and what a head promised is not what the body would have said.
    return outcomeUnknown(job, upstream, backoff(job, upstream, context), {
      ...withoutAnswer(job, 'timeout', null),
      ...answered,
    });
  }
  const spent = { charge: 'attempt', throttle: null, mayHaveHadEffect: true, reconciliation: null } as const;
  // An earlier call whose answer was never seen is not explained by a refusal: the flag stays.
  const refused = { error: answered.error ?? redirectError(answer), outcomeUnknown: job.outcomeUnknown };
  if (blows) {
    const next: Next = { kind: 'held', reason: fuseReason };
    const mayHaveHadEffect = !refusedAtTheDoor.has(status);
    return { ...answered, ...spent, ...refused, charge: 'none', mayHaveHadEffect, next, outcome: 'rejected' };
  }
  if (isRetryable(status, upstream, told !== null)) {
    const next = retryOrEnd(job, upstream, {
      firstSentAgeMs: job.firstSentAgeMs ?? 0,
      delayMs: toldDelay(retryAfter) ?? backoff(job, upstream, context),
    });
    return { ...answered, ...spent, next, outcome: 'error', outcomeUnknown: job.outcomeUnknown };
  }
  const next: Next = { kind: 'done', state: 'failed', reason: 'rejected_by_upstream', evidence: 'response' };
  return { ...answered, ...spent, ...refused, next, outcome: 'rejected' };
}

const done: Next = { kind: 'done', state: 'succeeded', reason: null, evidence: 'response' };

/** @param error what befell the body after its head had said that the call succeeded */
function succeeded(error: string | null): Settlement {
  return {
    next: done,
    outcome: 'success',
    charge: 'attempt',
    throttle: null,
    retryAfterMs: null,
    retryAfterCapped: false,
    answeredWithoutThrottle: true,
    mayHaveHadEffect: true,
    outcomeUnknown: false,
    reconciliation: null,
    error,
  };
}

function isSuccess(status: number, upstream: Upstream): boolean {
  if (upstream.success_statuses !== null) return upstream.success_statuses.includes(status);
  return status >= 200 && status <= 299;
}

/** 413 says that the request is too large, and only with a Retry-After that this may pass (RFC 9110, 15.5.14). */
function isRetryable(status: number, upstream: Upstream, hasRetryAfter: boolean): boolean {
  if (upstream.retry_statuses !== null) return upstream.retry_statuses.includes(status);
  return status === 408 || status === 425 || (status >= 500 && status <= 599) || (status === 413 && hasRetryAfter);
}

export function readRetryAfter(answer: UpstreamAnswer, upstream: Upstream, context: SettleContext): RetryAfter {
  return parseRetryAfter(answer.headers['retry-after'], {
    responseDate: answer.headers.date,
    nowMs: context.nowWallMs,
    capMs: upstream.retry.retry_after_cap_s * 1000,
  });
}

/** The wait that was asked for, in milliseconds; null: none, or none that says more than "later". */
export function toldDelay(retryAfter: RetryAfter): number | null {
  return retryAfter.kind === 'delay' && retryAfter.ms > 0 ? retryAfter.ms : null;
}

/** 429 always, 503 where it names a time; null: no throttle. @param expected the definition lists this status */
export function throttleIn(status: number, retryAfter: RetryAfter, expected: boolean): Throttle | null {
  const delayMs = toldDelay(retryAfter);
  if (status !== 429 && (status !== 503 || expected || delayMs === null)) return null;
  return {
    delayMs,
    capped: retryAfter.kind === 'delay' && retryAfter.capped,
    status,
    header: retryAfter.kind === 'absent' ? null : retryAfter.raw,
  };
}

function throttled(job: SettledJob, upstream: Upstream, throttle: Throttle, retryAfter: RetryAfter): Settlement {
  let next: Next = { kind: 'ready' };
  if (job.throttles + 1 > upstream.retry.max_throttles) {
    next = { kind: 'done', state: 'failed', reason: 'throttled_too_long', evidence: null };
  } else if (upstream.reconcile === null && keyMayBeForgotten(job, upstream, throttle.delayMs ?? 0)) {
    next = { kind: 'held', reason: 'outcome_unknown' };
  }
  return {
    next,
    outcome: 'throttled',
    charge: 'throttle',
    throttle,
    retryAfterMs: retryAfter.kind === 'delay' ? retryAfter.ms : null,
    retryAfterCapped: throttle.capped,
    answeredWithoutThrottle: false,
    mayHaveHadEffect: false,
    outcomeUnknown: job.outcomeUnknown,
    reconciliation: null,
    error: null,
  };
}

/** @param delayMs null: the job is due at once, in its place */
function outcomeUnknown(
  job: SettledJob,
  upstream: Upstream,
  delayMs: number | null,
  seen: Omit<Settlement, 'next'>,
): Settlement {
  return { ...seen, next: afterUnknown(job, upstream, delayMs), mayHaveHadEffect: true, outcomeUnknown: true };
}

function afterUnknown(job: SettledJob, upstream: Upstream, delayMs: number | null): Next {
  // Asking costs no attempt and no effect, so neither a spent budget nor `hold` comes before it.
  if (upstream.reconcile !== null) return laterOrNow(delayMs);
  if (onUnknownOf(upstream, job.method) === 'hold') return { kind: 'held', reason: 'outcome_unknown' };
  return retryOrEnd(job, upstream, { firstSentAgeMs: job.firstSentAgeMs ?? 0, delayMs });
}

/** After a call that spent an attempt. */
function retryOrEnd(
  job: SettledJob,
  upstream: Upstream,
  { firstSentAgeMs, delayMs }: { firstSentAgeMs: number | null; delayMs: number | null },
): Next {
  if (attemptsSpent(job, upstream, 1)) {
    return { kind: 'done', state: 'failed', reason: 'attempts_exhausted', evidence: null };
  }
  // Where the upstream can be asked, it is, before anything is sent again that late.
  if (upstream.reconcile === null && keyMayBeForgotten({ firstSentAgeMs }, upstream, delayMs ?? 0)) {
    return { kind: 'held', reason: 'outcome_unknown' };
  }
  return laterOrNow(delayMs);
}

/** @param delayMs null: at once, in its place */
export function laterOrNow(delayMs: number | null): Next {
  return delayMs === null ? { kind: 'ready' } : { kind: 'scheduled', delayMs, reason: null };
}

function backoff(job: SettledJob, upstream: Upstream, context: SettleContext): number {
  return backoffMs(upstream.retry, job.attemptsUsed + 1, context.random01);
}

/**
 * Nothing is wrong with the job or the upstream, and another replica may have the secret: the job waits and is not charged.
 * After `mostCallsWithoutSecret` it is held, so that its record does not grow for ever.
 */
function waitForSecret(job: SettledJob, upstream: Upstream, error: string): Settlement {
  const next: Next =
    job.calls + 1 >= mostCallsWithoutSecret
      ? { kind: 'held', reason: missingSecretCode }
      : { kind: 'scheduled', delayMs: upstream.retry.cap_ms, reason: missingSecretCode };
  return { ...withoutAnswer(job, 'not_sent', error), charge: 'none', next };
}

/** Back to its place as if it had not been claimed. */
export function spendNothing(job: SettledJob, error: string | null): Settlement {
  return { ...withoutAnswer(job, 'not_sent', error), next: { kind: 'ready' }, outcome: null, charge: 'none' };
}

function withoutAnswer(job: SettledJob, outcome: OutcomeClass, error: string | null): Omit<Settlement, 'next'> {
  return {
    outcome,
    charge: 'attempt',
    throttle: null,
    retryAfterMs: null,
    retryAfterCapped: false,
    answeredWithoutThrottle: false,
    mayHaveHadEffect: false,
    outcomeUnknown: job.outcomeUnknown,
    reconciliation: null,
    error,
  };
}

/** Where a redirect pointed is the first thing that an operator wants to know. */
function redirectError(answer: UpstreamAnswer): string | null {
  if (answer.status < 300 || answer.status > 399) return null;
  const location = answer.headers.location;
  if (location === undefined) return null;
  const target = (typeof location === 'string' ? location : location.join(', ')).slice(0, 2000);
  return `answered ${answer.status} with Location ${target}; redirects are not followed`;
}
