/**
 * Batches as they stand: the row, and its items. A reader pays, by primary keys, for the items of the one batch it asks for.
 * Jobs behind a batch are those of its accepted and duplicate items, each once; count-batch-jobs.ts counts them by state.
 * Index used: batch_items_pkey, jobs_batch, and those of job-state.ts.
 */
import type { Fault } from '../domain/errors.ts';
import type { JobState, KeySource, Verdict } from '../domain/job.ts';
import type { Database } from './database.ts';
import { jobRows, type StoredState, stateOfRows } from './job-state.ts';

export interface StoredBatch {
  readonly batchId: string;
  readonly correlationId: string | null;
  readonly createdAt: Date;
  /** When a person called it off; null: nobody has. */
  readonly cancelledAt: Date | null;
  /** It came as a stream that has not been ended: more items may come. */
  readonly incomplete: boolean;
  /** What has blown its fuse, and since when; null: none has, or it was resumed. */
  readonly fuse: { readonly jobId: string; readonly status: number; readonly at: Date } | null;
  /** Items by verdict. */
  readonly counts: Readonly<Record<'total' | Verdict, number>>;
}

/** null: the tenant has no such batch. */
export async function readBatch(database: Database, tenant: string, batchId: string): Promise<StoredBatch | null> {
  const [row] = await database.query<
    {
      correlation_id: string | null;
      created_at: Date;
      cancelled_at: Date | null;
      incomplete: boolean;
      fuse_job_id: string | null;
      fuse_status: number | null;
      fuse_at: Date | null;
    } & Readonly<Record<'total' | Verdict, number>>
  >(
    `select b.correlation_id, b.created_at, b.cancelled_at, b.total, b.accepted, b.duplicate, b.conflict, b.rejected,
            exists (select 1 from sluice.batch_streams s where s.batch_id = b.id) as incomplete,
            f.job_id as fuse_job_id, f.status as fuse_status, f.at as fuse_at
       from sluice.batches b
       left join sluice.blown_fuses f on f.batch_id = b.id and f.state in ('holding', 'held')
      where b.id = $1 and b.tenant = $2`,
    [batchId, tenant],
    'read-batch',
  );
  if (row === undefined) return null;
  const { total, accepted, duplicate, conflict, rejected } = row;
  return {
    batchId,
    correlationId: row.correlation_id,
    createdAt: row.created_at,
    cancelledAt: row.cancelled_at,
    incomplete: row.incomplete,
    fuse: row.fuse_at === null ? null : { jobId: row.fuse_job_id!, status: row.fuse_status!, at: row.fuse_at },
    counts: { total, accepted, duplicate, conflict, rejected },
  };
}

export interface StoredItem {
  readonly index: number;
  readonly key: string | null;
  readonly keySource: KeySource | null;
  readonly verdict: Verdict;
  readonly jobId: string | null;
  /** As it is now; null: there is none, it is a conflict's, or its rows are gone. */
  readonly jobState: StoredState;
  readonly responseStatus: number | null;
  readonly faults: readonly Fault[];
}

export interface ItemFilter {
  readonly verdict: Verdict | null;
  readonly state: JobState | null;
  /** Items after this index; -1: from the start. */
  readonly after: number;
  /** Looks no further than this index; absent: as far as it takes. */
  readonly until?: number;
  readonly limit: number;
}

const lastIndex = 2_147_483_647;

/** The items of a batch in their order, as many as `limit`. */
export async function readBatchItems(
  database: Database,
  batchId: string,
  { verdict, state, after, until = lastIndex, limit }: ItemFilter,
): Promise<StoredItem[]> {
  const rows = await database.query<{
    index: number;
    idempotency_key: string | null;
    key_source: KeySource | null;
    verdict: Verdict;
    job_id: string | null;
    state: StoredState;
    status: number | null;
    errors: string | null;
  }>(
    `select s.* from (
       select i.index, i.idempotency_key, i.key_source, i.verdict, i.job_id, i.errors,
              case when i.verdict <> 'conflict' then ${stateOfRows} end as state,
              case when i.verdict <> 'conflict' then done.status end as status
         from sluice.batch_items i ${jobRows('i.job_id')}
        where i.batch_id = $1 and i.index > $2 and i.index <= $6 and ($3::text is null or i.verdict = $3)) s
      where $4::text is null or s.state = $4
      order by s.index limit $5`,
    [batchId, after, verdict, state, limit, until],
    'read-batch-items',
  );
  return rows.map((row) => ({
    index: row.index,
    key: row.idempotency_key,
    keySource: row.key_source,
    verdict: row.verdict,
    jobId: row.job_id,
    jobState: row.state,
    responseStatus: row.status,
    faults: row.errors === null ? [] : (JSON.parse(row.errors) as Fault[]),
  }));
}
