/**
 * The lanes that an intake puts jobs into: found, made where missing, and locked so that no claim marks one empty before
 * the intake commits (a claim does that under FOR UPDATE, which FOR KEY SHARE keeps out; other intakes it does not).
 * Index used: lanes_group_partition_tenant. Lock order: lanes by id, after lane_groups.
 */
import type { TransactionClient } from './transaction.ts';

/** A lane of one tenant: where its group is known. */
export interface LaneKey {
  readonly groupId: number;
  /** Empty: jobs without a partition key. */
  readonly partitionKey: string;
}

/** The same before the id of its group is known. */
export interface LanePath {
  readonly queue: string;
  readonly upstream: string;
  readonly partitionKey: string;
}

export interface LockedLane extends LaneKey {
  readonly id: number;
}

/** Locks those of these lanes that are there. */
export async function lockLanes(
  client: TransactionClient,
  tenant: string,
  paths: readonly LanePath[],
): Promise<LockedLane[]> {
  if (paths.length === 0) return [];
  const rows = await client.query<LaneRow>(
    `select l.id, l.group_id, l.partition_key
       from unnest($2::text[], $3::text[], $4::text[]) k (queue, upstream, partition_key)
       join sluice.lane_groups g on g.queue = k.queue and g.upstream = k.upstream
       join sluice.lanes l on l.group_id = g.id and l.partition_key = k.partition_key and l.tenant = $1
      order by l.id
        for key share of l`,
    [
      tenant,
      paths.map(({ queue }) => queue),
      paths.map(({ upstream }) => upstream),
      paths.map(({ partitionKey }) => partitionKey),
    ],
    'lock-lanes',
  );
  return rows.map((row) => ({ id: row.id, groupId: row.group_id, partitionKey: row.partition_key }));
}

const find = `
  select l.id, l.group_id, l.partition_key
    from unnest($2::int[], $3::text[]) k (group_id, partition_key)
    join sluice.lanes l on l.group_id = k.group_id and l.partition_key = k.partition_key and l.tenant = $1
   order by l.id
     for key share of l`;

/**
 * Ids of these lanes, in the order of `keys`, which has none twice. At most three statements. A lane that idleness has swept
 * away between two of them counts as a serialization failure: the transaction is to be run again.
 */
export async function ensureLanes(
  client: TransactionClient,
  tenant: string,
  keys: readonly LaneKey[],
): Promise<number[]> {
  const values = [tenant, keys.map((key) => key.groupId), keys.map((key) => key.partitionKey)];
  let rows = await client.query<LaneRow>(find, values, 'find-lanes');
  if (rows.length < keys.length) {
    // Sorted, so that two intakes that make the same lanes never wait for each other in a ring.
    await client.query(
      `insert into sluice.lanes (group_id, tenant, partition_key)
       select k.group_id, $1, k.partition_key from unnest($2::int[], $3::text[]) k (group_id, partition_key)
        where not exists (select 1 from sluice.lanes l
                           where l.group_id = k.group_id and l.partition_key = k.partition_key and l.tenant = $1)
        order by k.group_id, k.partition_key collate "C"
           on conflict (group_id, partition_key, tenant) do nothing`,
      values,
      'make-lanes',
    );
    rows = await client.query<LaneRow>(find, values, 'find-lanes');
  }
  const ids = new Map(
    rows.map((row) => [laneName({ groupId: row.group_id, partitionKey: row.partition_key }), row.id]),
  );
  return keys.map((key) => {
    const id = ids.get(laneName(key));
    if (id === undefined) throw new LaneSweptError();
    return id;
  });
}

interface LaneRow {
  readonly id: number;
  readonly group_id: number;
  readonly partition_key: string;
}

/** One string for one lane of a tenant. */
export function laneName({ groupId, partitionKey }: LaneKey): string {
  return `${groupId}/${partitionKey}`;
}

class LaneSweptError extends Error {
  /** SQLSTATE serialization_failure: `inTransaction` runs the work again. */
  readonly code = '40001';
  constructor() {
    super('a lane was swept away while jobs were put into it');
    this.name = 'LaneSweptError';
  }
}
