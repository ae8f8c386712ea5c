/**
 * What has happened to the jobs behind a batch, by who wrote it: each ended or held job with the numbers of the transactions
 * that made its row and its item's, so that a reader who knows a snapshot can tell what is new since. Nothing is kept for it:
 * no log, no index; a reader pays by primary keys for the items it looks at.
 * A row's own number has 32 bits; the rest is that of the newest transaction. Right for rows that are younger than 2^32
 * transactions; an older one seems younger than it is, and is told again at the worst.
 * Only index nested loops are allowed (the function's SET clauses): a plan from when there was nothing reads every table whole.
 */
import type { JobState } from '../domain/job.ts';
import type { Database } from './database.ts';

export const batchEventsFunction = {
  name: 'batch_events',
  sql: `
-- The number of a transaction in full, by that of a row and the next one that will be given out.
create or replace function sluice.full_transaction(p_row xid, p_next bigint) returns bigint language sql immutable strict as $$
  select case when x.n >= p_next then x.n - 4294967296 else x.n end
    from (select p_next - p_next % 4294967296 + p_row::text::bigint as n) x
$$;

create or replace function sluice.batch_events(p_batch uuid, p_after int, p_until int, p_xmin bigint)
returns table (index int, idempotency_key text, job_id uuid, state text, reason text, status smallint,
               item_transaction bigint, job_transaction bigint)
language plpgsql stable
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_next bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
begin
  return query
    select e.index, e.idempotency_key, e.job_id, e.state, e.reason, e.status, e.item_transaction, e.job_transaction
      from (select i.index, i.idempotency_key, i.job_id, i.verdict, coalesce(d.state, p.state) as state,
                   coalesce(d.reason, p.reason) as reason, d.status,
                   sluice.full_transaction(i.writer, v_next) as item_transaction,
                   sluice.full_transaction(coalesce(d.xmin, p.xmin), v_next) as job_transaction
              from sluice.batch_items i
              left join sluice.done_jobs d on d.job_id = i.job_id
              left join sluice.parked_jobs p on p.job_id = i.job_id and p.state = 'held'
             where i.batch_id = p_batch and i.index >= 0 and i.index > p_after and i.index <= p_until
               and i.verdict in ('accepted', 'duplicate')) e
     where e.job_transaction is not null and greatest(e.item_transaction, e.job_transaction) >= p_xmin
       -- Of several items with one job, the first stands for it.
       and (e.verdict = 'accepted' or not (
             exists (select 1 from sluice.jobs j where j.id = e.job_id and j.batch_id = p_batch)
             or exists (select 1 from sluice.stored_items o
                         where o.job_id = e.job_id and o.verdict = 'duplicate' and o.batch_id = p_batch and o.index < e.index)))
     order by e.index;
end $$;`,
} as const;

/** A job that has ended, or is held. */
export interface JobEvent {
  /** Of its first item in the batch. */
  readonly index: number;
  readonly key: string | null;
  readonly jobId: string;
  readonly state: JobState;
  readonly reason: string | null;
  /** Of the answer that ended it. */
  readonly status: number | null;
  /** The numbers of the transactions that wrote it: the item, and the end of the job. */
  readonly transactions: readonly [item: number, job: number];
}

/** Those of the items after the index `after`, up to `until`, that are not wholly below `xmin`; in their order. */
export async function readBatchEvents(
  database: Database,
  batchId: string,
  { after, until, xmin }: { readonly after: number; readonly until: number; readonly xmin: number },
): Promise<JobEvent[]> {
  const rows = await database.query<{
    index: number;
    idempotency_key: string | null;
    job_id: string;
    state: JobState;
    reason: string | null;
    status: number | null;
    item_transaction: number;
    job_transaction: number;
  }>(
    'select * from sluice.batch_events($1::uuid, $2::int, $3::int, $4::bigint)',
    [batchId, after, until, xmin],
    'batch-events',
  );
  return rows.map((row) => ({
    index: row.index,
    key: row.idempotency_key,
    jobId: row.job_id,
    state: row.state,
    reason: row.reason,
    status: row.status,
    transactions: [row.item_transaction, row.job_transaction],
  }));
}

/** What has committed by now, as text, and how many items the batch has in it; null: the batch is gone. */
export async function readBatchSnapshot(
  database: Database,
  batchId: string,
): Promise<{ readonly snapshot: string; readonly items: number } | null> {
  const [row] = await database.query<{ snapshot: string; items: number }>(
    'select pg_current_snapshot()::text as snapshot, b.total as items from sluice.batches b where b.id = $1',
    [batchId],
    'read-batch-snapshot',
  );
  return row ?? null;
}
