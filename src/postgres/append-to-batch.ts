/**
 * A batch that grows: a chunk of a stream, in one transaction, with the same steps and the same lock order as a batch that
 * comes as a whole (insert-batch.ts).
 *
 * Invariants: a chunk is added by the holder of the stream only, right after the last one that is stored, and never to a
 * batch that was called off; the batch's counts move with its items; the hold is renewed in the same commit; of a batch that
 * a fuse holds what comes in is held.
 */
import type { ItemVerdict, SubmittedItem } from '../domain/submission.ts';
import type { Database } from './database.ts';
import { holdsNewItems } from './fuses.ts';
import { countVerdicts, intakeTransaction, NothingStored, storeItems } from './insert-batch.ts';
import { inTransaction } from './transaction.ts';

export interface ChunkToAppend {
  readonly batchId: string;
  readonly tenant: string;
  readonly correlationId: string | null;
  /** As of a whole batch (insert-batch.ts). */
  readonly definitionsVersion: number | null;
  readonly holder: string;
  /** How long the stream is held on from now. */
  readonly holdSeconds: number;
  /** Index of its first item: what the batch has so far. */
  readonly first: number;
  readonly items: readonly SubmittedItem[];
  /** Hex SHA-256 of the line of each item. */
  readonly lines: readonly string[];
}

/** Why nothing was stored. */
export type NotAppended =
  /** Other definitions are in force than those it was checked against, or they do not have a queue or upstream. */
  | 'definitions_changed'
  /** The batch was called off. */
  | 'cancelled'
  /** Another stream holds it, or it is ended. */
  | 'not_held';

export type AppendedChunk =
  | { readonly kind: 'appended'; readonly items: readonly ItemVerdict[] }
  | { readonly kind: NotAppended };

/** Stores the chunk and says what became of each item; durable when it returns. */
export async function appendToBatch(database: Database, chunk: ChunkToAppend): Promise<AppendedChunk> {
  const { batchId, tenant, correlationId, definitionsVersion, first, items, lines } = chunk;
  const place = { batchId, tenant, correlationId, definitionsVersion, first, lines };
  try {
    const stored = await inTransaction(
      database,
      (client) =>
        storeItems(client, place, items, async (verdicts) => {
          const counts = countVerdicts(verdicts);
          const [row] = await client.query<{ cancelled: boolean; grown: boolean }>(
            growText,
            [
              batchId,
              chunk.holder,
              chunk.holdSeconds,
              first,
              verdicts.length,
              counts.accepted,
              counts.duplicate,
              counts.conflict,
              counts.rejected,
            ],
            'grow-batch',
          );
          if (row?.cancelled) throw new NothingStored('cancelled');
          if (!row?.grown) throw new NothingStored('not_held');
          // By a statement that begins under the lock of the batch's row: who moves its jobs waits for that (fuses.ts).
          return holdsNewItems(client, batchId);
        }),
      intakeTransaction,
    );
    return { kind: 'appended', items: stored };
  } catch (error) {
    if (error instanceof NothingStored) return { kind: error.kind as NotAppended };
    throw error;
  }
}

/** The row of the stream before that of the batch; a mark that the batch is cancelled waits for the chunk, or is seen here. */
const growText = `
  with held as (
    update sluice.batch_streams s set held_until = clock_timestamp() + make_interval(secs => $3::float8)
     where s.batch_id = $1 and s.holder = $2
    returning 1),
  grown as (
    update sluice.batches b
       set total = b.total + $5::int, accepted = b.accepted + $6::int, duplicate = b.duplicate + $7::int,
           conflict = b.conflict + $8::int, rejected = b.rejected + $9::int
     where b.id = $1 and b.total = $4::int and (select count(*) from held) = 1
    returning b.cancelled_at)
  select exists (select 1 from grown where cancelled_at is not null) as cancelled, exists (select 1 from grown) as grown`;
