/**
 * Clears away what idleness leaves behind: lanes of partition keys without jobs, windows in which nothing counts any more,
 * deleted limits whose windows are gone, cooldowns that are long over. A bounded number of rows a call, walking each table
 * by its key, so that any number of them is got through in time; rows that somebody holds are passed over.
 * Whoever needs a swept row makes it anew: intake its lanes, the claim its windows.
 */
import type { Database } from './database.ts';
import { inTransaction } from './transaction.ts';

/** Where a walk over the tables stands; begins empty, and goes round. */
export interface SweepCursor {
  laneId: number;
  window: { limit: string; partitionKey: string };
}

export function newSweepCursor(): SweepCursor {
  return { laneId: 0, window: { limit: '', partitionKey: '' } };
}

/** Lanes that have had nothing for `idleSeconds`; looks at `most` and gives how many went. */
export async function sweepLanes(
  database: Database,
  cursor: SweepCursor,
  { idleSeconds, most }: { idleSeconds: number; most: number },
): Promise<number> {
  const looked = await database.query<{ id: number }>(
    'select id from sluice.lanes where id > $1::bigint order by id limit $2::int',
    [cursor.laneId, most],
  );
  cursor.laneId = looked.length < most ? 0 : looked.at(-1)!.id;
  if (looked.length === 0) return 0;
  const noJobs = ['ready_jobs', 'parked_jobs', 'running_jobs']
    .map((table) => `not exists (select 1 from sluice.${table} j where j.lane_id = o.id)`)
    .join(' and ');
  return inTransaction(database, async (client) => {
    const idle = await client.query<{ id: number }>(
      `select o.id from sluice.lanes o
        where o.id = any ($1::bigint[]) and o.closed_by = 'empty'
          and o.emptied_at < clock_timestamp() - make_interval(secs => $2::float8) and ${noJobs}
        order by o.id for update skip locked`,
      [looked.map((row) => row.id), idleSeconds],
    );
    // Looked at again, by a statement that begins under the lock: an intake that put in jobs for later has come and gone
    // without a change of the lane's row.
    const swept = await client.query(
      `delete from sluice.lanes o where o.id = any ($1::bigint[]) and ${noJobs} returning o.id`,
      [idle.map((row) => row.id)],
    );
    return swept.length;
  });
}

/** Windows of partition keys and of deleted limits in which nothing counts; then the deleted limits without windows. */
export async function sweepWindows(
  database: Database,
  cursor: SweepCursor,
  { most }: { most: number },
): Promise<number> {
  const looked = await database.query<{ limit: string; partitionKey: string }>(
    `select limit_name as limit, partition_key as "partitionKey" from sluice.rate_windows
      where (limit_name, partition_key) > ($1::text collate "C", $2::text collate "C")
      order by limit_name, partition_key limit $3::int`,
    [cursor.window.limit, cursor.window.partitionKey, most],
  );
  cursor.window = looked.length < most ? { limit: '', partitionKey: '' } : looked.at(-1)!;
  const swept = await database.query(
    `delete from sluice.rate_windows w using (
       select x.limit_name, x.partition_key
         from unnest($1::text[], $2::text[]) n (limit_name, partition_key)
         join sluice.rate_windows x on x.limit_name = n.limit_name and x.partition_key = n.partition_key
         join sluice.rate_limits r on r.name = x.limit_name
        cross join lateral (select (sluice.rate_window_roll(x, r, sluice.clock_us())).*) now
        where (x.partition_key <> '' or r.deleted_at is not null) and (not x.paused or r.deleted_at is not null)
          and case when r.algorithm = 'token_bucket' then now.level >= sluice.rate_window_bucket(r) else now.used = 0 end
        order by x.limit_name, x.partition_key for update of x skip locked) gone
      where w.limit_name = gone.limit_name and w.partition_key = gone.partition_key
     returning w.limit_name`,
    [looked.map((row) => row.limit), looked.map((row) => row.partitionKey)],
  );
  await database.query(
    `delete from sluice.rate_limits r where r.deleted_at is not null
        and not exists (select 1 from sluice.rate_windows w where w.limit_name = r.name)`,
  );
  return swept.length;
}

/** Cooldowns that ended more than `idleSeconds` ago: nobody asks for their evidence any more. */
export async function sweepCooldowns(
  database: Database,
  { idleSeconds, most }: { idleSeconds: number; most: number },
): Promise<number> {
  const swept = await database.query(
    `delete from sluice.cooldowns c using (
       select x.kind, x.name, x.partition_key from sluice.cooldowns x
        where x.until < clock_timestamp() - make_interval(secs => $1::float8)
        order by x.kind, x.name, x.partition_key limit $2::int for update skip locked) gone
      where c.kind = gone.kind and c.name = gone.name and c.partition_key = gone.partition_key
     returning c.name`,
    [idleSeconds, most],
  );
  return swept.length;
}
