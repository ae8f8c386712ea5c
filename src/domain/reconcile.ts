/**
 * What an upstream's answer to the question "what became of the call with this key?" does to a job whose upstream has
 * `reconcile`. Pure, as `settle.ts` is; asked instead of the job's own call, under the same permits.
 * Invariants: asking spends neither attempts nor throttles; nothing is sent again before the upstream has said that the
 * effect is absent; questions that tell nothing are bounded, by as many in a row as the job may get throttles.
 */
import type { Upstream } from './definitions.ts';
import { cancelledCode, type UpstreamAnswer } from './outcome.ts';
import { backoffMs } from './retry-policy.ts';
import {
  attemptsSpent,
  fuseReason,
  laterOrNow,
  type Next,
  type ReconcileVerdict,
  readRetryAfter,
  type SettleContext,
  type SettledCall,
  type SettledJob,
  type Settlement,
  spendNothing,
  throttleIn,
  toldDelay,
} from './settle.ts';

/**
 * Decides by the ended question alone: same arguments, same settlement.
 *
 * @param job one for which `asksFirst` holds, as it was claimed
 */
export function decideReconciliation(
  job: SettledJob,
  upstream: Upstream,
  result: SettledCall,
  context: SettleContext,
): Settlement {
  const backoff = () => backoffMs(upstream.retry, job.reconcileFailures + 1, context.random01);
  switch (result.kind) {
    case 'permit_expired':
      return spendNothing(job, null);
    case 'not_sent':
      if (result.code === cancelledCode) return spendNothing(job, result.error);
      return unclear(job, upstream, { delayMs: backoff(), error: result.error });
    case 'no_answer':
      // Handed back by a drain: the next worker asks at once.
      return unclear(job, upstream, {
        delayMs: result.reason === 'aborted' ? null : backoff(),
        error: result.error,
      });
    case 'lease_expired':
      return unclear(job, upstream, { delayMs: backoff(), error: 'the worker lost its lease' });
    case 'answered':
      return decideAnswer(job, upstream, result.answer, { context, backoff });
  }
}

function decideAnswer(
  job: SettledJob,
  upstream: Upstream,
  answer: UpstreamAnswer,
  { context, backoff }: { readonly context: SettleContext; readonly backoff: () => number },
): Settlement {
  const { status } = answer;
  const applied = upstream.reconcile?.applied_when.includes(status) ?? false;
  const absent = !applied && (upstream.reconcile?.absent_when.includes(status) ?? false);
  const retryAfter = readRetryAfter(answer, upstream, context);
  const blows = !applied && !absent && upstream.fuse.statuses.includes(status);
  const throttle = throttleIn(status, retryAfter, applied || absent || blows);
  if (throttle !== null) {
    const next: Next = triedTooOften(job, upstream) ? held : { kind: 'ready' };
    return { ...asked(job, 'throttled'), next, throttle };
  }
  const answered = { answeredWithoutThrottle: true };
  if (applied) {
    const next: Next = { kind: 'done', state: 'succeeded', reason: null, evidence: 'reconciled' };
    return { ...asked(job, 'applied'), ...answered, next, outcomeUnknown: false };
  }
  if (absent) {
    // The call that is known now not to have worked may have been the last that the job had.
    const next: Next = attemptsSpent(job, upstream)
      ? { kind: 'done', state: 'failed', reason: 'attempts_exhausted', evidence: null }
      : { kind: 'ready' };
    return { ...asked(job, 'absent'), ...answered, next, outcomeUnknown: false };
  }
  const error = `asked what became of the call, it answered ${status}, which reconcile lists neither as applied nor as absent`;
  if (blows) return { ...asked(job, 'unclear'), ...answered, next: { kind: 'held', reason: fuseReason }, error };
  return { ...unclear(job, upstream, { delayMs: toldDelay(retryAfter) ?? backoff(), error }), ...answered };
}

const held: Next = { kind: 'held', reason: 'outcome_unknown' };

function triedTooOften(job: SettledJob, upstream: Upstream): boolean {
  return job.reconcileFailures + 1 > upstream.retry.max_throttles;
}

/** @param delayMs null: ask again at once */
function unclear(
  job: SettledJob,
  upstream: Upstream,
  { delayMs, error }: { readonly delayMs: number | null; readonly error: string },
): Settlement {
  const next = triedTooOften(job, upstream) ? held : laterOrNow(delayMs);
  return { ...asked(job, 'unclear'), next, error };
}

function asked(job: SettledJob, reconciliation: ReconcileVerdict): Omit<Settlement, 'next'> {
  return { ...spendNothing(job, null), reconciliation };
}
