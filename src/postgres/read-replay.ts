/**
 * The first answer to a batch that was sent under a request key, from its rows. Index used: batches_request_key, then
 * batch_items_pkey. Two statements, only where the key is known.
 */
import type { Fault } from '../domain/errors.ts';
import type { KeySource, Verdict } from '../domain/job.ts';
import type { BatchVerdict } from '../domain/submission.ts';
import type { Database } from './database.ts';
import type { StoredState } from './job-state.ts';

export interface Replay {
  /** Hex SHA-256 of the request that came first. */
  readonly requestFingerprint: string;
  /** Verdicts and job states as they were given then. */
  readonly batch: BatchVerdict;
}

/** null: no batch of this tenant came under this key (or it is no longer kept). */
export async function readReplay(database: Database, tenant: string, requestKey: string): Promise<Replay | null> {
  const [batch] = await database.query<{
    id: string;
    fingerprint: string;
    correlation_id: string | null;
    created_at: Date;
  }>(
    `select b.id, encode(b.request_fingerprint, 'hex') as fingerprint, b.correlation_id, b.created_at
       from sluice.batches b where b.tenant = $1 and b.request_key = $2`,
    [tenant, requestKey],
    'read-replay',
  );
  if (batch === undefined) return null;
  const items = await database.query<{
    index: number;
    idempotency_key: string | null;
    key_source: KeySource | null;
    verdict: Verdict;
    job_id: string | null;
    job_state: StoredState;
    errors: string | null;
  }>(
    `select i.index, i.idempotency_key, i.key_source, i.verdict, i.job_id, i.job_state, i.errors
       from sluice.batch_items i where i.batch_id = $1 order by i.index`,
    [batch.id],
    'read-replay-items',
  );
  return {
    requestFingerprint: batch.fingerprint,
    batch: {
      batchId: batch.id,
      createdAt: batch.created_at,
      correlationId: batch.correlation_id,
      items: items.map((item) => ({
        index: item.index,
        key: item.idempotency_key,
        keySource: item.key_source,
        verdict: item.verdict,
        jobId: item.job_id,
        jobState: item.job_state,
        faults: item.errors === null ? [] : (JSON.parse(item.errors) as Fault[]),
      })),
    },
  };
}
