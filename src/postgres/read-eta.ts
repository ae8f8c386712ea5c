/**
 * What tells when a batch will be done: its jobs that are left by lane, what else waits in lanes, windows, cooldowns, workers,
 * and how its calls have gone. Nothing is changed, and nothing here grows with the number of jobs: of a batch at most 5,000
 * items are looked at, evenly spread, and of the backlog 200,000 rows; what is beyond is estimated from the order of acceptance.
 * Some 100 ms of a processor at the most.
 * Only index nested loops are allowed in what goes job by job (the function's SET clauses), as everywhere.
 */
import type { BatchLane, BusyLane, EtaFacts, EtaLimit, ScheduledWork, Work } from '../domain/eta.ts';
import type { WindowState } from '../domain/rate-window.ts';
import type { Database } from './database.ts';

export const etaFunctions = {
  name: 'eta',
  sql: `
-- Of these jobs what is left, by lane; and how many of them have been called, how often. Those that were not say nothing of it.
create or replace function sluice.jobs_left(p_jobs uuid[])
returns table (lane_id bigint, ready bigint, last_rank int, last_seq bigint, scheduled bigint, scheduled_cost bigint,
               first_due timestamptz, last_due timestamptz, running bigint, jobs bigint, calls bigint)
language plpgsql stable
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
begin
  return query
    select j.lane_id, count(r.job_id),
           -- Without those that are elsewhere: a null in an array is greater than anything.
           (max(array[r.rank, r.seq]) filter (where r.job_id is not null))[1]::int,
           (max(array[r.rank, r.seq]) filter (where r.job_id is not null))[2],
           count(p.job_id) filter (where p.state = 'scheduled'),
           coalesce(sum(p.cost) filter (where p.state = 'scheduled'), 0)::bigint,
           min(p.due_at), max(p.due_at), count(u.job_id),
           count(*) filter (where coalesce(d.calls, r.calls, p.calls, 0) > 0),
           coalesce(sum(coalesce(d.calls, r.calls, p.calls)), 0)::bigint
      from unnest(p_jobs) x(id)
      -- Each looked up by itself: else a table that is taken for empty is read whole, and kept to be gone through for each job.
      left join lateral (select * from sluice.jobs y where y.id = x.id offset 0) j on true
      left join lateral (select * from sluice.done_jobs y where y.job_id = x.id offset 0) d on true
      left join lateral (select * from sluice.ready_jobs y
                          where y.lane_id = j.lane_id and y.rank = j.rank and y.seq = j.seq and y.job_id = x.id offset 0) r on true
      left join lateral (select * from sluice.parked_jobs y where y.job_id = x.id offset 0) p on true
      left join lateral (select * from sluice.running_jobs y where y.job_id = x.id offset 0) u on true
     group by j.lane_id;
end $$;

-- The jobs behind a batch: all of up to p_most items, else one of every n, which one drawn (the same each time), the last one always.
create or replace function sluice.sample_jobs(p_batch uuid, p_most int) returns uuid[] language plpgsql stable
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
  v_total int;
  v_step int;
begin
  select b.total into v_total from sluice.batches b where b.id = p_batch;
  if v_total <= p_most then
    return array(select distinct i.job_id from sluice.batch_items i
                  where i.batch_id = p_batch and i.index >= 0 and i.verdict in ('accepted', 'duplicate'));
  end if;
  v_step := ceil(v_total::float8 / p_most)::int;
  return array(select distinct x.job_id
                 from (select (select i.job_id from sluice.batch_items i
                                where i.batch_id = p_batch and i.index = n - case when n = v_total - 1 then 0 else abs(hashint4(n) % v_step) end
                                  and i.verdict in ('accepted', 'duplicate')) as job_id
                         from generate_series(v_total - 1, 0, - v_step) n) x
                where x.job_id is not null);
end $$;

-- How those of these jobs that ended last have gone: their number, over how many seconds, and how long their last calls took.
create or replace function sluice.pace_of(p_jobs uuid[], p_most int)
returns table (ended bigint, seconds float8, call_ms float8) language plpgsql stable
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
begin
  return query
    select count(*), coalesce(extract(epoch from sluice.at_us(sluice.clock_us()) - min(x.ended_at)), 0)::float8,
           avg(extract(epoch from a.ended_at - a.started_at) * 1000)::float8
      from (select d.job_id, d.calls, d.ended_at from unnest(p_jobs) y(id)
             cross join lateral (select * from sluice.done_jobs e where e.job_id = y.id and e.calls > 0 offset 0) d
             order by d.ended_at desc limit p_most) x
      left join sluice.attempts a on a.job_id = x.job_id and a.number = x.calls;
end $$;

-- The work of a lane up to a place (null: to its end): counted up to p_most rows, beyond that by the numbers of acceptance.
create or replace function sluice.lane_work(p_lane bigint, p_rank int, p_seq bigint, p_most int, out n bigint, out cost bigint)
language plpgsql stable
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
  v_first bigint;
  v_seen bigint;
  v_last bigint;
begin
  select count(*), coalesce(sum(x.cost), 0), min(x.seq), max(x.seq) into n, cost, v_first, v_seen
    from (select r.seq, r.cost from sluice.ready_jobs r
           where r.lane_id = p_lane and (p_seq is null or (r.rank, r.seq) <= (p_rank, p_seq))
           order by r.rank, r.seq limit p_most) x;
  if n < p_most then return; end if;
  v_last := p_seq;
  if v_last is null then
    select r.seq into v_last from sluice.ready_jobs r where r.lane_id = p_lane order by r.rank desc, r.seq desc limit 1;
  end if;
  if v_last > v_seen and v_seen > v_first then
    cost := (cost * ((v_last - v_first)::float8 / (v_seen - v_first)))::bigint;
    n := (n * ((v_last - v_first)::float8 / (v_seen - v_first)))::bigint;
  end if;
end $$;`,
} as const;

/** Items of a batch that are looked at. */
const mostItems = 5_000;
/** Rows of the backlog that are counted, over all lanes. */
const mostRows = 200_000;
/** Lanes of the batch, and busy lanes of all. */
const mostLanes = 1_000;
/** Of how many calls the time is looked at. */
const recentCalls = 200;

/** A batch as it is stored, or jobs that are there and what a batch would add to lanes. */
export interface EtaQuestion {
  readonly tenant: string;
  readonly jobs: { readonly batchId: string; readonly items: number } | { readonly ids: readonly string[] };
  readonly added: readonly AddedWork[];
}

/** Jobs that would go into one lane. */
export interface AddedWork extends Work {
  readonly queue: string;
  readonly upstream: string;
  /** Empty: none. */
  readonly partitionKey: string;
  /** Of these, what has a `run_at`, in microseconds; null: nothing. */
  readonly scheduled: ScheduledWork | null;
}

export async function readEtaFacts(database: Database, question: EtaQuestion): Promise<EtaFacts> {
  const { tenant, added } = question;
  const left = await readLeft(database, question);
  const limits = await readLimits(database);
  const state = await readState(database);
  const lanes = await readLanes(database, tenant, left.lanes, added);
  const covering = (queue: string, upstream: string) =>
    limits
      .filter((limit) => limit.upstreams.includes(upstream) || limit.queues.includes(queue))
      .map(({ name }) => name);
  const isPaused = (queue: string, upstream: string) =>
    state.pausedQueues.includes(queue) || state.pausedUpstreams.includes(upstream);
  const busy = lanes.map(
    (lane): BusyLane => ({
      id: lane.id,
      queue: lane.queue,
      upstream: lane.upstream,
      partitionKey: lane.partition_key,
      limits: covering(lane.queue, lane.upstream),
      paused: isPaused(lane.queue, lane.upstream),
      count: lane.n,
      cost: lane.cost,
    }),
  );
  const own = ownLanes(lanes, busy, left, added).map(
    (lane): BatchLane => ({
      ...lane,
      limits: covering(lane.queue, lane.upstream),
      paused: isPaused(lane.queue, lane.upstream),
      fifo: state.fifoQueues.includes(lane.queue),
    }),
  );
  const windows = await readWindows(
    database,
    own.flatMap((lane) =>
      lane.limits.map((name) => {
        const { by_partition } = limits.find((limit) => limit.name === name)!.rule;
        return { limit: name, partitionKey: by_partition ? lane.partitionKey : '' };
      }),
    ),
  );
  return {
    nowUs: state.nowUs,
    lanes: own,
    busy,
    limits: new Map(limits.map(({ name, rule }) => [name, { rule, windows: windows.get(name) ?? new Map() }])),
    cooldowns: state.cooldowns,
    slots: state.slots,
    running: left.running,
    observed: left.observed,
  };
}

interface Left {
  readonly lanes: readonly LeftRow[];
  /** How many jobs each one that was looked at stands for. */
  readonly scale: number;
  readonly running: number;
  readonly observed: EtaFacts['observed'];
}

interface LeftRow {
  readonly lane_id: number;
  readonly ready: number;
  readonly last_rank: number | null;
  readonly last_seq: number | null;
  readonly scheduled: number;
  readonly scheduled_cost: number;
  readonly first_due_us: number | null;
  readonly last_due_us: number | null;
  readonly running: number;
  readonly jobs: number;
  readonly calls: number;
}

async function readLeft(database: Database, { jobs }: EtaQuestion): Promise<Left> {
  const rows = await database.query<
    { [Name in keyof LeftRow]: LeftRow[Name] | null } & {
      pace_ended: number;
      pace_seconds: number;
      pace_call_ms: number | null;
    }
  >(
    `with s as materialized (
       select case when $1::uuid is null then $2::uuid[] else sluice.sample_jobs($1, $3) end as ids)
     select l.lane_id, l.ready, l.last_rank, l.last_seq, l.scheduled, l.scheduled_cost, sluice.us_of(l.first_due) as first_due_us,
            sluice.us_of(l.last_due) as last_due_us, l.running, l.jobs, l.calls,
            p.ended as pace_ended, p.seconds as pace_seconds, p.call_ms as pace_call_ms
       from s cross join lateral sluice.pace_of(s.ids, $4) p left join lateral sluice.jobs_left(s.ids) l on true`,
    ['batchId' in jobs ? jobs.batchId : null, 'ids' in jobs ? jobs.ids : [], mostItems, recentCalls],
    'jobs-left',
  );
  const scale = 'items' in jobs ? Math.max(1, Math.ceil(jobs.items / mostItems)) : 1;
  const lanes = rows.filter((row): row is LeftRow & (typeof rows)[number] => row.lane_id !== null);
  const { pace_ended: ended, pace_seconds: seconds, pace_call_ms: callMs } = rows[0]!;
  const sum = (pick: (row: LeftRow) => number) => lanes.reduce((total, row) => total + pick(row), 0);
  // A job that waits has made its calls for a retry to come; one that was never called tells nothing.
  const callsPerJob = (sum((row) => row.calls) + assumedCalls) / (sum((row) => row.jobs) + assumedCalls);
  return {
    lanes: lanes
      .filter((row) => row.ready + row.scheduled > 0)
      .sort((a, b) => b.ready + b.scheduled - a.ready - a.scheduled)
      .slice(0, mostLanes),
    scale,
    running: sum((row) => row.running) * scale,
    observed: {
      callsPerJob: Math.max(1, callsPerJob),
      callMs,
      perSecond: ended >= fewestEnded && seconds > 0 ? (ended * scale) / seconds : null,
    },
  };
}

/** Jobs that went well at the first call, taken as seen beforehand: one failure among the first few calls says little. */
const assumedCalls = 20;
/** From fewer ends no rate is told. */
const fewestEnded = 3;

interface LimitRow {
  readonly name: string;
  readonly rule: EtaLimit['rule'];
  readonly upstreams: readonly string[];
  readonly queues: readonly string[];
}

async function readLimits(database: Database): Promise<LimitRow[]> {
  const rows = await database.query<
    EtaLimit['rule'] & { readonly name: string; readonly upstreams: string[]; readonly queues: string[] }
  >(
    `select r.name, r."limit", r.per_seconds as per, r.algorithm, r.burst, r.slack_ms, r.max_in_flight, r.by_partition,
            r.upstreams, r.queues
       from sluice.rate_limits r where r.deleted_at is null order by r.name`,
    [],
    'limits-in-force',
  );
  return rows.map(({ name, upstreams, queues, ...rule }) => ({ name, rule, upstreams, queues }));
}

interface StateRow {
  readonly nowUs: number;
  readonly slots: number;
  readonly pausedQueues: readonly string[];
  readonly pausedUpstreams: readonly string[];
  readonly fifoQueues: readonly string[];
  readonly cooldowns: EtaFacts['cooldowns'];
}

async function readState(database: Database): Promise<StateRow> {
  const [row] = await database.query<StateRow>(
    `select sluice.clock_us() as "nowUs",
            (select coalesce(sum(w.concurrency), 0)::bigint from sluice.workers w
              where w.lease_expires_at > sluice.at_us(sluice.clock_us())) as slots,
            array(select q.name from sluice.queues q where (q.definition ->> 'paused')::boolean) as "pausedQueues",
            array(select u.name from sluice.upstreams u where (u.definition ->> 'paused')::boolean) as "pausedUpstreams",
            array(select q.name from sluice.queues q where q.definition ->> 'ordering' = 'fifo') as "fifoQueues",
            coalesce((select jsonb_agg(jsonb_build_object('kind', c.kind, 'name', c.name, 'partitionKey', c.partition_key,
                                                          'untilUs', sluice.us_of(c.until)))
                        from (select * from sluice.cooldowns y where y.until > sluice.at_us(sluice.clock_us())
                               order by y.until desc limit $1) c), '[]') as cooldowns`,
    [mostLanes],
    'eta-state',
  );
  return row!;
}

interface LaneRow {
  readonly id: number;
  readonly queue: string;
  readonly upstream: string;
  readonly partition_key: string;
  /** Of the tenant that asks. */
  readonly own: boolean;
  readonly n: number;
  readonly cost: number;
  /** Up to the batch's last job; null: it has none that is due. */
  readonly ahead: number | null;
  readonly ahead_cost: number | null;
}

/** Those of the batch, and others that are busy, with what waits in them. */
function readLanes(
  database: Database,
  tenant: string,
  left: readonly LeftRow[],
  added: readonly AddedWork[],
): Promise<LaneRow[]> {
  return database.query<LaneRow>(
    `with own as materialized (
       select * from unnest($1::bigint[], $2::int[], $3::bigint[]) o(id, rank, seq)),
     lane as materialized (
       select o.id from own o
       union select l.id from unnest($4::text[], $5::text[], $6::text[]) a(queue, upstream, partition_key)
               join sluice.lane_groups g on g.queue = a.queue and g.upstream = a.upstream
               join sluice.lanes l on l.group_id = g.id and l.partition_key = a.partition_key and l.tenant = $7
       union select b.id from (select l.id from sluice.lanes l where l.closed_by is distinct from 'empty' limit $8) b),
     cap as materialized (select greatest(100, $9 / greatest(1, count(*)))::int as rows from lane)
     select l.id, g.queue, g.upstream, l.partition_key, l.tenant = $7 as own, w.n, w.cost, a.n as ahead, a.cost as ahead_cost
       from lane x
       join sluice.lanes l on l.id = x.id
       join sluice.lane_groups g on g.id = l.group_id
      cross join cap
      cross join lateral sluice.lane_work(l.id, null, null, cap.rows) w
       left join own o on o.id = l.id
       left join lateral sluice.lane_work(l.id, o.rank, o.seq, cap.rows) a on o.seq is not null`,
    [
      left.map((row) => row.lane_id),
      left.map((row) => row.last_rank),
      left.map((row) => row.last_seq),
      added.map((work) => work.queue),
      added.map((work) => work.upstream),
      added.map((work) => work.partitionKey),
      tenant,
      mostLanes,
      mostRows,
    ],
    'busy-lanes',
  );
}

type OwnLane = Omit<BatchLane, 'limits' | 'paused' | 'fifo'>;

function ownLanes(
  rows: readonly LaneRow[],
  busy: readonly BusyLane[],
  { lanes, scale }: Left,
  added: readonly AddedWork[],
): OwnLane[] {
  const own = new Map<string, OwnLane>();
  const nameOf = ({ queue, upstream, partitionKey }: Pick<BusyLane, 'queue' | 'upstream' | 'partitionKey'>) =>
    `${queue}/${upstream}/${partitionKey}`;
  const lefts = new Map(lanes.map((lane) => [lane.lane_id, lane]));
  for (const [at, row] of rows.entries()) {
    const left = lefts.get(row.id);
    if (left === undefined) continue;
    const { id, queue, upstream, partitionKey } = busy[at]!;
    const scheduled = {
      count: left.scheduled * scale,
      cost: left.scheduled_cost * scale,
      firstUs: left.first_due_us ?? 0,
      lastUs: left.last_due_us ?? 0,
    };
    own.set(nameOf(busy[at]!), {
      id,
      queue,
      upstream,
      partitionKey,
      // Those that fall due come after what is due already.
      ready: { count: row.ahead ?? row.n, cost: row.ahead_cost ?? row.cost },
      scheduled: left.scheduled === 0 ? null : scheduled,
    });
  }
  const there = new Map(rows.flatMap((row, at) => (row.own ? [[nameOf(busy[at]!), busy[at]!] as const] : [])));
  for (const [at, work] of added.entries()) {
    const name = nameOf(work);
    const before = there.get(name);
    const known = own.get(name);
    const due = { count: work.count - (work.scheduled?.count ?? 0), cost: work.cost - (work.scheduled?.cost ?? 0) };
    own.set(name, {
      id: before?.id ?? -1 - at,
      queue: work.queue,
      upstream: work.upstream,
      partitionKey: work.partitionKey,
      ready: { count: (before?.count ?? 0) + due.count, cost: (before?.cost ?? 0) + due.cost },
      scheduled: bothScheduled(work.scheduled, known?.scheduled ?? null),
    });
  }
  return [...own.values()];
}

function bothScheduled(a: ScheduledWork | null, b: ScheduledWork | null): ScheduledWork | null {
  if (a === null || b === null) return a ?? b;
  return {
    count: a.count + b.count,
    cost: a.cost + b.cost,
    firstUs: Math.min(a.firstUs, b.firstUs),
    lastUs: Math.max(a.lastUs, b.lastUs),
  };
}

type Windows = Map<string, Map<string, { readonly state: WindowState; readonly paused: boolean }>>;

async function readWindows(
  database: Database,
  names: ReadonlyArray<{ readonly limit: string; readonly partitionKey: string }>,
): Promise<Windows> {
  const rows = await database.query<
    Omit<WindowState, 'widthUs' | 'horizonUs' | 'ring' | 'anchorUs'> & {
      readonly limit_name: string;
      readonly partition_key: string;
      readonly width_us: number;
      readonly horizon_us: number;
      readonly ring: number[] | null;
      readonly anchor_us: number | null;
      readonly paused: boolean;
    }
  >(
    `select w.limit_name, w.partition_key, w.algorithm, w.width_us, w.horizon_us, w.ring, w.head, w.tail, w.used,
            sluice.us_of(w.anchor_at) as anchor_us, w.level, w.paused
       from (select distinct x.* from unnest($1::text[], $2::text[]) x(limit_name, partition_key)) n
       join sluice.rate_windows w on w.limit_name = n.limit_name and w.partition_key = n.partition_key`,
    [names.map(({ limit }) => limit), names.map(({ partitionKey }) => partitionKey)],
    'eta-windows',
  );
  const windows: Windows = new Map();
  for (const { limit_name, partition_key, width_us, horizon_us, ring, anchor_us, paused, ...counts } of rows) {
    const state = { ...counts, widthUs: width_us, horizonUs: horizon_us, ring: ring ?? [], anchorUs: anchor_us };
    const ofLimit = windows.get(limit_name) ?? new Map<string, { state: WindowState; paused: boolean }>();
    windows.set(limit_name, ofLimit.set(partition_key, { state, paused }));
  }
  return windows;
}
