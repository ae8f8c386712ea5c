/**
 * Stored API keys: their hashes, never the keys. One is read by its id for each request that carries it, with nothing kept in
 * memory, so a key that was deleted is unknown to every replica from that commit on.
 * Index used: api_keys_pkey.
 */
import type { Scope } from '../domain/access.ts';
import { type Database, promptMs } from './database.ts';

export interface StoredApiKey {
  readonly id: string;
  readonly name: string;
  readonly tenant: string;
  readonly scopes: readonly Scope[];
  readonly createdAt: Date;
}

/** What a request needs to know of the key it carries. */
export interface KnownKey extends Pick<StoredApiKey, 'tenant' | 'scopes'> {
  readonly hash: Buffer;
}

const columns = 'k.id, k.name, k.tenant, k.scopes, k.created_at as "createdAt"';

export async function insertApiKey(
  database: Database,
  key: Omit<StoredApiKey, 'createdAt'> & { readonly hash: Buffer },
): Promise<StoredApiKey> {
  const [row] = await database.query<StoredApiKey>(
    `insert into sluice.api_keys as k (id, name, tenant, scopes, hash) values ($1, $2, $3, $4, $5) returning ${columns}`,
    [key.id, key.name, key.tenant, key.scopes, key.hash],
  );
  return row!;
}

/** Throws DatabaseUnavailableError: a key that cannot be looked up is neither known nor unknown. */
export async function readKnownKey(database: Database, id: string): Promise<KnownKey | undefined> {
  const [row] = await database.query<KnownKey>(
    'select k.tenant, k.scopes, k.hash from sluice.api_keys k where k.id = $1',
    [id],
    'read-known-key',
    // Before each request.
    { withinMs: promptMs },
  );
  return row;
}

export async function readApiKey(database: Database, id: string): Promise<StoredApiKey | undefined> {
  const [row] = await database.query<StoredApiKey>(`select ${columns} from sluice.api_keys k where k.id = $1`, [id]);
  return row;
}

/** Newest first (ids ascend with their creation), older than `before` (null: from the newest), at most `limit`. */
export function listApiKeys(database: Database, before: string | null, limit: number): Promise<StoredApiKey[]> {
  return database.query<StoredApiKey>(
    `select ${columns} from sluice.api_keys k where $1::uuid is null or k.id < $1 order by k.id desc limit $2`,
    [before, limit],
  );
}

/** Whether there was one. */
export async function deleteApiKey(database: Database, id: string): Promise<boolean> {
  const rows = await database.query('delete from sluice.api_keys k where k.id = $1 returning k.id', [id]);
  return rows.length > 0;
}
