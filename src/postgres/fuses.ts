/**
 * Fuses: an answer that says that no call of its batch will do (credentials) stops the rest of what the batch brought, until
 * a person says that it may go on.
 *
 * Invariants: once the settle that blew a fuse has committed, nothing of its batch is admitted at that upstream (a blow holds
 * `7305002, upstream` alone, as a cooldown does, and a claim reads the marks under it, shared); what comes back from a worker
 * or comes in by a stream sees the mark and is held in the same transaction, or whoever moves the batch's jobs has waited for
 * it (7305005, the batch's row). So the marks matter to a claim only while the jobs are being moved, and a mark that stays
 * costs it nothing. A job that a person has sent on its way since it blew goes on. What is held keeps its ledger and its place.
 * Index used: blown_fuses_open, jobs_batch, primary keys. Lock order: advisory 7305001 (shared), batches, blown_fuses, job
 * rows, lanes by id, lane_groups by id; in a settle blown_fuses before any row of a job, under 7305002 and 7305005.
 */
import { jobsOfBatch } from './batch-jobs.ts';
import { settlesLock } from './cancel-jobs.ts';
import { type Database, promptMs } from './database.ts';
import { definitionsLock } from './lane-groups.ts';
import { inTransaction, type TransactionClient } from './transaction.ts';

export const fuseFunctions = {
  name: 'fuses',
  sql: `
-- Which of these jobs a blown fuse holds: not those that a person has sent on their way since it blew, nor those of a batch
-- that was called off since.
create or replace function sluice.behind_fuse(p_jobs uuid[]) returns setof uuid language sql stable as $$
  select j.id from sluice.jobs j
    join sluice.blown_fuses f on f.batch_id = any (array[j.batch_id]) and f.state in ('holding', 'held')
    join sluice.batches b on b.id = any (array[j.batch_id])
   where j.id = any (p_jobs) and (j.retried_at is null or j.retried_at < f.at)
     and (b.cancelled_at is null or j.retried_at >= b.cancelled_at)
$$;

-- Whether it holds the ready job in this place of a lane.
create or replace function sluice.place_behind_fuse(p_lane bigint, p_rank int, p_seq bigint) returns boolean language sql stable as $$
  select exists (select 1 from sluice.ready_jobs r
                  where r.lane_id = p_lane and r.rank = p_rank and r.seq = p_seq
                    and exists (select 1 from sluice.behind_fuse(array[r.job_id])))
$$;

-- Answers of a worker's calls that blow the fuses of their batches. Gives the jobs whose call was admitted before a person
-- said that the batch may go on: that is old news, and they go on with it.
create or replace function sluice.blow_fuses(p_worker uuid, p_job uuid[], p_epoch int[], p_reason text[], p_status int[], p_now timestamptz)
returns uuid[] language plpgsql
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
  v_old uuid[];
  b record;
begin
  for b in
    select distinct on (j.batch_id) j.batch_id, r.job_id, r.admitted_at, x.status
      from unnest(p_job, p_epoch, p_reason, p_status) as x(job_id, epoch, reason, status)
      join sluice.running_jobs r on r.job_id = any (array[x.job_id]) and r.epoch = x.epoch and r.worker_id = p_worker
      join sluice.jobs j on j.id = any (array[r.job_id])
     where x.reason = 'fuse'
     order by j.batch_id, r.admitted_at desc, r.job_id
  loop
    -- Calls that were under way when it blew say nothing new.
    continue when exists (select 1 from sluice.blown_fuses f
                           where f.batch_id = b.batch_id and f.state in ('holding', 'held') and f.at > b.admitted_at);
    insert into sluice.blown_fuses as f (batch_id, state, job_id, status, at)
    values (b.batch_id, 'holding', b.job_id, b.status, p_now)
    on conflict (batch_id) do update
       set state = 'holding', job_id = excluded.job_id, status = excluded.status, at = excluded.at, resumed_at = null
     where b.admitted_at >= coalesce(f.resumed_at, f.at);
  end loop;
  select array_agg(r.job_id) into v_old
    from unnest(p_job, p_epoch, p_reason) as x(job_id, epoch, reason)
    join sluice.running_jobs r on r.job_id = any (array[x.job_id]) and r.epoch = x.epoch and r.worker_id = p_worker
    join sluice.jobs j on j.id = any (array[r.job_id])
    join sluice.blown_fuses f on f.batch_id = any (array[j.batch_id]) and f.resumed_at > r.admitted_at
   where x.reason = 'fuse';
  return v_old;
end $$;

-- Those of these jobs that wait and that a fuse holds go on hold. Gives how many. Scheduled ones first, in a statement of their
-- own: one that falls due meanwhile is waited for and then found ready. Their deadline is kept with the job alone, where no
-- claim looks for it.
create or replace function sluice.hold_behind_fuses(p_jobs uuid[], p_now timestamptz) returns int language plpgsql
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
  v_jobs uuid[];
  v_scheduled int;
  v_ready int;
  v_lanes bigint[];
  v_dear boolean;
begin
  -- In the words of the index.
  if not exists (select 1 from sluice.blown_fuses f where f.state <> 'resumed') then return 0; end if;
  v_jobs := array(select sluice.behind_fuse(p_jobs));
  if v_jobs = '{}' then return 0; end if;
  update sluice.parked_jobs p
     set state = 'held', reason = 'fuse', resume_at = p.due_at, due_at = null, expires_at = null
   where p.job_id = any (v_jobs) and p.state = 'scheduled';
  get diagnostics v_scheduled = row_count;
  with place as materialized (
    select j.id, j.lane_id, j.rank, j.seq from sluice.jobs j where j.id = any (v_jobs) order by j.lane_id, j.rank, j.seq),
  gone as (
    delete from sluice.ready_jobs r using place p
     where r.lane_id = any (array[p.lane_id]) and r.rank = p.rank and r.seq = p.seq and r.job_id = p.id returning r.*),
  put as (
    insert into sluice.parked_jobs (job_id, lane_id, rank, seq, state, reason, cost, epoch, calls, attempts_used, throttles,
                                    first_sent_at, outcome_unknown, reconcile_failures)
    select g.job_id, g.lane_id, g.rank, g.seq, 'held', 'fuse', g.cost, g.epoch, g.calls, g.attempts_used, g.throttles,
           g.first_sent_at, g.outcome_unknown, g.reconcile_failures from gone g)
  select count(*), array_agg(distinct g.lane_id), bool_or(g.cost > 1) into v_ready, v_lanes, v_dear from gone g;
  -- Nobody waits any longer for what the windows saved up for a dear one.
  if v_dear then
    perform sluice.open_behind(v_lanes, true, p_now);
    perform pg_notify('sluice_work', '');
  end if;
  return v_scheduled + v_ready;
end $$;

-- Those of these jobs that are on hold because of a fuse go on as they were, with what they have spent, in their old place.
create or replace function sluice.resume_from_fuses(p_jobs uuid[], p_now timestamptz) returns int language plpgsql
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
  v_later int;
  v_now int;
  v_lanes bigint[];
begin
  update sluice.parked_jobs p
     set state = 'scheduled', reason = null, due_at = p.resume_at, resume_at = null, expires_at = j.expires_at
    from sluice.jobs j
   where p.job_id = any (p_jobs) and j.id = any (array[p.job_id]) and p.state = 'held' and p.reason = 'fuse' and p.resume_at > p_now;
  get diagnostics v_later = row_count;
  with gone as (
    delete from sluice.parked_jobs p
     where p.job_id = any (p_jobs) and p.state = 'held' and p.reason = 'fuse' returning p.*),
  put as (
    insert into sluice.ready_jobs (lane_id, rank, seq, job_id, cost, expires_at, eligible_at, epoch, calls, attempts_used,
                                   throttles, first_sent_at, outcome_unknown, reconcile_failures)
    select g.lane_id, g.rank, g.seq, g.job_id, g.cost, j.expires_at, p_now, g.epoch, g.calls, g.attempts_used,
           g.throttles, g.first_sent_at, g.outcome_unknown, g.reconcile_failures
      from gone g join sluice.jobs j on j.id = any (array[g.job_id]) returning lane_id)
  select count(*), array_agg(distinct put.lane_id) into v_now, v_lanes from put;
  if v_lanes is not null then perform sluice.wake_lanes(v_lanes, p_now); end if;
  if v_later + v_now > 0 then perform pg_notify('sluice_work', ''); end if;
  return v_later + v_now;
end $$;`,
} as const;

/** Jobs of a batch that are to be moved: put on hold, or let go on. Names one blow or one resume; a later one is another. */
export interface FuseMove {
  readonly batchId: string;
  readonly state: 'holding' | 'resuming';
  /** When it blew, or was resumed, in microseconds since 1970. */
  readonly sinceUs: number;
}

const since = 'sluice.us_of(coalesce(f.resumed_at, f.at))';

/** Moves that are not over, the oldest first. @param batchId null: of any batch */
export function findFuseMoves(database: Database, batchId: string | null, most: number): Promise<FuseMove[]> {
  return database.query<FuseMove>(
    `select f.batch_id as "batchId", f.state, ${since} as "sinceUs" from sluice.blown_fuses f
      where f.state in ('holding', 'resuming') and ($1::uuid is null or f.batch_id = $1)
      order by coalesce(f.resumed_at, f.at) limit $2`,
    [batchId, most],
    'find-fuse-moves',
    // Asked every second by whoever takes back the jobs of dead workers too.
    { withinMs: promptMs },
  );
}

/** What moved and where the move goes on; `after` null: it is over, or another blow or resume has taken its place. */
export interface FuseStep {
  readonly moved: number;
  readonly after: string | null;
}

/** Moves what waits among the next `most` jobs of the batch. @param after null: from the first */
export async function moveBehindFuse(
  database: Database,
  { batchId, state, sinceUs }: FuseMove,
  after: string | null,
  most: number,
): Promise<FuseStep> {
  // What a settle has put back without having seen the mark (or the end of it) is found by the first step.
  if (after === null) await database.query('select pg_advisory_xact_lock($1)', [settlesLock]);
  const step = await inTransaction(
    database,
    async (client) => {
      await client.query('select pg_advisory_xact_lock_shared($1)', [definitionsLock]);
      if (!(await lockMove(client, { batchId, state, sinceUs }))) return { moved: 0, after: null };
      const rows = await client.query<{ id: string }>(
        jobsOfBatch('$1', { and: 'and ($2::uuid is null or j.id > $2)', order: 'asc', limit: '$3' }),
        [batchId, after, most],
        'next-jobs-behind-fuse',
      );
      const ids = rows.map(({ id }) => id);
      const move = state === 'holding' ? 'hold_behind_fuses' : 'resume_from_fuses';
      const [row] = await client.query<{ moved: number }>(
        `select sluice.${move}($1::uuid[], sluice.at_us(sluice.clock_us())) as moved`,
        [ids],
        move,
      );
      return { moved: row!.moved, after: ids.length < most ? null : ids.at(-1)! };
    },
    { before: 'decision.before_commit', after: 'decision.after_commit' },
  );
  if (step.after === null) {
    await database.query(
      `update sluice.blown_fuses f set state = $4 where f.batch_id = $1 and f.state = $2 and ${since} = $3::bigint`,
      [batchId, state, sinceUs, state === 'holding' ? 'held' : 'resumed'],
    );
  }
  return step;
}

/**
 * Whether the move is still to be made; until the end of the transaction it is. A chunk of the batch's stream, or a cancel of
 * the batch, that is under way is waited for.
 */
async function lockMove(client: TransactionClient, { batchId, state, sinceUs }: FuseMove): Promise<boolean> {
  const batch = await client.query<{ cancelled: boolean }>(
    'select cancelled_at is not null as cancelled from sluice.batches where id = $1 for share',
    [batchId],
    'lock-batch-of-fuse',
  );
  // Called off since it was resumed: nothing of it starts again.
  if (state === 'resuming' && batch[0]?.cancelled !== false) return false;
  const rows = await client.query(
    `select 1 from sluice.blown_fuses f where f.batch_id = $1 and f.state = $2 and ${since} = $3::bigint for share`,
    [batchId, state, sinceUs],
    'lock-fuse-move',
  );
  return rows.length > 0;
}

/** Marks a held batch as one that may go on; its jobs are to be moved then. One that is not held stays as it is. */
export async function markResumed(database: Database, batchId: string): Promise<void> {
  await database.query(
    `update sluice.blown_fuses f set state = 'resuming', resumed_at = sluice.at_us(sluice.clock_us())
      where f.batch_id = $1 and f.state in ('holding', 'held')`,
    [batchId],
  );
}

/** Whether items that a batch gets are held at once; until the end of the transaction that does not change. */
export async function holdsNewItems(client: TransactionClient, batchId: string): Promise<boolean> {
  const rows = await client.query(
    `select 1 from sluice.blown_fuses f where f.batch_id = $1 and f.state in ('holding', 'held') for share`,
    [batchId],
    'holds-new-items',
  );
  return rows.length > 0;
}
