/**
 * The first answer to a batch that was sent under a request key, and to lines of a stream, from its rows. Index used: batches_request_key, then
 * batch_items_pkey and jobs_batch. Two statements, only where the key is known.
 */
import type { Fault } from '../domain/errors.ts';
import type { KeySource, Verdict } from '../domain/job.ts';
import type { BatchVerdict, ItemVerdict, RequestKey } from '../domain/submission.ts';
import { type Database, promptMs } from './database.ts';
import type { StoredState } from './job-state.ts';

export type Replay =
  /** Verdicts and job states as they were given then. */
  | { readonly kind: 'same'; readonly batch: BatchVerdict }
  /** Another request came under the key first; how many items that had is its own affair. */
  | { readonly kind: 'other'; readonly batchId: string };

/** null: no batch of this tenant came under this key (or it is no longer kept). */
export async function readReplay(database: Database, tenant: string, requestKey: RequestKey): Promise<Replay | null> {
  const [batch] = await database.query<{
    id: string;
    fingerprint: string;
    correlation_id: string | null;
    created_at: Date;
  }>(
    `select b.id, encode(b.request_fingerprint, 'hex') as fingerprint, b.correlation_id, b.created_at
       from sluice.batches b where b.tenant = $1 and b.request_key = $2`,
    [tenant, requestKey.key],
    'read-replay',
    // The first thing that a POST with a key asks for, on any connection of the pool: one that fell silent is told soon.
    { withinMs: promptMs },
  );
  if (batch === undefined) return null;
  if (batch.fingerprint !== requestKey.fingerprint) return { kind: 'other', batchId: batch.id };
  const items = await readVerdicts(database, batch.id, { from: 0, most: null });
  return {
    kind: 'same',
    batch: { batchId: batch.id, createdAt: batch.created_at, correlationId: batch.correlation_id, items },
  };
}

/** As it was given first. */
export interface StoredVerdict extends ItemVerdict {
  /** Hex SHA-256 of the line that brought the item; null: it came in a JSON batch. */
  readonly line: string | null;
}

/** Verdicts of a batch in their order, from the index `from` on; `most` null: all of them. */
export async function readVerdicts(
  database: Database,
  batchId: string,
  { from, most }: { readonly from: number; readonly most: number | null },
): Promise<StoredVerdict[]> {
  const items = await database.query<{
    index: number;
    idempotency_key: string | null;
    key_source: KeySource | null;
    verdict: Verdict;
    job_id: string | null;
    job_state: StoredState;
    errors: string | null;
    line: string | null;
  }>(
    `select i.index, i.idempotency_key, i.key_source, i.verdict, i.job_id, i.job_state, i.errors, encode(i.line, 'hex') as line
       from sluice.batch_items i where i.batch_id = $1 and i.index >= $2 order by i.index limit $3`,
    [batchId, from, most],
    'read-verdicts',
  );
  return items.map((item) => ({
    index: item.index,
    key: item.idempotency_key,
    keySource: item.key_source,
    verdict: item.verdict,
    jobId: item.job_id,
    jobState: item.job_state,
    faults: item.errors === null ? [] : (JSON.parse(item.errors) as Fault[]),
    line: item.line,
  }));
}
