/**
 * The jobs behind a batch by state, counted when asked: nothing is written when a job ends. What has ended and what is parked
 * is counted by index, what runs from the few that do, and what is ready is the rest: each job is in one state, and those that
 * a batch has brought stay as long as it does. Jobs behind duplicates that others brought are looked up one by one.
 *
 * Of a large batch by a merge of two index ranges, without a look at each job: its ids lie together, since they ascend with
 * acceptance. 1,000,000 jobs, half of them ended, take 0.25 s of a processor, where a look at each took ten times as much. A small
 * one might lie far apart in a range that is full of others, so there each job is looked up.
 */
import { jobsOfBatch } from './batch-jobs.ts';
import type { Database } from './database.ts';
import { jobRows, type StoredState, stateOfRows } from './job-state.ts';

/** From this many jobs on the ranges are merged. */
const large = 20_000;

const onlyLookUps = 'set enable_hashjoin = off set enable_mergejoin = off';
/** Its caller has switched merges off, and that holds for what it calls: with all three off, the cheapest by a guess is taken. */
const onlyMerges =
  'set enable_mergejoin = on set enable_hashjoin = off set enable_nestloop = off set enable_bitmapscan = off';

function countFunction(
  name: string,
  plans: string,
  tables: { readonly done: string; readonly parked: string },
): string {
  return `
create or replace function sluice.${name}(p_batch uuid, p_first uuid, p_last uuid)
returns table (state text, n bigint, fused bigint, last_ended_at timestamptz) language plpgsql stable
${plans} set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
begin
  return query
    select d.state, count(*), 0::bigint, max(d.ended_at) from sluice.jobs j ${tables.done} where j.batch_id = p_batch group by d.state
    union all
    select p.state, count(*), count(*) filter (where p.reason = 'fuse'), null from sluice.jobs j ${tables.parked}
     where j.batch_id = p_batch group by p.state;
end $$;`;
}

const byLookUp = countFunction('count_by_look_up', onlyLookUps, {
  done: 'cross join lateral (select * from sluice.done_jobs x where x.job_id = j.id offset 0) d',
  parked: 'cross join lateral (select * from sluice.parked_jobs x where x.job_id = j.id offset 0) p',
});
/** All of a batch that is too large for a JSON request, in the order of their ids by `jobs_batch`. */
const streamed = 'j.item_index = -1';
const byMerge = countFunction('count_by_merge', onlyMerges, {
  done: `join sluice.done_jobs d on d.job_id = j.id and d.job_id between p_first and p_last and ${streamed}`,
  parked: `join sluice.parked_jobs p on p.job_id = j.id and p.job_id between p_first and p_last and ${streamed}`,
});

export const countBatchJobsFunctions = {
  name: 'count_batch_jobs',
  sql: `${byLookUp}
${byMerge}

create or replace function sluice.count_batch_jobs(p_batch uuid)
returns table (state text, n bigint, own boolean, fused bigint, last_ended_at timestamptz) language plpgsql stable
${onlyLookUps} set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
  b sluice.batches;
  v_first uuid;
  v_last uuid;
  v_left bigint;
  v_running uuid[];
  c record;
begin
  select * into b from sluice.batches x where x.id = p_batch;
  v_first := (${jobsOfBatch('p_batch', { and: '', order: 'asc', limit: '1' })});
  v_last := (${jobsOfBatch('p_batch', { and: '', order: 'desc', limit: '1' })});
  v_left := b.accepted;
  own := true;
  for c in
    select * from sluice.count_by_merge(p_batch, v_first, v_last) x where b.accepted >= ${large}
    union all
    select * from sluice.count_by_look_up(p_batch, v_first, v_last) x where b.accepted < ${large}
  loop
    state := c.state; n := c.n; fused := c.fused; last_ended_at := c.last_ended_at;
    v_left := v_left - n;
    return next;
  end loop;
  fused := 0; last_ended_at := null;
  v_running := array(select r.job_id from sluice.running_jobs r where r.job_id between v_first and v_last);
  select count(*) into n from unnest(v_running) x(id) where (select j.batch_id from sluice.jobs j where j.id = x.id) = p_batch;
  state := 'running';
  v_left := v_left - n;
  if n > 0 then return next; end if;
  state := 'ready'; n := v_left;
  if n > 0 then return next; end if;

  if b.duplicate = 0 then return; end if;
  return query
    select s.state, count(*), false, 0::bigint, max(s.ended_at)
      from (select ${stateOfRows} as state, done.ended_at
              from (select distinct i.job_id from sluice.stored_items i
                     where i.batch_id = p_batch and i.verdict = 'duplicate') behind
              ${jobRows('behind.job_id')}
             where job.batch_id is distinct from p_batch) s
     group by s.state;
end $$;`,
} as const;

export interface JobCount {
  /** null: ended long ago, its rows are gone. */
  readonly state: StoredState;
  readonly count: number;
  /** Of these, how many the batch itself has brought; the others are another's, known here as duplicates. */
  readonly ownCount: number;
  /** Of these, how many a fuse of the batch itself holds. */
  readonly fusedCount: number;
  /** When the last of them ended; null: none has. */
  readonly lastEndedAt: Date | null;
}

/** In one snapshot; a state comes at most twice, once for those that the batch has brought and once for the others. */
export async function countBatchJobs(database: Database, batchId: string): Promise<JobCount[]> {
  const rows = await database.query<{
    state: StoredState;
    n: number;
    own: boolean;
    fused: number;
    last_ended_at: Date | null;
  }>('select * from sluice.count_batch_jobs($1::uuid)', [batchId], 'count-batch-jobs');
  return rows.map((row) => ({
    state: row.state,
    count: row.n,
    ownCount: row.own ? row.n : 0,
    fusedCount: row.fused,
    lastEndedAt: row.last_ended_at,
  }));
}
