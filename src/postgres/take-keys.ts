/**
 * Which keys of a batch are new, and what the store knows of the others. Whoever inserts a key first has it; a concurrent
 * batch with the same key waits for that commit and then finds it known, so of equal posts exactly one is accepted. Keys go
 * in sorted: two batches that share several keys never wait for each other in a ring.
 * Index used: idempotency_keys_pkey. At most two statements.
 */
import { firstOfEachKey, type KeyVerdict, type KnownKey, keyVerdicts } from '../domain/idempotency.ts';
import type { SubmittedItem } from '../domain/submission.ts';
import { arrayLiteral } from './array-literal.ts';
import { ascendingIds } from './ascending-ids.ts';
import { digestArray, uuidArray } from './binary-array.ts';
import { jobRows, type StoredState, stateOfRows } from './job-state.ts';
import { ofThisIntake } from './lane-groups.ts';
import type { TransactionClient } from './transaction.ts';

/** A verdict per item, and the ids of the jobs to make (null where none is to be made). */
export interface TakenKeys {
  readonly verdicts: readonly KeyVerdict[];
  readonly jobIds: ReadonlyArray<string | null>;
}

/**
 * Takes the keys of all items that can be accepted, for new jobs, in a transaction with `openIntake`. Nothing else may be stored under them before the
 * transaction ends. The first statement is on its way when this returns its promise.
 */
export async function takeKeys(
  client: TransactionClient,
  tenant: string,
  items: readonly SubmittedItem[],
): Promise<TakenKeys> {
  const keyed = items.map(({ job, faults }) =>
    job === null ? null : { key: job.key, fingerprint: job.fingerprint, acceptable: faults.length === 0 },
  );
  const jobIds: Array<string | null> = items.map(() => null);
  const firstOf = firstOfEachKey(keyed);
  const ids = ascendingIds(firstOf.size);
  [...firstOf.values()].forEach((position, nth) => {
    jobIds[position] = ids[nth]!;
  });
  const keys = [...firstOf.keys()].sort();
  const positions = keys.map((key) => firstOf.get(key)!);
  const taken = await insertNewKeys(client, tenant, {
    keys,
    fingerprints: positions.map((position) => keyed[position]!.fingerprint),
    jobIds: positions.map((position) => jobIds[position]!),
  });
  if (taken === items.length) return { verdicts: items.map(() => accepted), jobIds };
  const onlyAsked = keyed.flatMap((item) => (item === null || firstOf.has(item.key) ? [] : [item.key]));
  if (taken === keys.length && onlyAsked.length === 0) {
    return { verdicts: keyVerdicts(keyed, new Map()), jobIds };
  }

  const known = await readKnownKeys(client, tenant, [
    ...keys.map((key, nth) => [key, jobIds[positions[nth]!]!] as const),
    ...[...new Set(onlyAsked)].map((key) => [key, null] as const),
  ]);
  const knownFirsts = keys.filter((key) => known.has(key)).length;
  if (taken + knownFirsts < keys.length) throw new KeyForgottenError();
  return { verdicts: keyVerdicts(keyed, known), jobIds };
}

/** Most items are their key's first, and it is new. */
const accepted: KeyVerdict = { verdict: 'accepted' };

/** How many of the keys were new. A key that another transaction has just put in is waited for. */
async function insertNewKeys(
  client: TransactionClient,
  tenant: string,
  { keys, fingerprints, jobIds }: Readonly<Record<'keys' | 'fingerprints' | 'jobIds', readonly string[]>>,
): Promise<number> {
  if (keys.length === 0) return 0;
  const [row] = await client.query<{ taken: number }>(
    `with taken as (
       insert into sluice.idempotency_keys (tenant, key, fingerprint, job_id)
       select $1, u.key, u.fingerprint, u.job_id
         from unnest($2::text[], $3::bytea[], $4::uuid[]) u (key, fingerprint, job_id)
        where ${ofThisIntake}
           on conflict (tenant, key) do nothing returning 1)
     select count(*)::int as taken from taken`,
    [tenant, arrayLiteral(keys), digestArray(fingerprints), uuidArray(jobIds)],
    'take-keys',
  );
  return row!.taken;
}

/** Those of the keys that belong to another job than the one given with them (null: to any). */
export async function readKnownKeys(
  client: Pick<TransactionClient, 'query'>,
  tenant: string,
  keys: ReadonlyArray<readonly [key: string, ownJobId: string | null]>,
): Promise<Map<string, KnownKey>> {
  const rows = await client.query<{ key: string; fingerprint: string; job_id: string; state: StoredState }>(
    // The receipt knows it where the job's rows went before the key.
    `select k.key, encode(k.fingerprint, 'hex') as fingerprint, k.job_id, coalesce(${stateOfRows}, receipt.state) as state
       from unnest($2::text[], $3::uuid[]) u (key, job_id)
       join sluice.idempotency_keys k on k.tenant = $1 and k.key = u.key
       ${jobRows('k.job_id')}
       left join sluice.receipts receipt on job.id is null and receipt.job_id = k.job_id
      where k.job_id is distinct from u.job_id`,
    [tenant, arrayLiteral(keys.map(([key]) => key)), arrayLiteral(keys.map(([, jobId]) => jobId))],
    'read-known-keys',
  );
  return new Map(
    rows.map(({ key, fingerprint, job_id: jobId, state: jobState }) => [key, { fingerprint, jobId, jobState }]),
  );
}

class KeyForgottenError extends Error {
  /** SQLSTATE serialization_failure: `inTransaction` runs the work again. */
  readonly code = '40001';
  constructor() {
    super('a key expired between two statements of an intake');
    this.name = 'KeyForgottenError';
  }
}
