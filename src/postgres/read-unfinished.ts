/**
 * Cheap signs that a batch may be done, so that whoever waits for its end need not count its jobs again and again: one job of
 * it that has not ended is as good as all. Index used: primary keys.
 */
import type { Database } from './database.ts';

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
    `select i.job_id as "jobId", i.index from sluice.batch_items i
      where i.batch_id = $1 and i.index < $2 and i.index >= $2 - $3::int and i.verdict in ('accepted', 'duplicate')
        and exists (select 1 from sluice.jobs j where j.id = i.job_id)
        and not exists (select 1 from sluice.done_jobs d where d.job_id = i.job_id)
      order by i.index desc limit 1`,
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
    `select m.* from (
       select u.batch_id as "batchId",
              exists (select 1 from sluice.done_jobs d where d.job_id = u.job_id)
                or not exists (select 1 from sluice.jobs j where j.id = u.job_id) as ended,
              exists (select 1 from sluice.batches b where b.id = u.batch_id and b.cancelled_at is not null) as cancelled
         from unnest($1::uuid[], $2::uuid[]) u (batch_id, job_id)) m
      where m.ended or m.cancelled`,
    [watched.map(({ batchId }) => batchId), watched.map(({ jobId }) => jobId)],
    'find-moved',
  );
}
