/**
 * One job, wherever its row is, and the calls that were made for it. Only primary keys are used. The job is read before its
 * attempts, so that an ended job never lacks the attempt that ended it.
 */
import type { JobState, KeySource, Ledger, Method } from '../domain/job.ts';
import type { Charge, OutcomeClass } from '../domain/outcome.ts';
import type { ReconcileVerdict } from '../domain/settle.ts';
import type { Database } from './database.ts';
import { jobRows, stateOfRows } from './job-state.ts';

export interface StoredJob extends Pick<Ledger, 'attemptsUsed' | 'throttles'> {
  readonly jobId: string;
  readonly batchId: string;
  readonly idempotencyKey: string;
  readonly keySource: KeySource;
  readonly queue: string;
  readonly upstream: string;
  readonly partitionKey: string | null;
  readonly method: Method;
  readonly path: string;
  /** JSON text of the item's own headers; null: none. */
  readonly headers: string | null;
  /** JSON text; null: no body. */
  readonly body: string | null;
  readonly bodyIsText: boolean;
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

/** null: the tenant has no such job. */
export async function readJob(database: Database, tenant: string, jobId: string): Promise<StoredJob | null> {
  const [row] = await database.query<JobRow>(
    `select job.batch_id, job.idempotency_key, job.key_source, job.queue, job.upstream, job.partition_key, job.method,
            job.path, job.headers, job.body, job.body_is_text, job.rank, job.cost, job.payload_version, job.correlation_id,
            job.run_at, job.expires_at, job.max_attempts, job.created_at, ${stateOfRows} as state,
            coalesce(done.reason, parked.reason) as reason, done.evidence, done.status, done.ended_at,
            coalesce(done.attempts_used, running.attempts_used, parked.attempts_used, ready.attempts_used) as attempts_used,
            coalesce(done.throttles, running.throttles, parked.throttles, ready.throttles) as throttles,
            worker.lease_expires_at,
            case when parked.job_id is not null then parked.due_at
                 else nullif(greatest(ready.eligible_at,
                                      case when lane.next_at > clock_timestamp() then lane.next_at end,
                                      case when lane_group.next_at > clock_timestamp() then lane_group.next_at end),
                             'infinity') end as next_eligible_at
       from (select $1::uuid as id) asked
       ${jobRows('asked.id')}
       left join sluice.workers worker on worker.id = running.worker_id
       left join sluice.lanes lane on lane.id = ready.lane_id
       left join sluice.lane_groups lane_group on lane_group.id = lane.group_id
      where job.tenant = $2`,
    [jobId, tenant],
    'read-job',
  );
  if (row === undefined || row.state === null) return null;
  return {
    jobId,
    batchId: row.batch_id,
    idempotencyKey: row.idempotency_key,
    keySource: row.key_source,
    queue: row.queue,
    upstream: row.upstream,
    partitionKey: row.partition_key === '' ? null : row.partition_key,
    method: row.method,
    path: row.path,
    headers: row.headers,
    body: row.body,
    bodyIsText: row.body_is_text,
    state: row.state,
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

interface JobRow {
  readonly batch_id: string;
  readonly idempotency_key: string;
  readonly key_source: KeySource;
  readonly queue: string;
  readonly upstream: string;
  readonly partition_key: string;
  readonly method: Method;
  readonly path: string;
  readonly headers: string | null;
  readonly body: string | null;
  readonly body_is_text: boolean;
  readonly rank: number;
  readonly cost: number;
  readonly payload_version: string | null;
  readonly correlation_id: string | null;
  readonly run_at: Date | null;
  readonly expires_at: Date | null;
  readonly max_attempts: number | null;
  readonly created_at: Date;
  readonly state: JobState | null;
  readonly reason: string | null;
  readonly evidence: StoredJob['evidence'];
  readonly status: number | null;
  readonly ended_at: Date | null;
  readonly attempts_used: number;
  readonly throttles: number;
  readonly lease_expires_at: Date | null;
  readonly next_eligible_at: Date | null;
}

export interface StoredAttempt {
  /** From 1; every call counts. */
  readonly number: number;
  readonly epoch: number;
  readonly workerId: string;
  readonly outcome: OutcomeClass;
  readonly charged: Charge;
  readonly status: number | null;
  readonly startedAt: Date;
  readonly sentAt: Date | null;
  readonly endedAt: Date;
  readonly slotWaitMs: number | null;
  readonly retryAfterMs: number | null;
  readonly retryAfterCapped: boolean;
  readonly excerpt: string | null;
  readonly truncated: boolean;
  /** Hex. */
  readonly sha256: string | null;
  readonly error: string | null;
  /** What a call that was given up as unknown turned out to have done, told by its worker too late to matter. */
  readonly lateOutcome: OutcomeClass | null;
  readonly lateStatus: number | null;
  readonly lateAt: Date | null;
}

/** The calls made for a job, in their order. */
export async function readAttempts(database: Database, jobId: string): Promise<StoredAttempt[]> {
  return database.query<StoredAttempt>(
    `select a.number, a.epoch, a.worker_id as "workerId", a.outcome, a.charged, a.status, a.started_at as "startedAt",
            a.sent_at as "sentAt", a.ended_at as "endedAt", a.slot_wait_ms as "slotWaitMs",
            a.retry_after_ms as "retryAfterMs", a.retry_after_capped as "retryAfterCapped", a.excerpt, a.truncated,
            encode(a.sha256, 'hex') as sha256, a.error, a.late_outcome as "lateOutcome", a.late_status as "lateStatus",
            a.late_at as "lateAt"
       from sluice.attempts a where a.job_id = $1 order by a.number`,
    [jobId],
    'read-attempts',
  );
}

/** A call that asked the upstream what became of an earlier one. */
export interface StoredReconciliation {
  readonly at: Date;
  /** null: no answer came. */
  readonly status: number | null;
  readonly verdict: ReconcileVerdict;
}

/** In their order. */
export async function readReconciliations(database: Database, jobId: string): Promise<StoredReconciliation[]> {
  return database.query<StoredReconciliation>(
    'select q.at, q.status, q.verdict from sluice.reconciliations q where q.job_id = $1 order by q.epoch',
    [jobId],
    'read-reconciliations',
  );
}
