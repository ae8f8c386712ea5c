/**
 * Lane groups (a queue at an upstream) carry what the claim needs of the definitions: ordering, covering limits, pauses.
 * Invariant: in every committed state they say what the tables `upstreams`, `queues` and `rate_limits` say. So a group is
 * made under the shared form of the definitions' lock, and all are worked out again under its exclusive form.
 * Lock order: advisory 7305001, lane_groups by id, running_jobs (skipping locked ones), lanes by id.
 */
import type { FaultPointsAround } from '../system/fault-points.ts';
import type { TransactionClient } from './transaction.ts';

/** Advisory lock: claims and intake hold it shared, a change of definitions holds it alone. */
export const definitionsLock = 7_305_001;

const share = `select pg_advisory_xact_lock_shared(${definitionsLock})`;

/**
 * Takes the definitions' lock in its shared form until the transaction ends, and marks the transaction as an intake's: for
 * what goes out with its BEGIN and must not be done without it (`ofThisIntake`). Its statements are planned once for a
 * connection and not again for each batch, which for a small one is a third of their cost. A plan that lasts must not believe that a table is as
 * small as it was: all that is looked up is looked up by an index.
 */
export const openIntake = {
  text: `${share}, set_config('sluice.intake', 'open', true), set_config('plan_cache_mode', 'force_generic_plan', true),
    set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
    set_config('enable_mergejoin', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true)`,
  name: 'open-intake',
} as const;

/** Around the COMMIT of an intake. */
export const intakePoints = {
  before: 'intake.before_commit',
  after: 'intake.after_commit',
} as const satisfies FaultPointsAround;

/** Whether `openIntake` was run in the same transaction. */
export const ofThisIntake = `current_setting('sluice.intake', true) = 'open'`;

/** What the definitions say of the group `g`; `paused_by` is null where it is not paused. One row, always. */
const coverage = `
  select coalesce((select q.definition->>'ordering' = 'fifo' from sluice.queues q where q.name = g.queue), false) as fifo,
         coalesce(array_agg(l.name::text order by l.name) filter (where not l.by_partition), '{}') as shared_limits,
         coalesce(array_agg(l.name::text order by l.name) filter (where l.by_partition), '{}') as partition_limits,
         coalesce(bool_or(l.max_in_flight is not null), false) as counted,
         case when (select (q.definition->>'paused')::boolean from sluice.queues q where q.name = g.queue)
              then 'queue_paused'
              when (select (u.definition->>'paused')::boolean from sluice.upstreams u where u.name = g.upstream)
              then 'upstream_paused' end as paused_by
    from sluice.rate_limits l
   where l.deleted_at is null and (g.upstream = any (l.upstreams) or g.queue = any (l.queues))`;

/** When and why a group with this coverage `c` is closed. */
const nextAt = `case when c.paused_by is null then clock_timestamp() else 'infinity' end`;
const closedName = `case c.paused_by when 'queue_paused' then g.queue when 'upstream_paused' then g.upstream end`;

/** A queue at an upstream. */
export interface LaneGroupKey {
  readonly queue: string;
  readonly upstream: string;
}

/**
 * Works out all groups again. Those that come out different, and those under a touched limit, are opened (unless paused)
 * together with their lanes, so that the next claim judges them by the new definitions; empty lanes stay closed. What runs
 * in them is counted from now on where an order or a limit wants it.
 * The caller holds the definitions' lock alone.
 * @param touchedLimits limits whose own values changed: what they have closed may be open now
 */
export async function refreshLaneGroups(client: TransactionClient, touchedLimits: readonly string[]): Promise<void> {
  await client.query('select 1 from sluice.lane_groups g order by g.id for no key update');
  const changed = await client.query<{ id: number }>(
    `update sluice.lane_groups o
        set fifo = n.fifo, shared_limits = n.shared_limits, partition_limits = n.partition_limits, counted = n.counted,
            next_at = n.next_at, closed_by = n.paused_by, closed_name = n.closed_name
       from (select g.id, c.*, ${nextAt} as next_at, ${closedName} as closed_name
               from sluice.lane_groups g cross join lateral (${coverage}) c) n
      where n.id = o.id
        and ((n.fifo, n.shared_limits, n.partition_limits, n.counted)
               is distinct from (o.fifo, o.shared_limits, o.partition_limits, o.counted)
             or n.paused_by is distinct from (case when o.closed_by in ('queue_paused', 'upstream_paused') then o.closed_by end)
             or n.closed_name is distinct from
                  (case when o.closed_by in ('queue_paused', 'upstream_paused') then o.closed_name end)
             or n.shared_limits || n.partition_limits && $1::text[])
      returning o.id`,
    [touchedLimits],
  );
  if (changed.length === 0) return;
  const ids = changed.map((row) => row.id);
  // What runs since before it had to be counted is in flight all the same. A row that is locked is about to go.
  await client.query(
    `update sluice.running_jobs r set counted = true
      where r.job_id in (select o.job_id from sluice.lane_groups g join sluice.running_jobs o on o.group_id = g.id
                          where g.id = any ($1::int[]) and (g.counted or g.fifo) and not o.counted
                            for no key update of o skip locked)`,
    [ids],
  );
  // A head that a window saves up for may be in one of them: whoever stands back for it is to look whether that goes on.
  await client.query(
    `update sluice.lane_groups o set next_at = clock_timestamp(), closed_by = null, closed_name = null
      where o.closed_by = 'window'
        and exists (select 1 from sluice.lane_groups g where g.id = any ($1::int[]) and g.shared_limits && o.shared_limits)`,
    [ids],
  );
  await client.query(
    `with closed as materialized (
       select l.id from sluice.lanes l
        where l.group_id = any ($1::int[]) and l.next_at > clock_timestamp() and l.closed_by is distinct from 'empty'
        order by l.id for no key update)
     update sluice.lanes l set next_at = clock_timestamp(), closed_by = null, closed_name = null
       from closed where l.id = closed.id`,
    [ids],
  );
}

/**
 * The ids of these groups, in the order of `keys`, made where they are missing. null: its queue or upstream is not defined
 * (any more). Takes the definitions' lock in its shared form, so that what it has seen defined stays so until the caller's
 * transaction ends: a DELETE waits, and then sees the jobs.
 */
export async function ensureLaneGroups(
  client: TransactionClient,
  keys: readonly LaneGroupKey[],
): Promise<readonly (number | null)[]> {
  await client.query(share, [], 'share-definitions');
  return (await groupsUnderLock(client, keys)).ids;
}

/** The same under the lock that the caller has taken (`openIntake`), and the version of the definitions. */
export async function groupsUnderLock(
  client: TransactionClient,
  keys: readonly LaneGroupKey[],
): Promise<{ readonly version: number; readonly ids: readonly (number | null)[] }> {
  const values = [keys.map((key) => key.queue), keys.map((key) => key.upstream)];
  const rows = await client.query<{ version: number; place: number | null; id: number | null; defined: boolean }>(
    `select v.version, k.place, g.id,
            exists (select 1 from sluice.queues q where q.name = k.queue)
              and exists (select 1 from sluice.upstreams u where u.name = k.upstream) as defined
       from sluice.definition_version v
       left join unnest($1::text[], $2::text[]) with ordinality k (queue, upstream, place) on true
       left join sluice.lane_groups g on g.queue = k.queue and g.upstream = k.upstream
      order by k.place`,
    values,
    'find-lane-groups',
  );
  const { version } = rows[0]!;
  const known = rows.filter(({ place }) => place !== null);
  if (known.every(({ id, defined }) => id !== null || !defined)) {
    return { version, ids: known.map(({ id, defined }) => (defined ? id : null)) };
  }
  await client.begun;
  // Sorted, so that two intakes that make the same groups never wait for each other in a ring.
  await client.query(
    `insert into sluice.lane_groups (queue, upstream, fifo, shared_limits, partition_limits, counted, next_at, closed_by, closed_name)
     select g.queue, g.upstream, c.fifo, c.shared_limits, c.partition_limits, c.counted, ${nextAt}, c.paused_by, ${closedName}
       from (select distinct k.queue, k.upstream from unnest($1::text[], $2::text[]) k (queue, upstream)
               join sluice.queues q on q.name = k.queue join sluice.upstreams u on u.name = k.upstream) g
      cross join lateral (${coverage}) c
      order by g.queue collate "C", g.upstream collate "C"
         on conflict (queue, upstream) do nothing`,
    values,
  );
  return groupsUnderLock(client, keys);
}
