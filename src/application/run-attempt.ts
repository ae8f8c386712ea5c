/**
 * One attempt, as a pipeline: build the request, send it, decide what the end means, hand back the row that the settle will
 * write. Where an earlier call's outcome is unknown and the upstream can be asked, the call asks instead of being the job's
 * own. Owns no loop and no database; never throws: whatever goes wrong is an outcome.
 */
import { randomFillSync } from 'node:crypto';
import type { Upstream } from '../domain/definitions.ts';
import type { ClaimedJob } from '../domain/job.ts';
import { buildOutboundRequest, buildReconcileRequest } from '../domain/outbound-request.ts';
import type { CallResult } from '../domain/outcome.ts';
import { decideReconciliation } from '../domain/reconcile.ts';
import { asksFirst, decideSettlement, refuseLateResend, type Settlement } from '../domain/settle.ts';
import type { Sender } from '../outbound/send-request.ts';
import type { SettleRow } from '../postgres/settle-jobs.ts';
import type { Clock } from '../system/clock.ts';
import { type FaultPoints, noFaultPoints } from '../system/fault-points.ts';
import type { Logger } from '../system/logger.ts';

export interface RunAttemptDependencies {
  readonly sender: Sender;
  readonly clock: Clock;
  readonly logger: Logger;
  /** Reads an upstream secret at the time of the call. */
  readonly readSecret: (name: string) => string | undefined;
  readonly faultPoints?: FaultPoints;
}

export interface AttemptTerms {
  /** `clock.monotonicMs()` before the claim query left: what all durations of the attempt count from. */
  readonly startedAtMs: number;
  /** Asked at the last moment before the request is written: permit and lease. */
  readonly mayStillSend: () => boolean;
  /** Gives up the call: a drain that is out of time, or a lost lease. */
  readonly signal: { readonly aborted: boolean };
}

/**
 * Runs one attempt of a claimed job to its end. An error of ours on the way is logged, and the call taken for one that was sent
 * and never answered, since nobody knows: the other calls of the process have nothing to do with it.
 */
export async function runAttempt(
  job: ClaimedJob,
  upstream: Upstream,
  terms: AttemptTerms,
  deps: RunAttemptDependencies,
): Promise<SettleRow> {
  const { clock, faultPoints = noFaultPoints } = deps;
  const asks = asksFirst(job, upstream);
  const decide = asks ? decideReconciliation : decideSettlement;
  const context = () => ({ random01: Math.random(), nowWallMs: clock.wallMs() });
  try {
    if (!asks) {
      const refused = refuseLateResend(job, upstream);
      if (refused !== null) return toRow(job, { settlement: refused, result: null, endedAfterMs: null });
    }
    const request = asks
      ? buildReconcileRequest(job, upstream, deps.readSecret, newTraceparent())
      : buildOutboundRequest(job, upstream, deps.readSecret, newTraceparent());
    let result: CallResult;
    if ('kind' in request) result = request;
    else {
      // Every turn of the event loop that a call takes is taken by thousands a second: what is not there is not awaited.
      const before = faultPoints.pass('send.before');
      if (before !== undefined) await before;
      result = await deps.sender.send(request, terms);
      const read = result.kind === 'answered' ? faultPoints.pass('answer.read') : undefined;
      if (read !== undefined) await read;
    }
    const settlement = decide(job, upstream, result, context());
    return toRow(job, { settlement, result, endedAfterMs: clock.monotonicMs() - terms.startedAtMs });
  } catch (err) {
    deps.logger.error({ err, job_id: job.jobId, epoch: job.epoch }, 'a call ended in an error of the service itself');
    const result = { kind: 'no_answer', reason: 'aborted', error: brokenText, sentAfterMs: 0 } as const;
    const settlement = decide(job, upstream, result, context());
    return toRow(job, { settlement, result, endedAfterMs: clock.monotonicMs() - terms.startedAtMs });
  }
}

const brokenText = 'an error of the service itself; its log says more';

interface EndedCall {
  readonly settlement: Settlement;
  /** null: no call was made. */
  readonly result: CallResult | null;
  readonly endedAfterMs: number | null;
}

const traceBytes = 24;
/** Drawn for many calls at once: asking the system for each costs more than all the rest of building a request. */
const randomness = Buffer.allocUnsafe(traceBytes * 256);
let randomnessUsed = randomness.length;

/** W3C Trace Context, version 00: a trace of its own for each call. */
function newTraceparent(): string {
  if (randomnessUsed === randomness.length) {
    randomFillSync(randomness);
    randomnessUsed = 0;
  }
  const hex = randomness.toString('hex', randomnessUsed, randomnessUsed + traceBytes);
  randomnessUsed += traceBytes;
  return `00-${hex.slice(0, 32)}-${hex.slice(32)}-01`;
}

function toRow(job: ClaimedJob, { settlement, result, endedAfterMs }: EndedCall): SettleRow {
  const answer = result?.kind === 'answered' ? result.answer : null;
  return {
    jobId: job.jobId,
    epoch: job.epoch,
    upstream: job.upstream,
    next: settlement.next,
    outcome: settlement.outcome,
    charge: settlement.charge,
    status: answer?.status ?? null,
    sentAfterMs: result !== null && 'sentAfterMs' in result ? result.sentAfterMs : null,
    endedAfterMs,
    retryAfterMs: settlement.retryAfterMs,
    retryAfterCapped: settlement.retryAfterCapped,
    excerpt: answer?.excerpt ?? null,
    truncated: answer?.truncated ?? false,
    sha256: answer?.sha256 ?? null,
    error: settlement.error,
    mayHaveHadEffect: settlement.mayHaveHadEffect,
    outcomeUnknown: settlement.outcomeUnknown,
    answeredWithoutThrottle: settlement.answeredWithoutThrottle,
    throttle: settlement.throttle,
    reconciliation: settlement.reconciliation,
    // No attempt and no question on record means that nothing left, whatever the reason.
    permitUnused: settlement.outcome === null && settlement.reconciliation === null,
  };
}
