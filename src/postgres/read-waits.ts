/**
 * What a job waits for, as far as rows tell: its state, who is before it in its lane, the windows and cooldowns over it, the
 * workers. All of one moment (one snapshot), and nothing is changed: a window without a row is one in which nothing was
 * admitted. Which limits cover it, and whether its queue has an order, the caller knows from the definitions.
 * Index used: primary keys, parked_jobs_lane, running_jobs_counted.
 */
import type { BlownFuse } from '../domain/explain.ts';
import type { JobState } from '../domain/job.ts';
import type { WindowState } from '../domain/rate-window.ts';
import type { Database } from './database.ts';
import { jobRows, type StoredState, stateOfRows } from './job-state.ts';
import { inTransaction, type TransactionClient } from './transaction.ts';

export interface StoredWait {
  readonly nowUs: number;
  readonly state: JobState;
  readonly reason: string | null;
  readonly queue: string;
  readonly upstream: string;
  readonly partitionKey: string | null;
  readonly cost: number;
  readonly calls: number;
  readonly fuse: BlownFuse | null;
  readonly dueAtUs: number | null;
  readonly lease: { readonly workerId: string; readonly expiresAtUs: number | null } | null;
  readonly ahead: { readonly count: number; readonly cost: number };
  /** In the order of a fifo lane: how many unfinished jobs come before it, and the first of them; null: none. */
  readonly order: {
    readonly before: number;
    readonly holder: { readonly jobId: string; readonly state: JobState; readonly dueAtUs: number | null } | null;
  };
  readonly windows: readonly StoredWindowState[];
  readonly cooldowns: readonly StoredCooldown[];
  readonly workers: { readonly live: number; readonly slots: number; readonly running: number };
}

export interface StoredWindowState {
  readonly limit: string;
  /** null: no row. */
  readonly state: WindowState | null;
  readonly paused: boolean;
  readonly inFlight: number;
}

export interface StoredCooldown {
  readonly kind: 'upstream' | 'limit';
  readonly name: string;
  readonly partitionKey: string | null;
  readonly untilUs: number;
  /** Calls that may still start under its ramp; null: it has none. */
  readonly room: number | null;
  readonly reason: string;
  readonly status: number | null;
}

/** What the definitions say of the job's queue and upstream. */
export interface Rules {
  readonly fifo: boolean;
  /** The limits that cover it. */
  readonly limits: ReadonlyArray<{ readonly name: string; readonly byPartition: boolean }>;
}

/** null: the tenant has no such job. @param rulesOf asked for the job's upstream and queue */
export async function readWait(
  database: Database,
  { tenant, jobId }: { readonly tenant: string; readonly jobId: string },
  rulesOf: (upstream: string, queue: string) => Rules,
): Promise<StoredWait | null> {
  return inTransaction(database, async (client) => {
    await client.query('set transaction isolation level repeatable read, read only');
    const row = await readPlace(client, tenant, jobId);
    if (row === null) return null;
    const { fifo, limits } = rulesOf(row.upstream, row.queue);
    return {
      nowUs: row.now_us,
      state: row.state,
      reason: row.reason,
      queue: row.queue,
      upstream: row.upstream,
      partitionKey: row.partition_key === '' ? null : row.partition_key,
      cost: row.cost,
      calls: row.calls,
      fuse:
        row.fuse_at === null
          ? null
          : { batchId: row.batch_id, jobId: row.fuse_job_id!, status: row.fuse_status!, at: row.fuse_at },
      dueAtUs: row.due_at_us,
      lease: row.worker_id === null ? null : { workerId: row.worker_id, expiresAtUs: row.lease_expires_at_us },
      ahead: await readAhead(client, row),
      order: fifo ? await readOrder(client, jobId, row) : { before: 0, holder: null },
      windows: await readWindows(client, row, limits),
      cooldowns: await readCooldowns(client, row, limits),
      workers: await readWorkers(client),
    };
  });
}

interface PlaceRow {
  readonly now_us: number;
  readonly state: JobState;
  readonly reason: string | null;
  readonly queue: string;
  readonly upstream: string;
  readonly partition_key: string;
  readonly cost: number;
  readonly lane_id: number;
  readonly group_id: number | null;
  readonly rank: number;
  readonly seq: number;
  readonly calls: number;
  readonly batch_id: string;
  readonly fuse_job_id: string | null;
  readonly fuse_status: number | null;
  readonly fuse_at: Date | null;
  readonly due_at_us: number | null;
  readonly worker_id: string | null;
  readonly lease_expires_at_us: number | null;
}

async function readPlace(client: TransactionClient, tenant: string, jobId: string): Promise<PlaceRow | null> {
  const [row] = await client.query<Omit<PlaceRow, 'state'> & { readonly state: StoredState }>(
    `select sluice.clock_us() as now_us, ${stateOfRows} as state, coalesce(done.reason, parked.reason) as reason, job.queue,
            job.upstream, job.partition_key, job.cost, job.lane_id, lane.group_id, job.rank, job.seq,
            coalesce(done.calls, running.calls, parked.calls, ready.calls) as calls, sluice.us_of(parked.due_at) as due_at_us,
            running.worker_id, sluice.us_of(worker.lease_expires_at) as lease_expires_at_us, job.batch_id,
            fuse.job_id as fuse_job_id, fuse.status as fuse_status, fuse.at as fuse_at
       from (select $1::uuid as id) asked ${jobRows('asked.id')}
       left join sluice.workers worker on worker.id = running.worker_id
       left join sluice.lanes lane on lane.id = job.lane_id
       left join sluice.blown_fuses fuse on fuse.batch_id = job.batch_id
         and (parked.reason = 'fuse' or asked.id in (select sluice.behind_fuse(array[asked.id])))
      where job.tenant = $2`,
    [jobId, tenant],
    'read-place',
  );
  return row === undefined || row.state === null ? null : { ...row, state: row.state };
}

async function readAhead(client: TransactionClient, { lane_id, rank, seq }: PlaceRow): Promise<StoredWait['ahead']> {
  const [row] = await client.query<StoredWait['ahead']>(
    `select count(*) as count, coalesce(sum(r.cost), 0)::bigint as cost from sluice.ready_jobs r
      where r.lane_id = $1 and (r.rank, r.seq) < ($2::int, $3::bigint)`,
    [lane_id, rank, seq],
    'read-ahead',
  );
  return row!;
}

/** A running job holds its lane, whatever its place; else the first in order of acceptance, be it parked or ready. */
async function readOrder(
  client: TransactionClient,
  jobId: string,
  { lane_id, group_id, rank, seq }: PlaceRow,
): Promise<StoredWait['order']> {
  const [row] = await client.query<{ count: number; job_id: string | null; state: JobState; due_at_us: number | null }>(
    `with before as materialized (
       select r.job_id, 'running' as state, null::timestamptz as due_at, r.seq from sluice.running_jobs r
        where r.counted and r.group_id = $2 and r.lane_id = $1 and r.job_id <> $5
       union all
       select p.job_id, p.state, p.due_at, p.seq from sluice.parked_jobs p where p.lane_id = $1 and p.seq < $4
       union all
       select r.job_id, 'ready', null, r.seq from sluice.ready_jobs r
        where r.lane_id = $1 and (r.rank, r.seq) < ($3::int, $4::bigint))
     select (select count(*) from before) as count, b.job_id, b.state, sluice.us_of(b.due_at) as due_at_us
       from (select 1) one
       left join (select * from before x order by x.state = 'running' desc, x.seq limit 1) b on true`,
    [lane_id, group_id, rank, seq, jobId],
    'read-order',
  );
  const { count, job_id, state, due_at_us } = row!;
  return { before: count, holder: job_id === null ? null : { jobId: job_id, state, dueAtUs: due_at_us } };
}

async function readWindows(
  client: TransactionClient,
  { partition_key }: PlaceRow,
  limits: Rules['limits'],
): Promise<StoredWindowState[]> {
  const rows = await client.query<{
    name: string;
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
  }>(
    `select l.name, w.algorithm, w.width_us, w.horizon_us, w.ring, w.head, w.tail, w.used, sluice.us_of(w.anchor_at) as anchor_us,
            w.level, w.paused, sluice.in_flight(l.name, case when l.by_partition then $3 end) as in_flight
       from unnest($1::text[], $2::boolean[]) with ordinality l (name, by_partition, place)
       left join sluice.rate_windows w
         on w.limit_name = l.name and w.partition_key = case when l.by_partition then $3 else '' end
      order by l.place`,
    [limits.map(({ name }) => name), limits.map(({ byPartition }) => byPartition), partition_key],
    'read-windows-over-job',
  );
  return rows.map(({ name, algorithm, width_us, horizon_us, anchor_us, ring, paused, in_flight, ...counts }) => ({
    limit: name,
    state:
      algorithm === null
        ? null
        : { ...counts, algorithm, widthUs: width_us, horizonUs: horizon_us, ring: ring ?? [], anchorUs: anchor_us },
    paused: paused ?? false,
    inFlight: in_flight,
  }));
}

async function readCooldowns(
  client: TransactionClient,
  { upstream, partition_key }: PlaceRow,
  limits: Rules['limits'],
): Promise<StoredCooldown[]> {
  const rows = await client.query<Omit<StoredCooldown, 'partitionKey'> & { readonly partition_key: string }>(
    `select c.kind, c.name, c.partition_key, sluice.us_of(c.until) as "untilUs",
            case when c.ramp is not null then sluice.ramp_room(c) end as room, c.reason, c.status
       from sluice.cooldowns c
      where c.partition_key in ('', $3)
        and ((c.kind = 'upstream' and c.name = $1) or (c.kind = 'limit' and c.name = any ($2::text[])))
      order by c.until desc, c.kind, c.name, c.partition_key`,
    [upstream, limits.map(({ name }) => name), partition_key],
    'read-cooldowns-over-job',
  );
  return rows.map(({ partition_key: key, ...row }) => ({ ...row, partitionKey: key === '' ? null : key }));
}

async function readWorkers(client: TransactionClient): Promise<StoredWait['workers']> {
  const [row] = await client.query<StoredWait['workers']>(
    `with live as materialized (
       select w.id, w.concurrency from sluice.workers w where w.lease_expires_at > sluice.at_us(sluice.clock_us()))
     select (select count(*) from live) as live, (select coalesce(sum(l.concurrency), 0)::bigint from live l) as slots,
            (select count(*) from sluice.running_jobs r join live l on l.id = r.worker_id) as running`,
    [],
    'read-slots',
  );
  return row!;
}
