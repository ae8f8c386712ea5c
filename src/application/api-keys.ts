/**
 * API keys: made, listed and deleted by operators, and held against what a request carries. The text of a key leaves here
 * once, when it is made; nobody can read it afterwards.
 */
import { randomBytes } from 'node:crypto';
import { validate as isUuid, v7 as newId } from 'uuid';
import type { Principal, Scope } from '../domain/access.ts';
import { apiKeyText, hashOfKey, idOfApiKey, isSameHash, secretBytes } from '../domain/api-key.ts';
import { ProblemError } from '../domain/errors.ts';
import {
  insertApiKey,
  readApiKey,
  readKnownKey,
  listApiKeys as readPageOfKeys,
  deleteApiKey as removeApiKey,
  type StoredApiKey,
} from '../postgres/api-keys.ts';
import type { Database } from '../postgres/database.ts';

export interface ApiKeyDependencies {
  readonly database: Database;
}

export interface NewApiKey extends StoredApiKey {
  /** What the client sends; not kept anywhere. */
  readonly key: string;
}

/** Makes a key. @param wish scopes without doubles */
export async function createApiKey(
  { database }: ApiKeyDependencies,
  wish: { readonly name: string; readonly tenant: string; readonly scopes: readonly Scope[] },
): Promise<NewApiKey> {
  const id = newId();
  const key = apiKeyText(id, randomBytes(secretBytes));
  return { ...(await insertApiKey(database, { ...wish, id, hash: hashOfKey(key) })), key };
}

/** Newest first; `next`: pass as `before` for the rest, null where there is none. */
export async function listApiKeys(
  { database }: ApiKeyDependencies,
  { before, limit }: { readonly before: string | null; readonly limit: number },
): Promise<{ readonly items: readonly StoredApiKey[]; readonly next: string | null }> {
  const keys = await readPageOfKeys(database, before, limit + 1);
  if (keys.length <= limit) return { items: keys, next: null };
  const items = keys.slice(0, limit);
  return { items, next: items.at(-1)!.id };
}

/** Throws ProblemError `not_found`. */
export async function getApiKey({ database }: ApiKeyDependencies, id: string): Promise<StoredApiKey> {
  const key = isUuid(id) ? await readApiKey(database, id) : undefined;
  if (key === undefined) throw unknownId();
  return key;
}

/** From its commit on no replica knows the key; requests that are under way finish. Throws ProblemError `not_found`. */
export async function deleteApiKey({ database }: ApiKeyDependencies, id: string): Promise<void> {
  if (!isUuid(id) || !(await removeApiKey(database, id))) throw unknownId();
}

/**
 * Whom a key stands for; null: nobody. What does not look like a key of ours costs the database nothing.
 * Throws DatabaseUnavailableError.
 */
export async function identify({ database }: ApiKeyDependencies, text: string): Promise<Principal | null> {
  const id = idOfApiKey(text);
  const known = id === null ? undefined : await readKnownKey(database, id);
  if (known === undefined || !isSameHash(hashOfKey(text), known.hash)) return null;
  return { tenant: known.tenant, scopes: new Set(known.scopes), key: id };
}

function unknownId(): ProblemError {
  return new ProblemError('not_found', 'there is no API key of this id');
}
