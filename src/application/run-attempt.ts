/**
 * One attempt, as a pipeline: build the request, send it, decide what the end means, hand back the row that the settle will
 * write. Owns no loop and no database; never throws: whatever goes wrong is an outcome.
 */
import { randomBytes } from 'node:crypto';
import type { Upstream } from '../domain/definitions.ts';
import type { ClaimedJob } from '../domain/job.ts';
import { buildOutboundRequest } from '../domain/outbound-request.ts';
import type { CallResult } from '../domain/outcome.ts';
import { decideSettlement, refuseLateResend, type Settlement } from '../domain/settle.ts';
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
  const refused = refuseLateResend(job, upstream);
  if (refused !== null) return toRow(job, refused, null, null);
  const result = await call(job, upstream, terms, deps);
  const settlement = decideSettlement(job, upstream, result, {
    random01: Math.random(),
    nowWallMs: deps.clock.wallMs(),
  });
  return toRow(job, settlement, result, deps.clock.monotonicMs() - terms.startedAtMs);
}

async function call(
  job: ClaimedJob,
  upstream: Upstream,
  terms: AttemptTerms,
  { sender, readSecret, faultPoints = noFaultPoints }: RunAttemptDependencies,
): Promise<CallResult> {
  const request = buildOutboundRequest(job, upstream, readSecret, newTraceparent());
  if ('kind' in request) return request;
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

function toRow(
  job: ClaimedJob,
  settlement: Settlement,
  result: CallResult | null,
  endedAfterMs: number | null,
): SettleRow {
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
    // No attempt on record means that nothing left, whatever the reason.
    permitUnused: settlement.outcome === null,
  };
}
