/** A person says that no more lines of a stream will come: what is there is the batch. */
import { closeStream } from '../postgres/batch-streams.ts';
import { type BatchDependencies, type BatchProgress, getBatch } from './batches.ts';

/**
 * Ends an incomplete batch, also where a stream is at it: that ends with an error at its next chunk. A batch that is ended
 * stays as it is. Throws ProblemError `not_found`.
 */
export async function closeBatch(deps: BatchDependencies, tenant: string, batchId: string): Promise<BatchProgress> {
  const batch = await getBatch(deps, tenant, batchId);
  if (!batch.incomplete) return batch;
  await closeStream(deps.database, batchId);
  return getBatch(deps, tenant, batchId);
}
