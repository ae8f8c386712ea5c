/** What a client follows: how far a batch is, and what became of each of its items. */
import { validate as isUuid } from 'uuid';
import { ProblemError } from '../domain/errors.ts';
import type { JobState, Verdict } from '../domain/job.ts';
import { isEnded } from '../domain/state-machine.ts';
import { countBatchJobs } from '../postgres/count-batch-jobs.ts';
import type { Database } from '../postgres/database.ts';
import {
  type ItemFilter,
  readBatch,
  readBatchItems,
  type StoredBatch,
  type StoredItem,
} from '../postgres/read-batches.ts';
import { type Eta, estimateBatch } from './estimate.ts';

export interface BatchDependencies {
  readonly database: Database;
}

export type BatchStatus = 'incomplete' | 'processing' | 'completed' | 'cancelled';

export interface BatchProgress extends Omit<StoredBatch, 'fuse'> {
  readonly status: BatchStatus;
  /** The answer that keeps jobs of it on hold until it is resumed; null: none does. While there is one, nobody knows when it will be done. */
  readonly heldBy: StoredBatch['fuse'];
  /** Jobs behind the batch by state; those whose rows are gone are in none. */
  readonly jobs: Readonly<Record<JobState, number>>;
  /** Ended jobs out of all, 0 to 1; 1 where there is none. */
  readonly progress: number;
  /** When its last job ended, or it was called off if that was later; null: it still goes on. */
  readonly completedAt: Date | null;
  /** When it is expected to be done; null: it is, or nobody can say. */
  readonly eta: Eta | null;
}

/** Throws a ProblemError `not_found`, also for a batch of another tenant. */
export async function getBatch(
  { database }: BatchDependencies,
  tenant: string,
  batchId: string,
): Promise<BatchProgress> {
  const { fuse, ...batch } = await requireBatch(database, tenant, batchId);
  const jobs = { scheduled: 0, ready: 0, running: 0, succeeded: 0, failed: 0, held: 0, cancelled: 0, expired: 0 };
  let total = 0;
  let ended = 0;
  let active = 0;
  let fused = 0;
  let lastEndedAt = batch.cancelledAt ?? batch.createdAt;
  for (const count of await countBatchJobs(database, batchId)) {
    total += count.count;
    // Retention removes a job only after its end.
    if (count.state === null || isEnded(count.state)) ended += count.count;
    if (count.state !== null) jobs[count.state] += count.count;
    if (count.state !== null && activeStates.has(count.state)) active += count.ownCount;
    fused += count.fusedCount;
    if (count.lastEndedAt !== null && count.lastEndedAt > lastEndedAt) lastEndedAt = count.lastEndedAt;
  }
  const status = batchStatus({
    incomplete: batch.incomplete,
    cancelled: batch.cancelledAt !== null,
    hasUnfinished: ended < total,
    hasOwnActive: active > 0,
  });
  // Held is no end, and a person decides it.
  const canTell = jobs.held === 0 && jobs.scheduled + jobs.ready + jobs.running > 0;
  return {
    ...batch,
    status,
    // What a person has sent on its way by itself, or called off, no fuse holds any longer.
    heldBy: fused > 0 ? fuse : null,
    jobs,
    progress: total === 0 ? 1 : ended / total,
    completedAt: status === 'processing' || status === 'incomplete' ? null : lastEndedAt,
    eta: canTell ? await estimateBatch(database, { tenant, batchId, items: batch.counts.total }) : null,
  };
}

/** States in which a job runs, or will by itself. */
const activeStates: ReadonlySet<JobState> = new Set(['scheduled', 'ready', 'running']);

/**
 * What a batch is, by what is behind it. One that was called off waits only for what it has brought itself and still goes
 * on: a job that is known here as a duplicate is another batch's to end, and one that is held does not go on by itself.
 */
export function batchStatus({
  incomplete,
  cancelled,
  hasUnfinished,
  hasOwnActive,
}: {
  /** It came as a stream that has not been ended. */
  readonly incomplete: boolean;
  readonly cancelled: boolean;
  /** A job behind it has not ended, its duplicates' included. */
  readonly hasUnfinished: boolean;
  /** A job that it has brought runs, or will by itself. */
  readonly hasOwnActive: boolean;
}): BatchStatus {
  if (cancelled) return hasOwnActive ? 'processing' : 'cancelled';
  if (incomplete) return 'incomplete';
  return hasUnfinished ? 'processing' : 'completed';
}

/**
 * A page of items; `next` is the index to go on after, null at the end. Throws a ProblemError `not_found`, also for a batch
 * of another tenant.
 */
export async function listBatchItems(
  { database }: BatchDependencies,
  tenant: string,
  batchId: string,
  filter: ItemFilter,
): Promise<{ readonly items: StoredItem[]; readonly next: number | null }> {
  await requireBatch(database, tenant, batchId);
  // One more than asked for tells whether there is a next page.
  const items = await readBatchItems(database, batchId, { ...filter, limit: filter.limit + 1 });
  const more = items.length > filter.limit;
  if (more) items.pop();
  return { items, next: more ? items.at(-1)!.index : null };
}

/** Items of one statement of an export. */
const exportItems = 1_000;

/**
 * All items that pass the filter, in their order, page by page as they are asked for; pages may be empty. No transaction and no
 * connection is held between them. Throws a ProblemError `not_found`, also for a batch of another tenant.
 */
export async function exportBatchItems(
  { database }: BatchDependencies,
  tenant: string,
  batchId: string,
  filter: Pick<ItemFilter, 'verdict' | 'state'>,
): Promise<AsyncIterable<readonly StoredItem[]>> {
  const { counts } = await requireBatch(database, tenant, batchId);
  return (async function* () {
    for (let after = -1; after < counts.total - 1; after += exportItems) {
      const until = after + exportItems;
      yield await readBatchItems(database, batchId, { ...filter, after, until, limit: exportItems });
    }
  })();
}

/** Its row alone. Throws a ProblemError `not_found`, also for a batch of another tenant. */
export async function requireBatch(database: Database, tenant: string, batchId: string): Promise<StoredBatch> {
  const batch = isUuid(batchId) ? await readBatch(database, tenant, batchId) : null;
  if (batch === null) throw new ProblemError('not_found', `there is no batch ${batchId}`);
  return batch;
}

/** Whether a batch with these items has nothing left to wait for: the status of the answer to its submission. */
export function isCompleted(
  items: ReadonlyArray<{ readonly verdict: Verdict; readonly jobState: JobState | null }>,
): boolean {
  return items.every(
    ({ verdict, jobState }) =>
      verdict === 'conflict' || verdict === 'rejected' || jobState === null || isEnded(jobState),
  );
}
