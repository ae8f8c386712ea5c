/**
 * Calling off: jobs that wait (scheduled, ready, held) end as cancelled; what runs is left to its worker.
 *
 * Invariants: a job moves only out of a waiting state's table, under its row's lock, so a claim and a cancel never both have
 * it; an order, or a dear head that saved up for its cost, is not waited for once it is gone; after a batch is cancelled
 * nothing of it starts again by itself: what waits is cancelled here, what comes back from a worker by the settle
 * (`cancel_returned`), which can not overlook the mark, because marking waits for settles in progress (7305005).
 * Index used: primary keys, jobs_batch. Lock order: advisory 7305001 (shared), job rows, lanes by id, lane_groups by id.
 */
import { jobsOfBatch } from './batch-jobs.ts';
import type { Database } from './database.ts';
import { definitionsLock } from './lane-groups.ts';
import { inTransaction, type TransactionClient } from './transaction.ts';

/** Advisory lock: a settle holds it shared; who marks a batch takes it alone for a moment, to have the settles before it over. */
export const settlesLock = 7_305_005;

export const cancelJobsFunctions = {
  name: 'cancel_jobs',
  sql: `
create or replace function sluice.cancel_jobs(p_jobs uuid[], p_now timestamptz) returns uuid[] language plpgsql
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
  v_parked uuid[];
  v_ready uuid[];
  v_lanes bigint[];
  v_more bigint[];
  v_dear boolean;
  v_dearer boolean;
begin
  -- Parked ones first, in a statement of their own: one that falls due meanwhile is waited for and then found ready.
  with gone as (
    delete from sluice.parked_jobs p where p.job_id = any (p_jobs) returning p.*),
  ended as (
    insert into sluice.done_jobs (job_id, state, reason, ended_at, epoch, calls, attempts_used, throttles, first_sent_at, outcome_unknown)
    select g.job_id, 'cancelled', 'cancelled', p_now, g.epoch + 1, g.calls, g.attempts_used, g.throttles, g.first_sent_at,
           g.outcome_unknown from gone g)
  select array_agg(g.job_id), array_agg(distinct g.lane_id), bool_or(g.cost > 1) into v_parked, v_lanes, v_dear from gone g;

  with place as materialized (
    select j.id, j.lane_id, j.rank, j.seq from sluice.jobs j where j.id = any (p_jobs) order by j.lane_id, j.rank, j.seq),
  gone as (
    delete from sluice.ready_jobs r using place p
     where r.lane_id = any (array[p.lane_id]) and r.rank = p.rank and r.seq = p.seq and r.job_id = p.id returning r.*),
  ended as (
    insert into sluice.done_jobs (job_id, state, reason, ended_at, epoch, calls, attempts_used, throttles, first_sent_at, outcome_unknown)
    select g.job_id, 'cancelled', 'cancelled', p_now, g.epoch + 1, g.calls, g.attempts_used, g.throttles, g.first_sent_at,
           g.outcome_unknown from gone g)
  select array_agg(g.job_id), array_agg(distinct g.lane_id), bool_or(g.cost > 1) into v_ready, v_more, v_dearer from gone g;

  v_lanes := coalesce(v_lanes, '{}') || coalesce(v_more, '{}');
  if v_lanes <> '{}' then
    perform sluice.open_behind(v_lanes, v_dear or v_dearer, p_now);
    perform pg_notify('sluice_work', '');
  end if;
  return coalesce(v_parked, '{}') || coalesce(v_ready, '{}');
end $$;

-- Of jobs that have just come back from a worker, those whose batch was cancelled meanwhile: they do not start again. One that
-- a person has sent on its way since is that person's wish. p_oldest: when the first of them was admitted, be it days ago, for
-- workers may all have been away.
drop function if exists sluice.cancel_returned(uuid[], timestamptz);
create or replace function sluice.cancel_returned(p_jobs uuid[], p_oldest timestamptz, p_now timestamptz) returns void language plpgsql
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
  v_jobs uuid[];
begin
  -- Of a batch that was cancelled before then nothing was admitted any more, once its cancel had got through.
  if not exists (select 1 from sluice.batches b where b.cancelled_at > p_oldest - interval '1 day') then return; end if;
  select array_agg(j.id) into v_jobs from sluice.jobs j join sluice.batches b on b.id = any (array[j.batch_id])
   where j.id = any (p_jobs) and b.cancelled_at is not null and (j.retried_at is null or j.retried_at < b.cancelled_at);
  if v_jobs is not null then perform sluice.cancel_jobs(v_jobs, p_now); end if;
end $$;`,
} as const;

const aroundCommit = { before: 'decision.before_commit', after: 'decision.after_commit' } as const;

/** Cancels those of these jobs that wait, and gives their ids. No check of the tenant: ids are the caller's to know. */
export function cancelJobs(database: Database, jobIds: readonly string[]): Promise<string[]> {
  return inTransaction(database, (client) => cancelWaiting(client, jobIds), aroundCommit);
}

/**
 * Marks the batch as cancelled; anew where a person has sent a job of it on its way since. Once this has returned, nothing that it brought goes back to wait: what ends without an end
 * is cancelled by its settle. Gives whether the tenant has it.
 */
export async function markBatchCancelled(database: Database, tenant: string, batchId: string): Promise<boolean> {
  const marked = await database.query(
    `update sluice.batches b
        set cancelled_at = case when b.cancelled_at is null
                                  or exists (select 1 from sluice.jobs j where j.batch_id = b.id and j.retried_at > b.cancelled_at)
                                then sluice.at_us(sluice.clock_us()) else b.cancelled_at end
      where b.id = $1 and b.tenant = $2 returning b.id`,
    [batchId, tenant],
  );
  if (marked.length === 0) return false;
  await database.query('select pg_advisory_xact_lock($1)', [settlesLock]);
  return true;
}

/**
 * Cancels what waits among the next `most` jobs that a batch brought. Gives the id to go on after; null: there are no more.
 * @param after null: from the first
 */
export function cancelBatchJobs(
  database: Database,
  batchId: string,
  after: string | null,
  most: number,
): Promise<string | null> {
  return inTransaction(
    database,
    async (client) => {
      const rows = await client.query<{ id: string }>(
        jobsOfBatch('$1', { and: 'and ($2::uuid is null or j.id > $2)', order: 'asc', limit: '$3' }),
        [batchId, after, most],
        'next-jobs-to-cancel',
      );
      const ids = rows.map(({ id }) => id);
      if (ids.length > 0) await cancelWaiting(client, ids);
      return ids.length < most ? null : ids.at(-1)!;
    },
    aroundCommit,
  );
}

async function cancelWaiting(client: TransactionClient, jobIds: readonly string[]): Promise<string[]> {
  // A change of definitions moves jobs too; it is over, or has not begun.
  await client.query('select pg_advisory_xact_lock_shared($1)', [definitionsLock]);
  const [row] = await client.query<{ cancelled: string[] }>(
    'select sluice.cancel_jobs($1::uuid[], sluice.at_us(sluice.clock_us())) as cancelled',
    [jobIds],
    'cancel-jobs',
  );
  return row!.cancelled;
}
