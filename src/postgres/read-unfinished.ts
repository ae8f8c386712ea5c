/**
 * Cheap signs that a batch may be done, so that whoever waits for its end need not count its jobs again and again: one job of
 * it that has not ended is as good as all. Index used: primary keys, by look-ups that cannot be turned round into a walk.
 */
import type { Database } from './database.ts';

const onlyLookUps =
  'set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off set jit = off';

export const unfinishedFunctions = {
  name: 'unfinished',
  sql: `
create or replace function sluice.find_unfinished(p_batch uuid, p_below int, p_most int)
returns table (job_id uuid, index int) language plpgsql stable
${onlyLookUps} as $$
#variable_conflict use_column
begin
  return query
    select i.job_id, i.index from sluice.batch_items i
     where i.batch_id = p_batch and i.index < p_below and i.index >= greatest(p_below - p_most, 0) and i.verdict in ('accepted', 'duplicate')
       and (select true from sluice.done_jobs d where d.job_id = i.job_id) is null
       and (select true from sluice.jobs j where j.id = i.job_id)
     order by i.index desc limit 1;
end $$;

create or replace function sluice.find_moved(p_batches uuid[], p_jobs uuid[])
returns table (batch_id uuid, ended boolean, cancelled boolean) language plpgsql stable
${onlyLookUps} as $$
#variable_conflict use_column
begin
  return query
    select m.* from (
      select u.batch_id,
             (select true from sluice.jobs j where j.id = u.job_id) is null
               or (select true from sluice.done_jobs d where d.job_id = u.job_id) is not null as ended,
             (select b.cancelled_at from sluice.batches b where b.id = u.batch_id) is not null as cancelled
        from unnest(p_batches, p_jobs) u (batch_id, job_id)) m
     where m.ended or m.cancelled;
end $$;`,
} as const;

/** A job behind a batch that has not ended, and the place of its item. */
export interface UnfinishedJob {
  readonly jobId: string;
  readonly index: number;
}

/**
 * The last of them below the index `below`, among `most` items; null: there is none among these. Looked for from the end,
 * because what came last mostly ends last.
 */
export async function findUnfinished(
  database: Database,
  batchId: string,
  { below, most }: { readonly below: number; readonly most: number },
): Promise<UnfinishedJob | null> {
  const [row] = await database.query<UnfinishedJob>(
    'select job_id as "jobId", index from sluice.find_unfinished($1::uuid, $2::int, $3::int)',
    [batchId, below, most],
    'find-unfinished',
  );
  return row ?? null;
}

/** A batch whose given job has ended, or that was called off. */
export interface MovedBatch {
  readonly batchId: string;
  readonly ended: boolean;
  readonly cancelled: boolean;
}

/** Those of these batches that have moved. One statement for all. */
export async function findMoved(
  database: Database,
  watched: ReadonlyArray<{ readonly batchId: string; readonly jobId: string }>,
): Promise<MovedBatch[]> {
  return database.query<MovedBatch>(
    'select batch_id as "batchId", ended, cancelled from sluice.find_moved($1::uuid[], $2::uuid[])',
    [watched.map(({ batchId }) => batchId), watched.map(({ jobId }) => jobId)],
    'find-moved',
  );
}
