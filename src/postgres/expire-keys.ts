/**
 * Keys past their retention are forgotten, with their receipts: those of jobs that ended that long ago, found by their
 * batches while the jobs' rows are there (expireKeys), by the receipt that was kept once they are not (expireReceipts).
 * A key that goes before its job's rows is kept apart (`former_keys`), so that lists still find the job by it.
 *
 * Invariants: a key goes only where its own job (not a later one under the same key) has ended, and the job's row is locked
 * meanwhile, so that nobody brings it back to life in between; a key of an unfinished job never goes.
 * Lock order: done_jobs, idempotency_keys, batches; all with SKIP LOCKED: what is in use goes another time.
 */
import type { TransactionClient } from './transaction.ts';
import type { Portion } from './walk-batches.ts';

/** SQL: the kept keys behind the items of a portion ($1 batches, items from $2 up to but without $3). */
const keysOfItems = `
  sluice.batches b
  cross join lateral (
    select * from sluice.batch_items x
     where x.batch_id = b.id and x.index >= $2 and x.index < $3 and x.verdict in ('accepted', 'duplicate') offset 0) i
  join sluice.idempotency_keys k on k.tenant = b.tenant and k.key = i.idempotency_key and k.job_id = i.job_id`;

export interface ExpiredKeys {
  readonly keys: number;
  /** The batches of the portion that have keys left there. */
  readonly withKeys: ReadonlySet<string>;
}

/** Forgets the keys behind a portion whose jobs ended more than `days` ago. */
export async function expireKeys(client: TransactionClient, portion: Portion, days: number): Promise<ExpiredKeys> {
  const range = [portion.ids, portion.from, portion.to];
  const gone = await client.query<{ jobId: string }>(
    `with old as materialized (
       select k.tenant, k.key from ${keysOfItems}
         join sluice.done_jobs d on d.job_id = k.job_id
        where b.id = any ($1::uuid[]) and d.ended_at < clock_timestamp() - make_interval(secs => $4::float8)
        order by k.tenant, k.key for update of d, k skip locked),
     gone as (
       delete from sluice.idempotency_keys k using old where k.tenant = old.tenant and k.key = old.key
       returning k.tenant, k.key, k.job_id),
     kept as (
       -- Once more where a person has had the job run again since.
       insert into sluice.former_keys (tenant, key, job_id) select tenant, key, job_id from gone
           on conflict (tenant, key, job_id) do nothing)
     select job_id as "jobId" from gone`,
    [...range, days * 86_400],
    'expire-keys',
  );
  await client.query(
    'delete from sluice.receipts where job_id = any ($1::uuid[])',
    [gone.map(({ jobId }) => jobId)],
    'expire-receipts-of-keys',
  );
  const left = await client.query<{ id: string }>(
    `select distinct b.id from ${keysOfItems} where b.id = any ($1::uuid[])`,
    range,
    'find-keys-left',
  );
  return { keys: gone.length, withKeys: new Set(left.map(({ id }) => id)) };
}

/** Takes batches whose keys are all gone out of the walk that looks for them. */
export async function markKeysGone(client: TransactionClient, batchIds: readonly string[]): Promise<void> {
  await client.query(
    `update sluice.batches b set keys_gone = true
      where b.id in (select o.id from sluice.batches o where o.id = any ($1::uuid[]) order by o.id for update skip locked)`,
    [batchIds],
    'mark-keys-gone',
  );
}

/** Forgets receipts, at most `most`, whose jobs ended more than `days` ago, and the keys under them. Gives how many. */
export async function expireReceipts(
  client: TransactionClient,
  { days, most }: { days: number; most: number },
): Promise<number> {
  const gone = await client.query(
    `with old as materialized (
       select r.job_id from sluice.receipts r
        where r.ended_at < clock_timestamp() - make_interval(secs => $1::float8)
          -- Where the job's own row is still there, it tells.
          and not exists (select 1 from sluice.jobs j where j.id = r.job_id)
        order by r.ended_at limit $2 for update skip locked),
     gone as (
       delete from sluice.receipts r using old where r.job_id = old.job_id
       returning r.tenant, r.idempotency_key, r.job_id),
     keys as (
       delete from sluice.idempotency_keys k using gone g
        where k.tenant = g.tenant and k.key = g.idempotency_key and k.job_id = g.job_id)
     select 1 from gone`,
    [days * 86_400, most],
    'expire-receipts',
  );
  return gone.length;
}
