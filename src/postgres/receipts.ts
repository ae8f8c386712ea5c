/**
 * Receipts: what is known under a key, for as long as the key is. Read from the job's own rows while they are there; from a
 * row of `receipts` once retention has deleted them, or where the receiver's own evidence ended the job (put-receipt.ts).
 * Only primary keys are used.
 */
import type { JobState } from '../domain/job.ts';
import { arrayLiteral } from './array-literal.ts';
import type { Database } from './database.ts';
import { jobRows, stateOfRows } from './job-state.ts';
import type { TransactionClient } from './transaction.ts';

export interface StoredReceipt {
  readonly key: string;
  readonly jobId: string;
  readonly state: JobState;
  readonly reason: string | null;
  /** How many calls were made. */
  readonly attempts: number;
  /** Of the answer that ended the job, or of the receiver's evidence; null: neither told one. */
  readonly status: number | null;
  readonly excerpt: string | null;
  readonly truncated: boolean;
  /** Hex. */
  readonly sha256: string | null;
  readonly evidence: 'response' | 'receipt' | 'reconciled' | null;
  /** What the receiver said with its evidence. */
  readonly note: string | null;
  readonly firstSentAt: Date | null;
  readonly endedAt: Date | null;
}

/** The attempt whose answer ended a job: the last one, unless it ended without a call (a reconciliation, a receipt). */
const decidingAttempt = (done: string) =>
  `${done}.status is not null and attempt.job_id = ${done}.job_id and attempt.number = ${done}.calls`;

/** The receipts of these keys, in their order; null: the tenant has no such key (any more). */
export async function readReceipts(
  database: Database,
  tenant: string,
  keys: readonly string[],
): Promise<(StoredReceipt | null)[]> {
  const rows = await database.query<Omit<StoredReceipt, 'state'> & { readonly state: JobState | null }>(
    `select u.key, k.job_id as "jobId", coalesce(${stateOfRows}, receipt.state) as state,
            coalesce(done.reason, parked.reason, receipt.reason) as reason,
            coalesce(done.calls, running.calls, parked.calls, ready.calls, receipt.attempts) as attempts,
            coalesce(receipt.status, done.status) as status, coalesce(receipt.excerpt, attempt.excerpt) as excerpt,
            coalesce(receipt.truncated, attempt.truncated, false) as truncated,
            encode(coalesce(receipt.sha256, attempt.sha256), 'hex') as sha256,
            coalesce(done.evidence, receipt.evidence) as evidence, receipt.note,
            coalesce(done.first_sent_at, running.first_sent_at, parked.first_sent_at, ready.first_sent_at,
                     receipt.first_sent_at) as "firstSentAt",
            coalesce(done.ended_at, receipt.ended_at) as "endedAt"
       from unnest($2::text[]) with ordinality u (key, place)
       left join sluice.idempotency_keys k on k.tenant = $1 and k.key = u.key
       ${jobRows('k.job_id')}
       left join sluice.receipts receipt on receipt.job_id = k.job_id
       left join sluice.attempts attempt on receipt.job_id is null and ${decidingAttempt('done')}
      order by u.place`,
    [tenant, arrayLiteral(keys)],
    'read-receipts',
  );
  return rows.map(({ state, ...row }) => (state === null ? null : { ...row, state }));
}

/**
 * Keeps the receipts of ended jobs whose rows are about to be deleted: to be called in the transaction that deletes them,
 * before it does. Jobs whose key is not kept any more, and those that have a receipt already, are passed over. Gives how
 * many were written.
 */
export async function archiveReceipts(client: TransactionClient, jobIds: readonly string[]): Promise<number> {
  const rows = await client.query(
    `insert into sluice.receipts (job_id, tenant, idempotency_key, state, reason, evidence, attempts, status, excerpt,
                                  truncated, sha256, first_sent_at, ended_at)
     select job.id, job.tenant, job.idempotency_key, done.state, done.reason, done.evidence, done.calls, done.status,
            attempt.excerpt, coalesce(attempt.truncated, false), attempt.sha256, done.first_sent_at, done.ended_at
       from unnest($1::uuid[]) ended (id)
       join sluice.done_jobs done on done.job_id = ended.id
       join sluice.jobs job on job.id = ended.id
       join sluice.idempotency_keys k
         on k.tenant = job.tenant and k.key = job.idempotency_key and k.job_id = job.id
       left join sluice.attempts attempt on ${decidingAttempt('done')}
      order by job.id
         on conflict (job_id) do nothing
     returning job_id`,
    [arrayLiteral(jobIds)],
    'archive-receipts',
  );
  return rows.length;
}
