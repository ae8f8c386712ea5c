/**
 * How the whole store stands, for operators: jobs by state, what waits in each queue and for how long, what has happened in
 * the last minute. Counted when asked, nothing is kept; what waits and what runs is counted exactly, and so is what ended
 * otherwise than well, by its index. Successes are counted up to some millions and estimated beyond, since they are all that
 * retention keeps.
 * Waiting jobs are all read: some 300 ms for a million.
 */
import type { EndedState, JobState } from '../domain/job.ts';
import type { OutcomeClass } from '../domain/outcome.ts';
import type { Database } from './database.ts';

export interface QueueStats {
  readonly queue: string;
  readonly ready: number;
  /** Age in seconds of what could run now and has waited longest; null: nothing could. */
  readonly oldestEligibleSeconds: number | null;
  /** The same of what a window, a cooldown or a max_in_flight keeps waiting. */
  readonly oldestThrottledSeconds: number | null;
}

export interface Stats {
  readonly at: Date;
  readonly jobs: Readonly<Record<JobState, number>>;
  /** `jobs.succeeded` is the planner's estimate. */
  readonly succeededIsEstimate: boolean;
  /** Queues in which something is ready. */
  readonly queues: readonly QueueStats[];
  /** In the last `seconds`. */
  readonly recent: {
    readonly seconds: number;
    /** Calls that were started and have ended, by outcome. */
    readonly attempts: Readonly<Partial<Record<OutcomeClass, number>>>;
    readonly ended: Readonly<Record<EndedState, number>>;
  };
  readonly workers: { readonly live: number; readonly slots: number; readonly running: number };
}

const recentSeconds = 60;
/** Up to here a count takes some 100 ms. */
const mostCounted = 2_000_000;

/** As it is now. */
export async function readStats(database: Database): Promise<Stats> {
  const [states] = await database.query<
    Record<JobState, number> & { at: Date; estimated: boolean; live: number; slots: number }
  >(
    `with unsuccessful as materialized (
       select d.state, count(*) as n from sluice.done_jobs d where d.state <> 'succeeded' group by d.state),
     total as materialized (
       select c.reltuples > $1 as estimated,
              case when c.reltuples > $1 then c.reltuples::bigint else (select count(*) from sluice.done_jobs) end as n
         from pg_class c where c.oid = 'sluice.done_jobs'::regclass)
     select clock_timestamp() as at, t.estimated,
            (select count(*) from sluice.ready_jobs) as ready,
            (select count(*) from sluice.running_jobs) as running,
            (select count(*) from sluice.parked_jobs p where p.state = 'held') as held,
            (select count(*) from sluice.parked_jobs p where p.state = 'scheduled') as scheduled,
            coalesce((select u.n from unsuccessful u where u.state = 'failed'), 0) as failed,
            coalesce((select u.n from unsuccessful u where u.state = 'cancelled'), 0) as cancelled,
            coalesce((select u.n from unsuccessful u where u.state = 'expired'), 0) as expired,
            greatest(0, t.n - coalesce((select sum(u.n) from unsuccessful u), 0))::bigint as succeeded,
            w.live, w.slots
       from total t
      cross join (select count(*) as live, coalesce(sum(x.concurrency), 0)::bigint as slots from sluice.workers x
                   where x.lease_expires_at > sluice.at_us(sluice.clock_us())) w`,
    [mostCounted],
  );
  const { at, estimated, live, slots, ...jobs } = states!;
  return {
    at,
    jobs,
    succeededIsEstimate: estimated,
    queues: await readQueues(database),
    recent: await readRecent(database),
    workers: { live, slots, running: jobs.running },
  };
}

/** What waits behind a pause, or in the order of its lane behind a job that is not done, is neither eligible nor throttled. */
function readQueues(database: Database): Promise<QueueStats[]> {
  return database.query<QueueStats>(
    `with now as materialized (select sluice.at_us(sluice.clock_us()) as at),
     lane as materialized (
       select l.id, g.queue,
              case when g.next_at > n.at then g.closed_by when l.next_at > n.at then coalesce(l.closed_by, 'window') end as closed_by
         from sluice.lanes l join sluice.lane_groups g on g.id = l.group_id cross join now n),
     waiting as materialized (
       select r.lane_id, count(*) as n, greatest(interval '0', n.at - min(r.eligible_at)) as waited
         from sluice.ready_jobs r cross join now n group by r.lane_id, n.at)
     select l.queue, sum(w.n)::bigint as ready,
            extract(epoch from max(w.waited) filter (where l.closed_by is null))::float8 as "oldestEligibleSeconds",
            extract(epoch from max(w.waited) filter (where l.closed_by in ('window', 'cooldown', 'probing', 'in_flight')))::float8
              as "oldestThrottledSeconds"
       from waiting w join lane l on l.id = w.lane_id
      group by l.queue order by l.queue`,
  );
}

async function readRecent(database: Database): Promise<Stats['recent']> {
  const rows = await database.query<{ kind: 'attempt' | 'ended'; name: string; n: number }>(
    `select 'attempt' as kind, a.outcome as name, count(*) as n from sluice.attempts a
      where a.started_at > clock_timestamp() - make_interval(secs => $1) group by a.outcome
     union all
     select 'ended', d.state, count(*) from sluice.done_jobs d
      where d.ended_at > clock_timestamp() - make_interval(secs => $1) group by d.state`,
    [recentSeconds],
  );
  const of = (kind: string) =>
    Object.fromEntries(rows.filter((row) => row.kind === kind).map(({ name, n }) => [name, n]));
  return {
    seconds: recentSeconds,
    attempts: of('attempt'),
    ended: { succeeded: 0, failed: 0, cancelled: 0, expired: 0, ...of('ended') },
  };
}
