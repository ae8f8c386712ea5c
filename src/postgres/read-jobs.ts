/**
 * One job, wherever its row is, and the calls that were made for it. Only primary keys are used. The job is read before its
 * attempts, so that an ended job never lacks the attempt that ended it.
 */
import type { Charge, OutcomeClass } from '../domain/outcome.ts';
import type { ReconcileVerdict } from '../domain/settle.ts';
import type { Database } from './database.ts';
import { type JobSummary, type SummaryRow, summaryColumns, summaryJoins, toSummary } from './job-summary.ts';

export interface StoredJob extends JobSummary {
  /** JSON text of the item's own headers; null: none. */
  readonly headers: string | null;
  /** JSON text; null: no body. */
  readonly body: string | null;
  readonly bodyIsText: boolean;
}

/** null: the tenant has no such job. */
export async function readJob(database: Database, tenant: string, jobId: string): Promise<StoredJob | null> {
  const [row] = await database.query<
    SummaryRow & { readonly headers: string | null; readonly body: string | null; readonly body_is_text: boolean }
  >(
    `select job.headers, job.body, job.body_is_text, ${summaryColumns}
       from (select $1::uuid as id) asked ${summaryJoins('asked.id')}
      where job.tenant = $2`,
    [jobId, tenant],
    'read-job',
  );
  if (row === undefined || row.state === null) return null;
  return { ...toSummary(row, row.state), headers: row.headers, body: row.body, bodyIsText: row.body_is_text };
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
