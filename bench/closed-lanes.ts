/**
 * Work that waits behind closed lanes, made by SQL as claims would leave it, and one open lane beside it, under the same
 * limit and in the same group: the hardest case for a claim that must not read what is closed.
 */
import { ensureLaneGroups } from '../src/postgres/lane-groups.ts';
import { inTransaction } from '../src/postgres/transaction.ts';
import type { BenchDatabase } from './stage.ts';

export interface ClosedWork {
  readonly lanes: number;
  readonly jobsPerLane: number;
}

/** Starts per hour of each partition key. */
export const perHour = 64;

/** Adds lanes until there are `lanes` closed ones, and jobs until each has `jobsPerLane`. */
export async function fillClosedLanes({ database }: BenchDatabase, { lanes, jobsPerLane }: ClosedWork): Promise<void> {
  const [groupId] = await inTransaction(database, (client) =>
    ensureLaneGroups(client, [{ queue: 'default', upstream: 'api' }]),
  );
  await database.query(
    `insert into sluice.lanes (group_id, tenant, partition_key, next_at, closed_by, closed_name)
     select $1, 'default', 'closed-' || n, clock_timestamp() + interval '1 hour' + n * interval '1 millisecond', 'window', 'each'
       from generate_series(1, $2::int) n
         on conflict do nothing`,
    [groupId, lanes],
  );
  // In pieces, because a statement has its time limit.
  for (let from = 1; from <= jobsPerLane; from += jobsPerPiece(lanes)) {
    await addJobs(database, 'closed-%', lanes, Math.min(jobsPerLane, from + jobsPerPiece(lanes) - 1));
  }
}

function jobsPerPiece(lanes: number): number {
  return Math.max(1, Math.floor(100_000 / lanes));
}

/** Partition key of the open lane. */
export const openKey = 'open';

/** Fills the open lane up to this many jobs, in pieces; made where there is none. */
export async function fillOpenLane({ database }: BenchDatabase, jobs: number): Promise<void> {
  const [groupId] = await inTransaction(database, (client) =>
    ensureLaneGroups(client, [{ queue: 'default', upstream: 'api' }]),
  );
  await database.query(
    `insert into sluice.lanes (group_id, tenant, partition_key) values ($1, 'default', '${openKey}') on conflict do nothing`,
    [groupId],
  );
  for (let from = 1; from <= jobs; from += jobsPerPiece(1)) {
    await addJobs(database, openKey, 1, Math.min(jobs, from + jobsPerPiece(1) - 1));
  }
}

/** As a window would: whatever is accepted meanwhile does not open it. */
export async function closeOpenLane({ database }: BenchDatabase): Promise<void> {
  await database.query(
    `update sluice.lanes set next_at = 'infinity', closed_by = 'window', closed_name = 'bench' where partition_key = '${openKey}'`,
  );
}

export async function reopenOpenLane({ database }: BenchDatabase): Promise<void> {
  await database.query(
    `with opened as (
       update sluice.lanes set next_at = clock_timestamp(), closed_by = null, closed_name = null
        where partition_key = '${openKey}' returning id)
     select pg_notify('sluice_work', '') from opened`,
  );
}

/** Brings each lane of these partition keys up to `upTo` jobs. */
async function addJobs(database: BenchDatabase['database'], keys: string, lanes: number, upTo: number): Promise<void> {
  await database.query(
    `with lane as materialized (
       select l.id, l.partition_key, (select count(*) from sluice.ready_jobs r where r.lane_id = l.id) as has
         from sluice.lanes l where l.partition_key like $1 order by l.id limit $2),
     added as (
       insert into sluice.jobs (id, tenant, batch_id, lane_id, rank, seq, queue, upstream, partition_key, idempotency_key,
                                key_source, method, path, body)
       select gen_random_uuid(), 'default', '00000000-0000-7000-8000-000000000000', lane.id, 0, nextval('sluice.job_seq'), 'default',
              'api', lane.partition_key, lane.partition_key || '-' || n, 'given', 'POST', '/charges', '{"amount":5}'
         from generate_series(1, $3::int) n join lane on n > lane.has order by n, lane.id
       returning id, lane_id, seq)
     insert into sluice.ready_jobs (lane_id, rank, seq, job_id, cost, eligible_at)
     select lane_id, 0, seq, id, 1, clock_timestamp() from added`,
    [keys, lanes, upTo],
  );
}

/** So that a measurement does not pay for what the filling left behind. */
export async function settleDown({ database }: BenchDatabase): Promise<void> {
  for (const table of ['ready_jobs', 'jobs', 'lanes', 'lane_groups', 'running_jobs', 'rate_windows']) {
    await database.query(`vacuum (analyze) sluice.${table}`);
  }
  await database.query('checkpoint');
}
