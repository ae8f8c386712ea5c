/**
 * What operators do to a live window: pause, resume, forget the count, close until a time. Each runs alone against claims
 * (the definitions' lock, or the limit's cooldown lock, held exclusively), so once it has committed the next claim obeys.
 * Lock order: advisory 7305001 or 7305003, lane_groups by id, lanes by id, rate_windows.
 */
import type { WindowName } from './read-rate-windows.ts';
import type { TransactionClient } from './transaction.ts';

/** Pauses or resumes one window; the caller holds the definitions' lock. */
export async function setWindowPaused(
  client: TransactionClient,
  { limit, partitionKey }: WindowName,
  paused: boolean,
): Promise<void> {
  const changed = await client.query(
    `update sluice.rate_windows x set paused = $3::boolean where x.limit_name = $1::text and x.partition_key = $2::text returning 1`,
    [limit, partitionKey, paused],
  );
  if (changed.length > 0) return;
  await client.query(
    `insert into sluice.rate_windows
     select (e.w).limit_name, (e.w).partition_key, (e.w).algorithm, (e.w).width_us, (e.w).horizon_us, (e.w).ring, (e.w).head, (e.w).tail,
            (e.w).used, (e.w).anchor_at, (e.w).level, $3::boolean
       from (select sluice.rate_window_empty(r, $2::text, sluice.clock_us()) as w from sluice.rate_limits r where r.name = $1::text) e`,
    [limit, partitionKey, paused],
  );
}

/** Forgets what a limit has counted, in one window or (null) in all; pauses stay. The caller holds the definitions' lock. */
export async function forgetCount(
  client: TransactionClient,
  limit: string,
  partitionKey: string | null,
): Promise<void> {
  await client.query(
    `update sluice.rate_windows x
        set ring = (e.w).ring, head = (e.w).head, tail = (e.w).tail, used = 0, anchor_at = (e.w).anchor_at, level = (e.w).level,
            algorithm = (e.w).algorithm, width_us = (e.w).width_us, horizon_us = (e.w).horizon_us
       from (select r.name, sluice.rate_window_empty(r, '', sluice.clock_us()) as w from sluice.rate_limits r where r.name = $1::text) e
      where x.limit_name = e.name and ($2::text is null or x.partition_key = $2)`,
    [limit, partitionKey],
  );
}

/** Lets the next claim look again at whatever this limit may have closed. The caller holds the definitions' lock. */
export async function reopenUnder(client: TransactionClient, limit: string): Promise<void> {
  const groups = await client.query<{ id: number }>(
    `select g.id from sluice.lane_groups g where $1 = any (g.shared_limits) or $1 = any (g.partition_limits)
      order by g.id for no key update`,
    [limit],
  );
  const ids = groups.map((group) => group.id);
  await client.query(
    `update sluice.lane_groups g set next_at = clock_timestamp(), closed_by = null, closed_name = null
      where g.id = any ($1::int[]) and g.closed_by = 'window'`,
    [ids],
  );
  await client.query(
    `update sluice.lanes l set next_at = clock_timestamp(), closed_by = null, closed_name = null
      where l.id in (select o.id from sluice.lanes o
                      where o.group_id = any ($1::int[]) and o.next_at > clock_timestamp() and o.closed_by = 'window'
                      order by o.id for no key update)`,
    [ids],
  );
  await client.query("select pg_notify('sluice_work', '')");
}

/** Closes a limit, or one partition of it, for `seconds`; never opens it earlier than it was to open. */
export async function closeWindow(
  client: TransactionClient,
  { limit, partitionKey }: WindowName,
  seconds: number,
  reason: string,
): Promise<void> {
  await client.query('select pg_advisory_xact_lock(7305003, hashtext($1::text))', [limit]);
  await client.query(
    `select sluice.extend_cooldown('limit', $1::text, $2::text, $3::float8, clock_timestamp(), $4::text, null, null, null),
            pg_notify('sluice_work', '')`,
    [limit, partitionKey, seconds * 1000, reason],
  );
}
