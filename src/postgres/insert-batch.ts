/**
 * Intake: all of a batch in one transaction, in a fixed number of statements whatever its size. The order of the steps is the
 * lock order of all intakes: groups (definitions' lock, shared), keys, the batch row, lanes.
 *
 * Invariants: a key is taken and its job is there in the same commit, or neither; of concurrent batches with one key exactly
 * one accepts it, the others wait for its commit and find the key known; keys go in sorted, so that two batches never wait
 * for each other in a ring; verdicts are matched by key, never by the order of rows; a number of `job_seq` is taken only for
 * an accepted item, in their order.
 */
import { v7 as newId } from 'uuid';
import type { Fault } from '../domain/errors.ts';
import type { KeyVerdict } from '../domain/idempotency.ts';
import type { Verdict } from '../domain/job.ts';
import type { BatchVerdict, ItemVerdict, RequestedJob, RequestKey, SubmittedItem } from '../domain/submission.ts';
import type { Database } from './database.ts';
import { type BatchRow, insertBatchRows, type NewJobState, type RowsPlace, writeJobs } from './insert-batch-rows.ts';
import { ensureLaneGroups } from './lane-groups.ts';
import { ensureLanes, laneName } from './lanes.ts';
import { type TakenKeys, takeKeys } from './take-keys.ts';
import { inTransaction, type TransactionClient } from './transaction.ts';

export interface BatchToInsert {
  readonly tenant: string;
  readonly correlationId: string | null;
  readonly requestKey: RequestKey | null;
  /** In order. An item without a job, or with faults, cannot be accepted; with a job it may still be a duplicate. */
  readonly items: readonly SubmittedItem[];
}

export type InsertedBatch =
  | { readonly kind: 'inserted'; readonly batch: BatchVerdict }
  /** Another request took the request key first. Nothing was stored. */
  | { readonly kind: 'request_key_taken' }
  /** A queue or upstream that an acceptable item names is not defined (any more). Nothing was stored. */
  | { readonly kind: 'undefined_lane_group' };

/** Stores the batch and says what became of each item; durable when it returns. */
export async function insertBatch(database: Database, batch: BatchToInsert): Promise<InsertedBatch> {
  try {
    const inserted = await inTransaction(database, (client) => insertAll(client, batch), {
      before: 'intake.before_commit',
      after: 'intake.after_commit',
    });
    return { kind: 'inserted', batch: inserted };
  } catch (error) {
    if (error instanceof NothingStored) return { kind: error.kind as 'request_key_taken' | 'undefined_lane_group' };
    throw error;
  }
}

/** Rolls back. */
export class NothingStored<Kind extends string> extends Error {
  readonly kind: Kind;
  constructor(kind: Kind) {
    super(kind);
    this.kind = kind;
  }
}

async function insertAll(client: TransactionClient, batch: BatchToInsert): Promise<BatchVerdict> {
  const { tenant, correlationId, items } = batch;
  const batchId = newId();
  let createdAt: Date | undefined;
  const place = { batchId, tenant, correlationId, first: 0, lines: null };
  const verdicts = await storeItems(client, place, items, async (decided) => {
    createdAt = await insertBatchRow(client, batchId, batch, decided);
    return false;
  });
  return { batchId, createdAt: createdAt!, correlationId, items: verdicts };
}

/**
 * Takes the items' keys, makes their jobs and stores their rows; all of an intake that is the same for a new batch and for
 * one that grows. Throws NothingStored `undefined_lane_group`.
 * @param writeBatchRow makes the batch's row, or adds these verdicts to its counts; in its place in the lock order. Gives
 *   whether a fuse holds the batch
 */
export async function storeItems(
  client: TransactionClient,
  place: RowsPlace,
  items: readonly SubmittedItem[],
  writeBatchRow: (verdicts: readonly KeyVerdict[]) => Promise<boolean>,
): Promise<ItemVerdict[]> {
  const { tenant, first } = place;
  const groups = await findGroups(client, items);
  const taking = takeKeys(client, tenant, items);
  // While the database is at it: mostly all are accepted that can be.
  const acceptable = writeJobs(items.map(({ job, faults }) => (faults.length === 0 ? job : null)));
  const taken = await taking;
  const held = await writeBatchRow(taken.verdicts);
  const laneIds = await findLanes(client, tenant, items, taken, groups);
  const rows = items.map((item, at) => toRow(item, { at, first }, items, taken, laneIds[at]!));
  const parked = await insertBatchRows(client, place, rows, acceptable, held);
  return rows.map((row, at) => toVerdict(row, first + at, parked));
}

/** Items by verdict. */
export function countVerdicts(verdicts: readonly KeyVerdict[]): Record<Verdict, number> {
  const counts = { accepted: 0, duplicate: 0, conflict: 0, rejected: 0 };
  for (const { verdict } of verdicts) counts[verdict] += 1;
  return counts;
}

async function insertBatchRow(
  client: TransactionClient,
  batchId: string,
  { tenant, correlationId, requestKey }: BatchToInsert,
  verdicts: readonly KeyVerdict[],
): Promise<Date> {
  const counts = countVerdicts(verdicts);
  const [row] = await client.query<{ created_at: Date }>(
    `insert into sluice.batches (id, tenant, correlation_id, request_key, request_fingerprint,
                                 total, accepted, duplicate, conflict, rejected)
     values ($1, $2, $3, $4, decode($5, 'hex'), $6, $7, $8, $9, $10)
         on conflict (tenant, request_key) where request_key is not null do nothing
     returning created_at`,
    [
      batchId,
      tenant,
      correlationId,
      requestKey?.key ?? null,
      requestKey?.fingerprint ?? null,
      verdicts.length,
      counts.accepted,
      counts.duplicate,
      counts.conflict,
      counts.rejected,
    ],
    'insert-batch',
  );
  // A twin that was first: the insert has waited for its commit.
  if (row === undefined) throw new NothingStored('request_key_taken');
  return row.created_at;
}

/** Ids of the groups that acceptable items go to, by queue and upstream. */
async function findGroups(client: TransactionClient, items: readonly SubmittedItem[]): Promise<Map<string, number>> {
  const keys = new Map<string, { queue: string; upstream: string }>();
  let before: RequestedJob | null = null;
  for (const { job, faults } of items) {
    if (job === null || faults.length > 0 || isOfSameLane(job, before)) continue;
    keys.set(groupName(job), { queue: job.queue, upstream: job.upstream });
    before = job;
  }
  if (keys.size === 0) return new Map();
  const ids = await ensureLaneGroups(client, [...keys.values()]);
  return new Map(
    [...keys.keys()].map((name, place) => {
      const id = ids[place];
      if (id === null || id === undefined) throw new NothingStored('undefined_lane_group');
      return [name, id];
    }),
  );
}

/** Asked of neighbours before names are put together: items of a batch mostly share all of these. */
function isOfSameLane(job: RequestedJob, other: RequestedJob | null): boolean {
  return (
    other !== null &&
    job.upstream === other.upstream &&
    job.queue === other.queue &&
    job.partitionKey === other.partitionKey
  );
}

/** Names have no slash. */
function groupName({ queue, upstream }: { readonly queue: string; readonly upstream: string }): string {
  return `${queue}/${upstream}`;
}

/** The lane of each accepted item, made where missing and locked; null for the others. */
async function findLanes(
  client: TransactionClient,
  tenant: string,
  items: readonly SubmittedItem[],
  { verdicts }: TakenKeys,
  groups: ReadonlyMap<string, number>,
): Promise<Array<number | null>> {
  const keys: Array<{ groupId: number; partitionKey: string }> = [];
  const places = new Map<string, number>();
  let before: RequestedJob | null = null;
  let place = 0;
  const placeOf = items.map(({ job }, index) => {
    if (job === null || verdicts[index]!.verdict !== 'accepted') return null;
    if (!isOfSameLane(job, before)) {
      const key = { groupId: groups.get(groupName(job))!, partitionKey: job.partitionKey ?? '' };
      const name = laneName(key);
      place = places.get(name) ?? keys.push(key) - 1;
      places.set(name, place);
    }
    before = job;
    return place;
  });
  if (keys.length === 0) return placeOf;
  const ids = await ensureLanes(client, tenant, keys);
  return placeOf.map((place) => (place === null ? null : ids[place]!));
}

function toRow(
  { key, keySource, faults }: SubmittedItem,
  { at, first }: { readonly at: number; readonly first: number },
  items: readonly SubmittedItem[],
  { verdicts, jobIds }: TakenKeys,
  laneId: number | null,
): BatchRow {
  const decided = verdicts[at]!;
  const { verdict } = decided;
  if (verdict === 'accepted') {
    return {
      key,
      keySource,
      verdict,
      laneId,
      jobId: jobIds[at]!,
      behind: { kind: 'new', job: items[at]!.job! },
      faults,
    };
  }
  const base = { key, keySource, verdict, laneId, jobId: null, behind: null, faults };
  if (verdict === 'rejected') return base;
  const found = { ...base, faults: verdict === 'conflict' ? [reusedKey(first + at)] : [] };
  if ('known' in decided) {
    const { jobId, jobState } = decided.known;
    return { ...found, jobId, behind: { kind: 'stored', state: jobState } };
  }
  return { ...found, jobId: jobIds[decided.first]!, behind: { kind: 'new', job: items[decided.first]!.job! } };
}

/** What a conflict is told. @param index of its item */
export function reusedKey(index: number): Fault {
  return {
    pointer: `/items/${index}/idempotency_key`,
    code: 'idempotency_key_reused',
    message:
      'the key is known with another request; the first job is untouched. Send a changed request under a new key',
  };
}

function toVerdict(row: BatchRow, index: number, parked: ReadonlyMap<string, NewJobState>): ItemVerdict {
  const { key, keySource, verdict, jobId, behind, faults } = row;
  let jobState: ItemVerdict['jobState'] = null;
  if (behind?.kind === 'stored') jobState = behind.state;
  else if (behind !== null) jobState = parked.get(jobId!) ?? 'ready';
  return { index, key, keySource, verdict, jobId, jobState: verdict === 'conflict' ? null : jobState, faults };
}
