/**
 * Streams that bring batches: who may add to which, and until when. The hold is a row with an expiry, not a lock of a
 * session, because a session would keep a connection of the pool for as long as a client takes; it dies with its holder, and
 * whoever was too slow finds at its next chunk that it holds no more (append-to-batch.ts).
 *
 * Invariant: a batch is incomplete exactly while it has a row in batch_streams. Lock order: batches, batch_streams.
 */
import { v7 as newId } from 'uuid';
import type { RequestKey } from '../domain/submission.ts';
import type { Database } from './database.ts';
import { inTransaction } from './transaction.ts';

export interface StreamToBegin {
  readonly tenant: string;
  readonly correlationId: string | null;
  readonly requestKey: RequestKey | null;
  /** A UUID of this stream alone. */
  readonly holder: string;
  readonly holdSeconds: number;
}

export type BegunStream =
  /** `stored`: lines that are there already, 0 for a new batch. */
  | { readonly kind: 'held'; readonly batchId: string; readonly stored: number }
  /** The batch has been ended with `stored` lines: they can be answered again, and none added. */
  | { readonly kind: 'ended'; readonly batchId: string; readonly stored: number }
  /** Another stream holds it, for `leftSeconds` at most if it has died. */
  | { readonly kind: 'busy'; readonly batchId: string; readonly leftSeconds: number }
  /** The request key stands for another request. */
  | { readonly kind: 'reused'; readonly batchId: string };

/** Makes the batch of a stream, or takes over the one that its request key stands for. */
export function beginStream(database: Database, stream: StreamToBegin): Promise<BegunStream> {
  const { tenant, correlationId, requestKey, holder, holdSeconds } = stream;
  return inTransaction(database, async (client): Promise<BegunStream> => {
    const [made] = await client.query<{ id: string }>(
      `with made as (
         insert into sluice.batches (id, tenant, correlation_id, request_key, request_fingerprint,
                                     total, accepted, duplicate, conflict, rejected)
         values ($1, $2, $3, $4, decode($5, 'hex'), 0, 0, 0, 0, 0)
             on conflict (tenant, request_key) where request_key is not null do nothing
         returning id)
       insert into sluice.batch_streams (batch_id, holder, held_until)
       select m.id, $6, clock_timestamp() + make_interval(secs => $7::float8) from made m
       returning batch_id as id`,
      [newId(), tenant, correlationId, requestKey?.key ?? null, requestKey?.fingerprint ?? null, holder, holdSeconds],
      'begin-stream',
    );
    if (made !== undefined) return { kind: 'held', batchId: made.id, stored: 0 };
    const [known] = await client.query<{ id: string; fingerprint: string }>(
      `select b.id, encode(b.request_fingerprint, 'hex') as fingerprint
         from sluice.batches b where b.tenant = $1 and b.request_key = $2`,
      [tenant, requestKey!.key],
      'find-stream',
    );
    if (known === undefined) throw new BatchGoneError();
    const batchId = known.id;
    if (known.fingerprint !== requestKey!.fingerprint) return { kind: 'reused', batchId };
    const taken = await client.query(
      `update sluice.batch_streams s
          set holder = $2, held_until = clock_timestamp() + make_interval(secs => $3::float8)
        where s.batch_id = $1 and s.held_until <= clock_timestamp() returning 1`,
      [batchId, holder, holdSeconds],
      'take-stream',
    );
    // Counted only now: the one before may have had a chunk on its way.
    const [batch] = await client.query<{ total: number; left: number | null }>(
      `select b.total, extract(epoch from s.held_until - clock_timestamp())::float8 as left
         from sluice.batches b left join sluice.batch_streams s on s.batch_id = b.id where b.id = $1`,
      [batchId],
      'count-stored-lines',
    );
    if (batch === undefined) throw new BatchGoneError();
    if (taken.length === 1) return { kind: 'held', batchId, stored: batch.total };
    if (batch.left === null) return { kind: 'ended', batchId, stored: batch.total };
    return { kind: 'busy', batchId, leftSeconds: batch.left };
  });
}

/** Holds on while no chunk comes. False: another stream has it, or it is ended. */
export async function renewStream(
  database: Database,
  { batchId, holder, holdSeconds }: { batchId: string; holder: string; holdSeconds: number },
): Promise<boolean> {
  const rows = await database.query(
    `update sluice.batch_streams s set held_until = clock_timestamp() + make_interval(secs => $3::float8)
      where s.batch_id = $1 and s.holder = $2 returning 1`,
    [batchId, holder, holdSeconds],
    'renew-stream',
  );
  return rows.length === 1;
}

/** Lets go, so that whoever resumes it need not wait. */
export async function releaseStream(database: Database, batchId: string, holder: string): Promise<void> {
  await database.query(
    'update sluice.batch_streams s set held_until = clock_timestamp() where s.batch_id = $1 and s.holder = $2',
    [batchId, holder],
    'release-stream',
  );
}

/** All lines are there. False: it was not this stream's to end. */
export async function endStream(database: Database, batchId: string, holder: string): Promise<boolean> {
  const rows = await database.query(
    'delete from sluice.batch_streams s where s.batch_id = $1 and s.holder = $2 returning 1',
    [batchId, holder],
    'end-stream',
  );
  return rows.length === 1;
}

/** Ends a batch as it is, whoever holds it: a stream that still comes finds it ended. No check of the tenant. */
export async function closeStream(database: Database, batchId: string): Promise<void> {
  await database.query('delete from sluice.batch_streams s where s.batch_id = $1', [batchId]);
}

/** Ends streams of which nothing was heard for so long, at most `most` of them; gives how many. */
export async function closeSilentStreams(
  database: Database,
  { silentSeconds, most }: { silentSeconds: number; most: number },
): Promise<number> {
  const closed = await database.query(
    `delete from sluice.batch_streams s
      where s.batch_id in (select o.batch_id from sluice.batch_streams o
                            where o.held_until < clock_timestamp() - make_interval(secs => $1::float8)
                            order by o.held_until limit $2 for update skip locked)
     returning 1`,
    [silentSeconds, most],
  );
  return closed.length;
}

class BatchGoneError extends Error {
  /** SQLSTATE serialization_failure: `inTransaction` runs the work again. */
  readonly code = '40001';
  constructor() {
    super('retention deleted a batch while its stream was begun');
    this.name = 'BatchGoneError';
  }
}
