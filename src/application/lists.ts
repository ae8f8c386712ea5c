/** What a tenant has: its batches and its jobs, newest first, in pages of bounded cost. */

import type { Definitions } from '../domain/definitions.ts';
import { type ListedBatch, listBatches as readPageOfBatches } from '../postgres/list-batches.ts';
import { type JobWalk, type ListedJob, listJobs as readPageOfJobs } from '../postgres/list-jobs.ts';
import { type BatchDependencies, type BatchStatus, batchStatus } from './batches.ts';
import type { JobDependencies } from './jobs.ts';

export interface BatchSummary extends ListedBatch {
  readonly status: BatchStatus;
}

export interface Page<T> {
  /** May be fewer than asked for, even none, though there is a next page. */
  readonly items: readonly T[];
  /** The id to pass as `before` for the rest; null: there is none. */
  readonly next: string | null;
}

/** The batches of a tenant. @param before null: from the newest */
export async function listBatches(
  { database }: BatchDependencies,
  tenant: string,
  { before, limit }: { readonly before: string | null; readonly limit: number },
): Promise<Page<BatchSummary>> {
  const { items, next } = await readPageOfBatches(database, { tenant, before, limit });
  return {
    items: items.map((batch) => ({
      ...batch,
      status: batchStatus({ ...batch, cancelled: batch.cancelledAt !== null }),
    })),
    next,
  };
}

/** The jobs of a tenant that pass the filter. */
export async function listJobs({ database, definitions }: JobDependencies, walk: JobWalk): Promise<Page<ListedJob>> {
  const { items, next } = await readPageOfJobs(database, walk);
  const current = items.length === 0 ? null : await definitions.current();
  return { items: items.map((job) => ({ ...job, maxAttempts: maxAttemptsOf(job, current) })), next };
}

/** The job's, else the upstream's as it is now; null: the upstream is gone. */
function maxAttemptsOf({ maxAttempts, upstream }: ListedJob, definitions: Definitions | null): number | null {
  return maxAttempts ?? definitions?.upstreams.get(upstream)?.retry.max_attempts ?? null;
}
