/**
 * A person calls off a job, or what a batch has brought: whatever waits ends as cancelled. A call that is under way is not
 * broken off, since nobody could tell what it did; of a batch nothing starts again after it.
 */
import { ProblemError } from '../domain/errors.ts';
import type { JobState } from '../domain/job.ts';
import { isLegalTransition } from '../domain/state-machine.ts';
import { cancelBatchJobs, cancelJobs, markBatchCancelled } from '../postgres/cancel-jobs.ts';
import type { Database } from '../postgres/database.ts';
import { type BatchProgress, getBatch } from './batches.ts';
import { getJob, type JobDependencies, type JobView } from './jobs.ts';

/** A job moves a few times a second at most: whoever looks this often has caught it, or it runs most of the time. */
const mostLooks = 5;
/** Jobs of one transaction. */
const stepSize = 500;

/** Throws ProblemError `not_found`, and `conflict` with the state of a job that runs or has ended. */
export async function cancelJob(deps: JobDependencies, tenant: string, jobId: string): Promise<JobView> {
  for (let looks = 1; ; looks += 1) {
    const job = await getJob(deps, tenant, jobId);
    if (!isLegalTransition(job.state, 'cancelled')) throw notNow(job.state);
    const cancelled = await cancelJobs(deps.database, [jobId]);
    if (cancelled.length > 0) return getJob(deps, tenant, jobId);
    if (looks === mostLooks) throw notNow((await getJob(deps, tenant, jobId)).state);
  }
}

function notNow(state: JobState): ProblemError {
  const why =
    state === 'running'
      ? 'a call for it is under way, and what that does cannot be called off'
      : 'what has ended stays as it is';
  return new ProblemError('conflict', `the job is ${state}: ${why}`, { state });
}

/**
 * Cancels what the batch has brought and waits, in steps; calls under way end by themselves, and then nothing more of it
 * starts. To ask again is harmless, and goes on where a request was broken off. Throws ProblemError `not_found`, and
 * `conflict` where all of it has ended.
 */
export async function cancelBatch(
  { database }: { readonly database: Database },
  tenant: string,
  batchId: string,
): Promise<BatchProgress> {
  const batch = await getBatch({ database }, tenant, batchId);
  if (batch.status === 'completed') {
    throw new ProblemError('conflict', 'the batch is completed: everything in it has ended', { state: batch.status });
  }
  if (batch.status === 'cancelled' || !(await markBatchCancelled(database, tenant, batchId))) return batch;
  let after: string | null = null;
  do {
    after = await cancelBatchJobs(database, batchId, after, stepSize);
  } while (after !== null);
  return getBatch({ database }, tenant, batchId);
}
