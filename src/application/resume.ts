/**
 * A person says that what a fuse holds may go on: credentials are put right. The jobs are moved in steps; of a very large
 * batch the workers move the rest, as they do where this process dies.
 */
import { ProblemError } from '../domain/errors.ts';
import { findFuseMoves, markResumed, moveBehindFuse } from '../postgres/fuses.ts';
import { type BatchDependencies, type BatchProgress, getBatch, requireBatch } from './batches.ts';

/** Jobs of one transaction. */
export const fuseStepSize = 1_000;
/** Steps that a request waits for: a few seconds. */
const mostSteps = 100;

/**
 * Lets the batch's jobs that a fuse holds go on as they were. To ask again is harmless, and a batch that no fuse holds stays as
 * it is. Throws ProblemError `not_found`, and `conflict` for one that was called off.
 */
export async function resumeBatch(deps: BatchDependencies, tenant: string, batchId: string): Promise<BatchProgress> {
  const { cancelledAt } = await requireBatch(deps.database, tenant, batchId);
  if (cancelledAt !== null) {
    const { status } = await getBatch(deps, tenant, batchId);
    const why =
      'the batch was cancelled, so nothing of it goes on; a job of it can be sent on its way by its own retry';
    throw new ProblemError('conflict', why, { state: status });
  }
  await markResumed(deps.database, batchId);
  const [move] = await findFuseMoves(deps.database, batchId, 1);
  // One that has just been blown again is the workers' to hold.
  if (move?.state === 'resuming') {
    let after: string | null = null;
    for (let step = 0; step < mostSteps; step += 1) {
      ({ after } = await moveBehindFuse(deps.database, move, after, fuseStepSize));
      if (after === null) break;
    }
  }
  return getBatch(deps, tenant, batchId);
}
