/**
 * One attempt, as a pipeline: build the request, send it, decide what the end means, hand back the row that the settle will
 * write. Where an earlier call's outcome is unknown and the upstream can be asked, the call asks instead of being the job's
 * own. Owns no loop and no database; never throws: whatever goes wrong is an outcome.
 */
import { randomBytes } from 'node:crypto';
import type { Upstream } from '../domain/definitions.ts';
import type { ClaimedJob } from '../domain/job.ts';
import { buildOutboundRequest, buildReconcileRequest, type OutboundRequest } from '../domain/outbound-request.ts';
import type { CallResult } from '../domain/outcome.ts';
import { decideReconciliation } from '../domain/reconcile.ts';
import { asksFirst, decideSettlement, refuseLateResend, type Settlement } from '../domain/settle.ts';
import type { Sender } from '../outbound/send-request.ts';
import type { SettleRow } from '../postgres/settle-jobs.ts';
import type { Clock } from '../system/clock.ts';
import { type FaultPoints, noFaultPoints } from '../system/fault-points.ts';

export interface RunAttemptDependencies {
  readonly sender: Sender;
  readonly clock: Clock;
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
  readonly signal: AbortSignal;
}

/** Runs one attempt of a claimed job to its end. */
export async function runAttempt(
  job: ClaimedJob,
  upstream: Upstream,
  terms: AttemptTerms,
  deps: RunAttemptDependencies,
): Promise<SettleRow> {
  if (asksFirst(job, upstream)) {
    const question = buildReconcileRequest(job, upstream, deps.readSecret, newTraceparent());
    return toRow(job, await callAndDecide(decideReconciliation, question, job, upstream, terms, deps));
  }
  const refused = refuseLateResend(job, upstream);
  if (refused !== null) return toRow(job, { settlement: refused, result: null, endedAfterMs: null });
  const request = buildOutboundRequest(job, upstream, deps.readSecret, newTraceparent());
  return toRow(job, await callAndDecide(decideSettlement, request, job, upstream, terms, deps));
}

interface EndedCall {
  readonly settlement: Settlement;
  /** null: no call was made. */
  readonly result: CallResult | null;
  readonly endedAfterMs: number | null;
}

async function callAndDecide(
  decide: typeof decideSettlement,
  request: OutboundRequest | CallResult,
  job: ClaimedJob,
  upstream: Upstream,
  terms: AttemptTerms,
  deps: RunAttemptDependencies,
): Promise<EndedCall> {
  const result = 'kind' in request ? request : await call(request, terms, deps);
  const context = { random01: Math.random(), nowWallMs: deps.clock.wallMs() };
  const settlement = decide(job, upstream, result, context);
  return { settlement, result, endedAfterMs: deps.clock.monotonicMs() - terms.startedAtMs };
}

async function call(
  request: OutboundRequest,
  terms: AttemptTerms,
  { sender, faultPoints = noFaultPoints }: RunAttemptDependencies,
): Promise<CallResult> {
  await faultPoints.pass('send.before');
  const result = await sender.send(request, terms);
  if (result.kind === 'answered') await faultPoints.pass('answer.read');
  return result;
}

/** W3C Trace Context, version 00: a trace of its own for each call. */
function newTraceparent(): string {
  const bytes = randomBytes(24).toString('hex');
  return `00-${bytes.slice(0, 32)}-${bytes.slice(32)}-01`;
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
