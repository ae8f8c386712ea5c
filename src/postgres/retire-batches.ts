/**
 * Batches past their retention are deleted with their items and jobs; a batch goes as a whole, once all jobs behind it have
 * ended that long ago. A batch that is too large for one transaction leaves sight first (its row goes), and is cleared away
 * piece by piece afterwards.
 *
 * Invariants: a job goes only after its end, its row locked against whoever would bring it back to life; it stays as long as
 * a batch that is kept has brought it, or has an item that is its duplicate; what its key's receipt needs is kept first.
 * Lock order: done_jobs by id, batches by id (both with SKIP LOCKED), then what nobody else locks.
 */
import { archiveReceipts } from './receipts.ts';
import type { TransactionClient } from './transaction.ts';
import type { Portion } from './walk-batches.ts';

export interface Deleted {
  readonly batches: number;
  readonly jobs: number;
}

/** Deletes those of these (small) batches whose jobs have all ended more than `days` ago. */
export async function retireBatches(
  client: TransactionClient,
  batchIds: readonly string[],
  days: number,
): Promise<Deleted> {
  const behind = await client.query<{ batchId: string; jobId: string }>(
    `select i.batch_id as "batchId", i.job_id as "jobId" from sluice.batch_items i
      where i.batch_id = any ($1::uuid[]) and i.index >= 0 and i.verdict in ('accepted', 'duplicate')`,
    [batchIds],
    'read-jobs-behind',
  );
  const live = await lockEnded(client, [...new Set(behind.map(({ jobId }) => jobId))], days);
  const staying = new Set(behind.filter(({ jobId }) => live.has(jobId)).map(({ batchId }) => batchId));
  const rows = await client.query<{ id: string }>(
    'select b.id from sluice.batches b where b.id = any ($1::uuid[]) order by b.id for update skip locked',
    [batchIds.filter((id) => !staying.has(id))],
    'lock-old-batches',
  );
  const going = rows.map(({ id }) => id);
  if (going.length === 0) return { batches: 0, jobs: 0 };
  const gone = new Set(going);
  const jobIds = new Set(behind.filter(({ batchId }) => gone.has(batchId)).map(({ jobId }) => jobId));
  const jobs = await deleteJobs(client, going, [...jobIds]);
  await client.query('delete from sluice.stored_items where batch_id = any ($1::uuid[])', [going], 'delete-items');
  await client.query('delete from sluice.blown_fuses where batch_id = any ($1::uuid[])', [going], 'delete-fuses');
  await client.query('delete from sluice.batches where id = any ($1::uuid[])', [going], 'delete-batches');
  return { batches: going.length, jobs };
}

/** Whether a job behind this part of a batch is unfinished, or ended less than `days` ago. */
export async function hasLiveJobs(
  client: TransactionClient,
  { ids, from, to }: Portion,
  days: number,
): Promise<boolean> {
  const [row] = await client.query<{ found: boolean }>(
    `select exists (
       select 1 from sluice.batch_items i
         join sluice.jobs j on j.id = i.job_id
         left join sluice.done_jobs d on d.job_id = i.job_id
        where i.batch_id = any ($1::uuid[]) and i.index >= $2 and i.index < $3 and i.verdict in ('accepted', 'duplicate')
          and (d.job_id is null or d.ended_at >= clock_timestamp() - make_interval(secs => $4::float8))) as found`,
    [ids, from, to, days * 86_400],
    'has-live-jobs',
  );
  return row!.found;
}

/** Takes a large batch out of sight, to be cleared away. Gives whether it was there. */
export async function retireLargeBatch(client: TransactionClient, batchId: string): Promise<boolean> {
  const rows = await client.query(
    `with gone as (delete from sluice.batches where id = $1 returning id),
     fuse as (delete from sluice.blown_fuses where batch_id = $1)
     insert into sluice.retired_batches (batch_id) select id from gone returning batch_id`,
    [batchId],
    'retire-large-batch',
  );
  return rows.length === 1;
}

/** Clears away a piece of a batch that has left sight, at most `most` items; null: there is none to clear. */
export async function clearRetiredBatch(
  client: TransactionClient,
  { days, most }: { days: number; most: number },
): Promise<Deleted | null> {
  const [batch] = await client.query<{ id: string; nextIndex: number }>(
    `select r.batch_id as id, r.next_index as "nextIndex" from sluice.retired_batches r
      where r.due_at <= clock_timestamp() order by r.due_at limit 1 for update skip locked`,
    [],
    'next-retired-batch',
  );
  if (batch === undefined) return null;
  const items = await client.query<{ index: number; jobId: string | null }>(
    `select i.index, case when i.verdict in ('accepted', 'duplicate') then i.job_id end as "jobId"
       from sluice.batch_items i where i.batch_id = $1 and i.index >= $2 order by i.index limit $3`,
    [batch.id, batch.nextIndex, most],
    'read-retired-items',
  );
  const jobIds = new Set(items.flatMap(({ jobId }) => jobId ?? []));
  // Ended when the batch left sight; one that was brought back to life since stays until it has ended long ago again.
  const live = await lockEnded(client, [...jobIds], days);
  const jobs = await deleteJobs(
    client,
    [batch.id],
    [...jobIds].filter((id) => !live.has(id)),
  );
  await client.query(
    'delete from sluice.stored_items i where i.batch_id = $1 and i.index = any ($2::int[])',
    [batch.id, items.filter(({ jobId }) => jobId === null || !live.has(jobId)).map(({ index }) => index)],
    'delete-retired-items',
  );
  if (items.length === most) {
    await client.query(
      'update sluice.retired_batches set next_index = $2 where batch_id = $1',
      [batch.id, items.at(-1)!.index + 1],
      'go-on-clearing',
    );
    return { batches: 0, jobs };
  }
  await client.query(
    `with gone as (
       delete from sluice.retired_batches r
        where r.batch_id = $1 and not exists (select 1 from sluice.batch_items i where i.batch_id = $1 and i.index >= 0)
       returning 1)
     update sluice.retired_batches r set next_index = 0, due_at = clock_timestamp() + interval '1 hour'
      where r.batch_id = $1 and not exists (select 1 from gone)`,
    [batch.id],
    'end-clearing',
  );
  return { batches: 0, jobs };
}

/** Locks those that ended more than `days` ago. Gives the others, but for jobs whose rows are gone already. */
async function lockEnded(client: TransactionClient, jobIds: readonly string[], days: number): Promise<Set<string>> {
  const locked = await client.query<{ id: string }>(
    `select d.job_id as id from sluice.done_jobs d
      where d.job_id = any ($1::uuid[]) and d.ended_at < clock_timestamp() - make_interval(secs => $2::float8)
      order by d.job_id for update skip locked`,
    [jobIds, days * 86_400],
    'lock-ended-jobs',
  );
  const ended = new Set(locked.map(({ id }) => id));
  const present = await client.query<{ id: string }>(
    'select j.id from sluice.jobs j where j.id = any ($1::uuid[])',
    [jobIds.filter((id) => !ended.has(id))],
    'find-job-rows',
  );
  return new Set(present.map(({ id }) => id));
}

/** Deletes those of these ended, locked jobs that nothing but these batches, which go, has brought or points to. */
async function deleteJobs(
  client: TransactionClient,
  batchIds: readonly string[],
  jobIds: readonly string[],
): Promise<number> {
  const rows = await client.query<{ id: string }>(
    `select j.id from sluice.jobs j
      where j.id = any ($2::uuid[])
        and (j.batch_id = any ($1::uuid[]) or not exists (select 1 from sluice.batches b where b.id = j.batch_id))
        and not exists (select 1 from sluice.stored_items i
                         where i.job_id = j.id and i.verdict = 'duplicate' and i.batch_id <> all ($1::uuid[]))`,
    [batchIds, jobIds],
    'find-jobs-to-delete',
  );
  const ids = rows.map(({ id }) => id);
  const going = new Set(ids);
  // What stays for another batch is no item of one that goes any more.
  await client.query(
    'update sluice.jobs j set item_index = -1 where j.id = any ($2::uuid[]) and j.batch_id = any ($1::uuid[]) and j.item_index >= 0',
    [batchIds, jobIds.filter((id) => !going.has(id))],
    'forget-items-of-jobs',
  );
  if (rows.length === 0) return 0;
  await archiveReceipts(client, ids);
  for (const table of ['attempts', 'reconciliations', 'done_jobs'] as const) {
    await client.query(`delete from sluice.${table} where job_id = any ($1::uuid[])`, [ids], `delete-${table}-of-jobs`);
  }
  await client.query(
    `with gone as (delete from sluice.jobs where id = any ($1::uuid[]) returning tenant, idempotency_key, id)
     delete from sluice.former_keys f using gone g
      where f.tenant = g.tenant and f.key = g.idempotency_key and f.job_id = g.id`,
    [ids],
    'delete-jobs',
  );
  return ids.length;
}
