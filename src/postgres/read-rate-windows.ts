/**
 * Reads rate windows for people: the stored row as the model's state, with what closes it, what it runs and what waits.
 * Reading makes no row, spends nothing and locks nothing; a window without a row is one in which nothing was admitted.
 */
import type { WindowState } from '../domain/rate-window.ts';
import type { Database } from './database.ts';

/** Names one window; '' is the one window of a limit that has no partitions, or of jobs without a partition key. */
export interface WindowName {
  readonly limit: string;
  readonly partitionKey: string;
}

/** A cooldown that closes a window, of the limit itself or of every upstream under it. */
export interface WindowCooldown {
  readonly until: Date;
  /** The time is over, and the rate is coming back. */
  readonly probing: boolean;
  readonly reason: string;
  readonly status: number | null;
  readonly header: string | null;
  readonly jobId: string | null;
  readonly at: Date;
}

export interface StoredWindow extends WindowName {
  /** The database's clock at the time of the read, in microseconds since 1970. */
  readonly nowUs: number;
  /** null: no row. */
  readonly state: WindowState | null;
  readonly paused: boolean;
  readonly inFlight: number;
  readonly waitingJobs: number;
  /** Of the limit's own and the one that ends first where all upstreams under it have one: that which ends last. */
  readonly cooldown: WindowCooldown | null;
}

interface Row {
  limit_name: string;
  partition_key: string;
  now_us: number;
  algorithm: WindowState['algorithm'] | null;
  width_us: number;
  horizon_us: number;
  ring: number[] | null;
  head: number;
  tail: number;
  used: number;
  anchor_us: number | null;
  level: number;
  paused: boolean | null;
  in_flight: number;
  waiting_jobs: number;
  cooldown: {
    until: string;
    probing: boolean;
    reason: string;
    status: number | null;
    header: string | null;
    job_id: string | null;
    at: string;
  } | null;
}

/** Names of windows of limits that are in force, in order, after `after`, at most `limit`: shared ones, and partitions that have a row. */
export async function listWindowNames(
  database: Database,
  { only, after, limit }: { only: string | null; after: WindowName; limit: number },
): Promise<WindowName[]> {
  return database.query<WindowName>(
    `select r.name as limit, w.partition_key as "partitionKey"
       from sluice.rate_limits r
       join lateral (
         select '' as partition_key where not r.by_partition
         union all
         select x.partition_key from sluice.rate_windows x where r.by_partition and x.limit_name = r.name) w on true
      where r.deleted_at is null and ($1::text is null or r.name = $1)
        and (r.name, w.partition_key collate "C") > ($2::text collate "C", $3::text collate "C")
      order by r.name, w.partition_key collate "C" limit $4`,
    [only, after.limit, after.partitionKey, limit],
  );
}

/** The windows of these names, in their order. */
export async function readWindows(database: Database, names: readonly WindowName[]): Promise<StoredWindow[]> {
  const rows = await database.query<Row>(
    `with asked as materialized (
       select n.*, r.by_partition from unnest($1::text[], $2::text[]) with ordinality n (limit_name, partition_key, place)
         join sluice.rate_limits r on r.name = n.limit_name),
     covered as materialized (
       select a.place, a.partition_key, a.by_partition, g.id, g.upstream from asked a
         join sluice.lane_groups g
           on case when a.by_partition then a.limit_name = any (g.partition_limits) else a.limit_name = any (g.shared_limits) end),
     lanes as materialized (
       select c.place, l.id from covered c
         join sluice.lanes l on l.group_id = c.id and (not c.by_partition or l.partition_key = c.partition_key)),
     closing as materialized (
       select a.place, x.*, 0 as rank from asked a
         join sluice.cooldowns x on x.kind = 'limit' and x.name = a.limit_name and x.partition_key in ('', a.partition_key)
        where x.until > clock_timestamp() or x.ramp is not null
       union all
       (select distinct on (c.place, c.upstream) c.place, x.*, 1 from covered c
         join sluice.cooldowns x on x.kind = 'upstream' and x.name = c.upstream and x.partition_key in ('', c.partition_key)
        where (x.until > clock_timestamp() or x.ramp is not null)
          and not exists (select 1 from covered o where o.place = c.place and not exists (
                select 1 from sluice.cooldowns y where y.kind = 'upstream' and y.name = o.upstream
                   and y.partition_key in ('', o.partition_key) and (y.until > clock_timestamp() or y.ramp is not null)))
         order by c.place, c.upstream, x.until desc))
     select a.limit_name, a.partition_key, sluice.clock_us() as now_us, w.algorithm, w.width_us, w.horizon_us, w.ring, w.head,
            w.tail, w.used, sluice.us_of(w.anchor_at) as anchor_us, w.level, w.paused,
            (select count(*) from lanes l join sluice.running_jobs j on j.lane_id = l.id where l.place = a.place) as in_flight,
            (select count(*) from lanes l join sluice.ready_jobs j on j.lane_id = l.id where l.place = a.place) as waiting_jobs,
            (select jsonb_build_object('until', k.until, 'probing', k.until <= clock_timestamp(), 'reason', k.reason,
                                       'status', k.status, 'header', k.header, 'job_id', k.job_id, 'at', k.at)
               from (select distinct on (o.rank) o.* from closing o where o.place = a.place
                      order by o.rank, case when o.rank = 0 then -extract(epoch from o.until) else extract(epoch from o.until) end) k
              order by k.until desc limit 1) as cooldown
       from asked a left join sluice.rate_windows w on w.limit_name = a.limit_name and w.partition_key = a.partition_key
      order by a.place`,
    [names.map((name) => name.limit), names.map((name) => name.partitionKey)],
  );
  return rows.map(toStoredWindow);
}

function toStoredWindow(row: Row): StoredWindow {
  const { cooldown } = row;
  return {
    limit: row.limit_name,
    partitionKey: row.partition_key,
    nowUs: row.now_us,
    state:
      row.algorithm === null
        ? null
        : {
            algorithm: row.algorithm,
            widthUs: row.width_us,
            horizonUs: row.horizon_us,
            ring: row.ring ?? [],
            head: row.head,
            tail: row.tail,
            used: row.used,
            anchorUs: row.anchor_us,
            level: row.level,
          },
    paused: row.paused ?? false,
    inFlight: row.in_flight,
    waitingJobs: row.waiting_jobs,
    cooldown:
      cooldown === null
        ? null
        : {
            until: new Date(cooldown.until),
            probing: cooldown.probing,
            reason: cooldown.reason,
            status: cooldown.status,
            header: cooldown.header,
            jobId: cooldown.job_id,
            at: new Date(cooldown.at),
          },
  };
}

/** The fullest interval of one period, by the attempts' own send times. */
export interface FullestInterval {
  readonly partitionKey: string;
  /** Start of the interval. */
  readonly at: Date;
  /** Cost of the starts in it; their number where each costs 1. */
  readonly starts: number;
}

/**
 * Computed from what the workers saw leave, never from a window's counter: attempts, and questions about them. An attempt
 * whose worker died before it could tell counts from its admission. Interval ends belong to it. null: nothing was started.
 */
export async function fullestInterval(
  database: Database,
  question: {
    readonly upstreams: readonly string[];
    readonly queues: readonly string[];
    readonly byPartition: boolean;
    /** null: all. */
    readonly partitionKey: string | null;
    readonly perSeconds: number;
    readonly since: Date;
    /** Leaves out what was admitted before, whenever it left; null: nothing. */
    readonly admittedSince: Date | null;
  },
): Promise<FullestInterval | null> {
  const [row] = await database.query<{ partition_key: string; at: Date; starts: number }>(
    `select t.partition_key, t.at, t.starts from (
       select s.partition_key, s.at,
              sum(s.cost) over (partition by s.partition_key order by s.at
                                range between current row and make_interval(secs => $5::float8) following) as starts
         from (select case when $3::boolean then j.partition_key else '' end as partition_key, c.at, j.cost
                 from (select a.job_id, a.started_at, coalesce(a.sent_at, a.started_at) as at from sluice.attempts a
                        where a.started_at >= $6::timestamptz - interval '1 minute' and (a.sent_at is not null or a.outcome = 'unknown')
                       union all
                       select q.job_id, q.started_at, q.sent_at from sluice.reconciliations q
                        where q.started_at >= $6::timestamptz - interval '1 minute' and q.sent_at is not null) c
                 join sluice.jobs j on j.id = c.job_id
                where c.at >= $6::timestamptz and ($7::timestamptz is null or c.started_at >= $7)
                  and (j.upstream = any ($1::text[]) or j.queue = any ($2::text[]))
                  and ($4::text is null or j.partition_key = $4)) s) t
      order by t.starts desc, t.at limit 1`,
    [
      question.upstreams,
      question.queues,
      question.byPartition,
      question.partitionKey,
      question.perSeconds,
      question.since,
      question.admittedSince,
    ],
  );
  return row === undefined ? null : { partitionKey: row.partition_key, at: row.at, starts: Number(row.starts) };
}
