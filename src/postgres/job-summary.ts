/**
 * What is known of a job but for what can be large (its headers, its body, its calls): columns, joins and shape, shared by the
 * reader of one job and by lists. Only primary keys are used.
 */
import type { JobState, KeySource, Ledger, Method } from '../domain/job.ts';
import { jobRows, type StoredState, stateOfRows } from './job-state.ts';

export interface JobSummary extends Pick<Ledger, 'attemptsUsed' | 'throttles'> {
  readonly jobId: string;
  readonly batchId: string;
  readonly idempotencyKey: string;
  readonly keySource: KeySource;
  readonly queue: string;
  readonly upstream: string;
  readonly partitionKey: string | null;
  readonly method: Method;
  readonly path: string;
  readonly state: JobState;
  readonly reason: string | null;
  readonly rank: number;
  readonly cost: number;
  readonly payloadVersion: string | null;
  readonly correlationId: string | null;
  readonly runAt: Date | null;
  readonly expiresAt: Date | null;
  /** When it may run next, as far as a time is known: not while it runs, is held, or its lane is paused. */
  readonly nextEligibleAt: Date | null;
  readonly leaseExpiresAt: Date | null;
  /** null: the upstream's. */
  readonly maxAttempts: number | null;
  readonly evidence: 'response' | 'receipt' | 'reconciled' | null;
  /** Of the answer that ended it. */
  readonly status: number | null;
  readonly createdAt: Date;
  readonly endedAt: Date | null;
}

/** Joins for a FROM clause, those of `jobRows` among them. @param jobId the SQL expression that names the job */
export function summaryJoins(jobId: string): string {
  return `
    ${jobRows(jobId)}
    left join sluice.workers worker on worker.id = running.worker_id
    left join lateral (select * from sluice.lanes x where x.id = ready.lane_id offset 0) lane on true
    left join sluice.lane_groups lane_group on lane_group.id = lane.group_id`;
}

/** Columns over `summaryJoins`. */
export const summaryColumns = `
  job.id, job.batch_id, job.idempotency_key, job.key_source, job.queue, job.upstream, job.partition_key, job.method, job.path,
  job.rank, job.cost, job.payload_version, job.correlation_id, job.run_at, job.expires_at, job.max_attempts, job.created_at,
  ${stateOfRows} as state, coalesce(done.reason, parked.reason) as reason, done.evidence, done.status, done.ended_at,
  coalesce(done.attempts_used, running.attempts_used, parked.attempts_used, ready.attempts_used) as attempts_used,
  coalesce(done.throttles, running.throttles, parked.throttles, ready.throttles) as throttles,
  worker.lease_expires_at,
  case when parked.job_id is not null then parked.due_at
       else nullif(greatest(ready.eligible_at,
                            case when lane.next_at > clock_timestamp() then lane.next_at end,
                            case when lane_group.next_at > clock_timestamp() then lane_group.next_at end),
                   'infinity') end as next_eligible_at`;

/** A row of `summaryColumns`. */
export interface SummaryRow {
  readonly id: string;
  readonly batch_id: string;
  readonly idempotency_key: string;
  readonly key_source: KeySource;
  readonly queue: string;
  readonly upstream: string;
  readonly partition_key: string;
  readonly method: Method;
  readonly path: string;
  readonly rank: number;
  readonly cost: number;
  readonly payload_version: string | null;
  readonly correlation_id: string | null;
  readonly run_at: Date | null;
  readonly expires_at: Date | null;
  readonly max_attempts: number | null;
  readonly created_at: Date;
  readonly state: StoredState;
  readonly reason: string | null;
  readonly evidence: JobSummary['evidence'];
  readonly status: number | null;
  readonly ended_at: Date | null;
  readonly attempts_used: number;
  readonly throttles: number;
  readonly lease_expires_at: Date | null;
  readonly next_eligible_at: Date | null;
}

/** @param state of the row, which is not null */
export function toSummary(row: SummaryRow, state: JobState): JobSummary {
  return {
    jobId: row.id,
    batchId: row.batch_id,
    idempotencyKey: row.idempotency_key,
    keySource: row.key_source,
    queue: row.queue,
    upstream: row.upstream,
    partitionKey: row.partition_key === '' ? null : row.partition_key,
    method: row.method,
    path: row.path,
    state,
    reason: row.reason,
    rank: row.rank,
    cost: row.cost,
    payloadVersion: row.payload_version,
    correlationId: row.correlation_id,
    runAt: row.run_at,
    expiresAt: row.expires_at,
    nextEligibleAt: row.next_eligible_at,
    leaseExpiresAt: row.lease_expires_at,
    maxAttempts: row.max_attempts,
    attemptsUsed: row.attempts_used,
    throttles: row.throttles,
    evidence: row.evidence,
    status: row.status,
    createdAt: row.created_at,
    endedAt: row.ended_at,
  };
}
