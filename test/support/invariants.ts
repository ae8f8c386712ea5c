/**
 * What holds in every committed state of the store, whatever has been killed: one query that lists what is broken. Asked of
 * every test's database before it is dropped (`createTestDatabase`), and by the chaos tests whenever they want to know.
 */
import pg from 'pg';
import { systemClock } from '../../src/system/clock.ts';

/** The rules, with what each of them forbids. */
export const invariants = {
  one_state: 'a job with no state row, or with more than one',
  state_of_a_job: 'a state row without a job',
  place: 'a state row at another place (lane, rank, seq) than its job says, where nothing finds it',
  claimable: 'a ready job in a lane or group that is gone, marked empty, or closed by nothing that could open it',
  leased: 'a running job without a worker, or outside of its lane and group',
  one_window: 'more than one row of a window',
  due: 'a scheduled job without a time, or a held one with one',
  key_of_a_job: 'a key that is taken, and neither its job is there nor a receipt of it',
  job_of_a_key: 'an unfinished job whose key is not taken, or by another job',
  batch_of_a_job: 'an unfinished job without its batch and its item',
  batch_counts: 'a batch whose counts are not those of its items',
  idle_in_transaction: 'a connection that holds a transaction open and does nothing',
} as const;

export type Invariant = keyof typeof invariants;

export interface BrokenInvariant {
  readonly rule: Invariant;
  /** How many there are; `subject` and `detail` are of one of them. */
  readonly count: number;
  readonly subject: string;
  readonly detail: string;
}

const query = `
with place as not materialized (
  select job_id, 'ready' as state, lane_id, rank, seq from sluice.ready_jobs
  union all select job_id, 'running', lane_id, rank, seq from sluice.running_jobs
  union all select job_id, state, lane_id, rank, seq from sluice.parked_jobs
  union all select job_id, state, null, null, null from sluice.done_jobs),
lane as not materialized (
  select l.id, l.group_id, l.partition_key, l.next_at, l.closed_by, l.closed_name, g.id as its_group, g.queue, g.upstream,
         g.next_at as group_next_at, g.closed_by as group_closed_by, g.closed_name as group_closed_name,
         g.shared_limits || g.partition_limits as limits
    from sluice.lanes l left join sluice.lane_groups g on g.id = l.group_id),
-- A limit that is 0 or paused opens by a change of the limit only.
shut_limit as not materialized (
  select r.name, w.partition_key from sluice.rate_limits r
    join sluice.rate_windows w on w.limit_name = r.name and w.paused
  union all select r.name, null from sluice.rate_limits r where r."limit" = 0),
waiting as materialized (
  select lane_id, count(*) as jobs from sluice.ready_jobs group by lane_id),
broken (rule, subject, detail) as (
  select 'one_state', j.id::text, coalesce(string_agg(p.state, ' and '), 'in none')
    from sluice.jobs j left join place p on p.job_id = j.id group by j.id having count(p.job_id) <> 1
  union all
  select 'state_of_a_job', p.job_id::text, p.state from place p
   where not exists (select 1 from sluice.jobs j where j.id = p.job_id)
  union all
  select 'place', j.id::text, format('%s in lane %s at %s, %s', p.state, p.lane_id, p.rank, p.seq)
    from place p join sluice.jobs j on j.id = p.job_id and p.lane_id is not null
   where (p.lane_id, p.rank, p.seq) is distinct from (j.lane_id, j.rank, j.seq)
  union all
  select 'claimable', format('lane %s', w.lane_id), format('%s ready: %s', w.jobs, v.why)
    from waiting w left join lane l on l.id = w.lane_id
   cross join lateral (
     select case
       when l.id is null then 'there is no such lane'
       when l.its_group is null then 'its group is gone'
       when l.closed_by = 'empty' then 'it is marked empty'
       when not exists (select 1 from sluice.queues q where q.name = l.queue) then 'its queue is not defined'
       when not exists (select 1 from sluice.upstreams u where u.name = l.upstream) then 'its upstream is not defined'
       when l.next_at = 'infinity' and not exists (
              select 1 from shut_limit s where l.closed_by = 'window' and s.name = l.closed_name
                 and coalesce(s.partition_key, '') in ('', l.partition_key))
         then 'it is closed for ever by ' || coalesce(l.closed_by || ' ' || coalesce(l.closed_name, ''), 'nothing')
       when l.group_next_at = 'infinity' and not case l.group_closed_by
              when 'queue_paused' then (select (q.definition->>'paused')::boolean from sluice.queues q where q.name = l.queue)
              when 'upstream_paused' then (select (u.definition->>'paused')::boolean from sluice.upstreams u where u.name = l.upstream)
              when 'window' then exists (select 1 from shut_limit s where s.name = l.group_closed_name)
              else false end
         then 'its group is closed for ever by ' || coalesce(l.group_closed_by, 'nothing')
       when l.closed_by = 'cooldown' and l.next_at > clock_timestamp() and not exists (
              select 1 from sluice.cooldowns c where c.name = l.closed_name and c.until >= l.next_at)
         then 'it is closed by a cooldown that does not last as long'
       when l.group_closed_by = 'cooldown' and l.group_next_at > clock_timestamp() and not exists (
              select 1 from sluice.cooldowns c where c.name = l.group_closed_name and c.until >= l.group_next_at)
         then 'its group is closed by a cooldown that does not last as long'
       when l.next_at < 'infinity' and l.next_at > clock_timestamp() and l.closed_by = 'window'
            and not l.closed_name = any (l.limits)
         then 'it is closed by a limit that does not cover it'
     end as why) v
   where v.why is not null
  union all
  select 'leased', r.job_id::text, v.why from sluice.running_jobs r
   cross join lateral (
     select case
       when not exists (select 1 from sluice.workers w where w.id = r.worker_id) then 'there is no worker ' || r.worker_id
       when not exists (select 1 from sluice.lanes l where l.id = r.lane_id and l.group_id = r.group_id)
         then format('there is no lane %s in group %s', r.lane_id, r.group_id) end as why) v
   where v.why is not null
  union all
  select 'one_window', w.limit_name, format('partition "%s": %s rows', w.partition_key, count(*))
    from sluice.rate_windows w group by w.limit_name, w.partition_key having count(*) > 1
  union all
  select 'due', p.job_id::text, p.state from sluice.parked_jobs p where (p.state = 'scheduled') is distinct from (p.due_at is not null)
  union all
  select 'key_of_a_job', k.job_id::text, k.key from sluice.idempotency_keys k
   where not exists (select 1 from sluice.jobs j where j.id = k.job_id)
     and not exists (select 1 from sluice.receipts r where r.job_id = k.job_id)
  union all
  select 'job_of_a_key', j.id::text, j.idempotency_key from sluice.jobs j
   where not exists (select 1 from sluice.idempotency_keys k
                      where k.tenant = j.tenant and k.key = j.idempotency_key and k.job_id = j.id)
     and not exists (select 1 from sluice.done_jobs d where d.job_id = j.id)
  union all
  select 'batch_of_a_job', j.id::text, j.batch_id::text from sluice.jobs j
   where not exists (select 1 from sluice.done_jobs d where d.job_id = j.id)
     and not exists (select 1 from sluice.batches b join sluice.batch_items i on i.batch_id = b.id
                      where b.id = j.batch_id and i.index >= 0 and i.job_id = j.id and i.verdict = 'accepted')
  union all
  select 'batch_counts', b.id::text, format('says %s of %s, %s, %s, %s; has %s of %s', b.total, b.accepted, b.duplicate,
         b.conflict, b.rejected, i.total, array_to_string(array[i.accepted, i.duplicate, i.conflict, i.rejected], ', '))
    from sluice.batches b
   cross join lateral (
     select count(*) as total, coalesce(max(x.index) + 1, 0) as places,
            count(*) filter (where x.verdict = 'accepted') as accepted, count(*) filter (where x.verdict = 'duplicate') as duplicate,
            count(*) filter (where x.verdict = 'conflict') as conflict, count(*) filter (where x.verdict = 'rejected') as rejected
       from sluice.batch_items x where x.batch_id = b.id and x.index >= 0) i
   where (b.total, b.total, b.accepted, b.duplicate, b.conflict, b.rejected)
         is distinct from (i.total, i.places, i.accepted, i.duplicate, i.conflict, i.rejected)
  union all
  select 'idle_in_transaction', a.pid::text, format('%s: %s', a.application_name, a.query) from pg_stat_activity a
   where a.datname = current_database() and a.state like 'idle in transaction%' and a.pid <> pg_backend_pid())
select b.rule, count(*)::int as count, min(b.subject) as subject, (array_agg(b.detail order by b.subject))[1] as detail
  from broken b where b.rule <> all ($1::text[]) group by b.rule order by b.rule`;

/** A server that has lost a client says so within moments; until then its transaction looks idle. */
const settlingMs = 5_000;
const pollMs = 50;

/**
 * What is broken in the database, but for the rules in `except`; empty: nothing.
 * @param withinMs how long a transaction that looks idle is given to end
 */
export async function brokenInvariants(
  connectionString: string,
  except: readonly Invariant[] = [],
  withinMs = settlingMs,
): Promise<BrokenInvariant[]> {
  const client = new pg.Client({ connectionString, application_name: 'invariants' });
  client.on('error', () => undefined);
  await client.connect();
  try {
    const end = systemClock.monotonicMs() + withinMs;
    while (true) {
      const rows = await findBroken(client, except);
      const mayPass = rows.some(({ rule }) => rule === 'idle_in_transaction');
      if (!mayPass || systemClock.monotonicMs() > end) return rows;
      await systemClock.sleep(pollMs);
    }
  } finally {
    await client.end();
  }
}

/** The same once, as this session sees it: what its own transaction has changed too. */
export async function findBroken(client: pg.Client, except: readonly Invariant[] = []): Promise<BrokenInvariant[]> {
  return (await client.query<BrokenInvariant>(query, [except])).rows;
}

/** Throws an error that tells of each broken rule. */
export async function assertInvariants(connectionString: string, except: readonly Invariant[] = []): Promise<void> {
  const broken = await brokenInvariants(connectionString, except);
  if (broken.length === 0) return;
  const lines = broken.map(
    ({ rule, count, subject, detail }) => `${rule}: ${invariants[rule]} (${count}): ${subject} ${detail}`,
  );
  throw new Error(`what must always hold does not\n  ${lines.join('\n  ')}`);
}
