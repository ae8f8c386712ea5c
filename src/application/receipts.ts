/**
 * Receipts: what became of a key, for whoever has it, and the receiver's own word that the effect was applied. They live as
 * long as the key, which may be longer than the job.
 */
import { ProblemError } from '../domain/errors.ts';
import { keyFault } from '../domain/idempotency.ts';
import { AnswerBody } from '../outbound/answer-body.ts';
import type { Database } from '../postgres/database.ts';
import { putReceipt as storeReceipt } from '../postgres/put-receipt.ts';
import { readReceipts, type StoredReceipt } from '../postgres/receipts.ts';

export interface ReceiptDependencies {
  readonly database: Database;
  /** How long a key is kept after its job's end, in days. */
  readonly keyRetentionDays: number;
}

export interface Receipt extends StoredReceipt {
  /** When the key is forgotten at the earliest; null: its job has not ended. */
  readonly expiresAt: Date | null;
}

const dayMs = 86_400_000;

/** Throws a ProblemError `not_found`, also for a key of another tenant. */
export async function getReceipt(deps: ReceiptDependencies, tenant: string, key: string): Promise<Receipt> {
  const [receipt] = await lookUpReceipts(deps, tenant, [key]);
  if (receipt == null) throw unknownKey(key);
  return receipt;
}

/** In the order of the keys; null: the key is not known. */
export async function lookUpReceipts(
  { database, keyRetentionDays }: ReceiptDependencies,
  tenant: string,
  keys: readonly string[],
): Promise<(Receipt | null)[]> {
  // What cannot be a key is never asked for: PostgreSQL refuses some of it.
  const legal = [...new Set(keys.filter((key) => keyFault(key) === null))];
  if (legal.length === 0) return keys.map(() => null);
  const stored = await readReceipts(database, tenant, legal);
  const byKey = new Map<string, Receipt>();
  for (const receipt of stored) {
    if (receipt === null) continue;
    const { endedAt } = receipt;
    const expiresAt = endedAt === null ? null : new Date(endedAt.getTime() + keyRetentionDays * dayMs);
    byKey.set(receipt.key, { ...receipt, expiresAt });
  }
  return keys.map((key) => byKey.get(key) ?? null);
}

/** What the receiver says about an effect; all of it optional. */
export interface Evidence {
  readonly status?: number | null | undefined;
  /** Text as it is, any other JSON value in its text form. */
  readonly body?: unknown;
  readonly note?: string | null | undefined;
}

/**
 * Ends the unfinished job under the key as succeeded. Throws a ProblemError `not_found` where the key is not known,
 * `conflict` where its job has ended already.
 */
export async function putReceipt(
  deps: ReceiptDependencies,
  tenant: string,
  key: string,
  { status = null, body = null, note = null }: Evidence,
): Promise<Receipt> {
  if (keyFault(key) !== null) throw unknownKey(key);
  const put = await storeReceipt(deps.database, tenant, key, {
    status,
    ...(body === null ? { excerpt: null, truncated: false, sha256: null } : keptOf(body)),
    // PostgreSQL's text has no NUL.
    note: note?.replaceAll('\0', '\ufffd') ?? null,
  });
  if (put.kind === 'unknown_key') throw unknownKey(key);
  if (put.kind === 'ended_before') {
    throw new ProblemError('conflict', `the job ${put.jobId} of this key has ended already: it is ${put.state}`);
  }
  return getReceipt(deps, tenant, key);
}

/** As an answer of an upstream is kept. */
function keptOf(body: unknown) {
  const read = new AnswerBody([]);
  const kept = read.finish(read.add(Buffer.from(typeof body === 'string' ? body : JSON.stringify(body))));
  return { ...kept, sha256: Buffer.from(kept.sha256, 'hex') };
}

function unknownKey(key: string): ProblemError {
  return new ProblemError('not_found', `there is no key ${JSON.stringify(key.slice(0, 255))}`);
}
