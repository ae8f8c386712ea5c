/**
 * Reads and writes of what operators declare. Every write happens in a transaction that holds the definitions' lock alone
 * (`lockDefinitions`), so it waits for claims and intakes in progress, and ends with `announceChange`, so that every replica
 * sees it at its next claim.
 * Rate limits are in columns because the claim reads them; here they come out in the shape of the API like the others.
 */
import { schemas } from '../domain/check-definitions.ts';
import {
  type DefinitionKind,
  type Definitions,
  definitionNamePattern,
  type Queue,
  type RateLimit,
  type Upstream,
} from '../domain/definitions.ts';
import { type Database, promptMs } from './database.ts';
import { definitionsLock } from './lane-groups.ts';
import type { TransactionClient } from './transaction.ts';

/** A pool or the client of a transaction. */
type Queryable = Pick<Database, 'query'>;

export interface DefinitionOf {
  upstreams: Upstream;
  rate_limits: RateLimit;
  queues: Queue;
}

export interface Stored<K extends DefinitionKind = DefinitionKind> {
  readonly name: string;
  readonly definition: DefinitionOf[K];
  /** Of the config file it agrees with; a file overwrites it only with a higher one. */
  readonly revision: number;
  readonly updatedAt: Date;
}

interface StoredRow {
  readonly name: string;
  readonly definition: unknown;
  readonly revision: number;
  readonly updated_at: Date;
}

const rateLimitJson = `jsonb_build_object(
  'limit', r."limit", 'per', r.per_seconds, 'algorithm', r.algorithm, 'burst', r.burst, 'slack_ms', r.slack_ms,
  'max_in_flight', r.max_in_flight, 'by_partition', r.by_partition, 'shares_cooldown', r.shares_cooldown,
  'upstreams', to_jsonb(r.upstreams), 'queues', to_jsonb(r.queues))`;

/** Each kind as rows of (name, definition, revision, updated_at). */
const sources: Readonly<Record<DefinitionKind, string>> = {
  upstreams: 'sluice.upstreams',
  queues: 'sluice.queues',
  rate_limits: `(select r.name, ${rateLimitJson} as definition, r.revision, r.updated_at
                   from sluice.rate_limits r where r.deleted_at is null)`,
};

/** Takes the definitions' lock until the transaction ends: claims and intakes in progress are waited for, new ones wait. */
export async function lockDefinitions(client: TransactionClient): Promise<void> {
  await client.query('select pg_advisory_xact_lock($1)', [definitionsLock]);
}

export async function readDefinitionVersion(database: Queryable): Promise<number> {
  const [row] = await database.query<{ version: number }>(
    'select version from sluice.definition_version',
    [],
    'read_definition_version',
    // Before each intake and each claim's calls.
    { withinMs: promptMs },
  );
  return row!.version;
}

/** All definitions, in one statement and so of one moment. */
export async function readDefinitions(database: Queryable): Promise<Definitions> {
  const all = (kind: DefinitionKind) =>
    `(select coalesce(jsonb_object_agg(d.name, d.definition), '{}') from ${sources[kind]} d) as ${kind}`;
  const [row] = await database.query<{ version: number } & Record<DefinitionKind, Record<string, unknown>>>(
    `select v.version, ${all('upstreams')}, ${all('rate_limits')}, ${all('queues')} from sluice.definition_version v`,
  );
  const mapOf = <K extends DefinitionKind>(kind: K): Map<string, DefinitionOf[K]> =>
    new Map(Object.entries(row![kind]).map(([name, stored]) => [name, parse(kind, stored)]));
  return {
    version: row!.version,
    upstreams: mapOf('upstreams'),
    rateLimits: mapOf('rate_limits'),
    queues: mapOf('queues'),
  };
}

export async function readStored<K extends DefinitionKind>(
  database: Queryable,
  kind: K,
  name: string,
): Promise<Stored<K> | undefined> {
  // Also because PostgreSQL cannot even be asked for some texts (NUL).
  if (!definitionNamePattern.test(name)) return undefined;
  const rows = await database.query<StoredRow>(`select d.* from ${sources[kind]} d where d.name = $1`, [name]);
  return rows.map((row) => storedOf(kind, row))[0];
}

/** By name, after `after` (empty: from the first), at most `limit`. */
export async function listStored<K extends DefinitionKind>(
  database: Queryable,
  kind: K,
  after: string,
  limit: number,
): Promise<Stored<K>[]> {
  const rows = await database.query<StoredRow>(
    `select d.* from ${sources[kind]} d where d.name > $1 order by d.name limit $2`,
    [after, limit],
  );
  return rows.map((row) => storedOf(kind, row));
}

/** The highest revision of any definition; what an operator writes gets it, so that no file of that revision undoes it. */
export async function highestRevision(client: TransactionClient): Promise<number> {
  const tables = ['upstreams', 'rate_limits', 'queues'].map(
    (table) => `select max(revision) as revision from sluice.${table}`,
  );
  const [row] = await client.query<{ revision: number }>(
    `select greatest(0, max(t.revision))::int as revision from (${tables.join(' union all ')}) t`,
  );
  return row!.revision;
}

/** Inserts or overwrites; a rate limit that was deleted is back, with the window that it left. */
export async function writeStored<K extends DefinitionKind>(
  client: TransactionClient,
  kind: K,
  name: string,
  definition: DefinitionOf[K],
  revision: number,
): Promise<Stored<K>> {
  if (kind === 'rate_limits') await writeRateLimit(client, name, definition as RateLimit, revision);
  else {
    await client.query(
      `insert into sluice.${kind} (name, definition, revision) values ($1, $2::jsonb, $3)
       on conflict (name) do update
          set definition = excluded.definition, revision = excluded.revision, updated_at = clock_timestamp()`,
      [name, JSON.stringify(definition), revision],
    );
  }
  return (await readStored(client, kind, name))!;
}

async function writeRateLimit(
  client: TransactionClient,
  name: string,
  limit: RateLimit,
  revision: number,
): Promise<void> {
  const columns = {
    '"limit"': limit.limit,
    per_seconds: limit.per,
    algorithm: limit.algorithm,
    burst: limit.burst,
    slack_ms: limit.slack_ms,
    max_in_flight: limit.max_in_flight,
    by_partition: limit.by_partition,
    shares_cooldown: limit.shares_cooldown,
    upstreams: limit.upstreams,
    queues: limit.queues,
    revision,
  };
  const names = Object.keys(columns);
  await client.query(
    `insert into sluice.rate_limits (name, ${names.join(', ')}) values ($1, ${names.map((_, i) => `$${i + 2}`).join(', ')})
     on conflict (name) do update
        set ${names.map((column) => `${column} = excluded.${column}`).join(', ')},
            deleted_at = null, updated_at = clock_timestamp()`,
    [name, ...Object.values(columns)],
  );
}

/** A rate limit stays as a row that covers nothing: its windows count until they are empty. */
export async function removeStored(client: TransactionClient, kind: DefinitionKind, name: string): Promise<void> {
  await client.query(
    kind === 'rate_limits'
      ? 'update sluice.rate_limits set deleted_at = clock_timestamp(), updated_at = clock_timestamp() where name = $1'
      : `delete from sluice.${kind} where name = $1`,
    [name],
  );
}

/** Moves the version on and tells all replicas at commit. Gives the new version. */
export async function announceChange(client: TransactionClient): Promise<number> {
  const [row] = await client.query<{ version: number }>(
    'update sluice.definition_version set version = version + 1 returning version',
  );
  await client.query("select pg_notify('sluice_definitions', ''), pg_notify('sluice_work', '')");
  return row!.version;
}

function storedOf<K extends DefinitionKind>(kind: K, row: StoredRow): Stored<K> {
  return { name: row.name, definition: parse(kind, row.definition), revision: row.revision, updatedAt: row.updated_at };
}

/** Fills in fields that are younger than the row, and leaves out those of a younger version of the service. */
function parse<K extends DefinitionKind>(kind: K, stored: unknown): DefinitionOf[K] {
  return schemas[kind].strip().parse(stored) as DefinitionOf[K];
}
