/**
 * Intake: all of a batch in one transaction, in a fixed number of statements whatever its size, and few round trips: what does
 * not need an answer goes out with what gives it. The order of the steps is the lock order of all intakes: definitions' lock
 * (shared), keys, lanes, groups and lanes that are made; the batch's row before these last, or after the lanes.
 *
 * Invariants: a key is taken and its job is there in the same commit, or neither; of concurrent batches with one key exactly
 * one accepts it, the others wait for its commit and find the key known; keys go in sorted, so that two batches never wait
 * for each other in a ring; verdicts are matched by key, never by the order of rows; a number of `job_seq` is taken only for
 * an accepted item, in their order.
 */
import pg from 'pg';
import { v7 as newId } from 'uuid';
import type { Fault } from '../domain/errors.ts';
import type { KeyVerdict } from '../domain/idempotency.ts';
import type { Verdict } from '../domain/job.ts';
import type { BatchVerdict, ItemVerdict, RequestedJob, SubmittedItem } from '../domain/submission.ts';
import type { Database } from './database.ts';
import {
  type BatchRow,
  type BatchToInsert,
  insertBatchRows,
  type NewJobState,
  type RowsPlace,
  writeJobs,
} from './insert-batch-rows.ts';
import { insertSingle } from './insert-single.ts';
import { type IntakeClaimer, IntakeReservation, type NewJob } from './intake-reservation.ts';
import { groupsUnderLock, intakePoints, openIntake } from './lane-groups.ts';
import { ensureLanes, type LanePath, type LockedLane, laneName, lockLanes } from './lanes.ts';
import { type TakenKeys, takeKeys } from './take-keys.ts';
import { inTransaction, type TransactionClient, type TransactionOptions } from './transaction.ts';

export type InsertedBatch =
  /** `claimed`: the claimer has all jobs that it brought. */
  | { readonly kind: 'inserted'; readonly batch: BatchVerdict; readonly claimed: boolean }
  /** Another request took the request key first. Nothing was stored. */
  | { readonly kind: 'request_key_taken' }
  /** Other definitions are in force than those it was checked against, or they do not have a queue or upstream. Nothing was stored. */
  | { readonly kind: 'definitions_changed' };

/**
 * Stores the batch and says what became of each item; durable when it returns.
 * @param claimer gets the new jobs in the same commit, where nothing is in their way (claim-at-intake.ts)
 */
export async function insertBatch(
  database: Database,
  batch: BatchToInsert,
  claimer?: IntakeClaimer,
): Promise<InsertedBatch> {
  const reservation = new IntakeReservation(claimer);
  try {
    const inserted =
      (await insertSingle(database, batch, reservation)) ??
      (await inTransaction(database, (client) => insertAll(client, batch, reservation), intakeTransaction));
    return { kind: 'inserted', batch: inserted, claimed: await reservation.committed() };
  } catch (error) {
    const nothing = nothingStored(error);
    if (nothing === null) {
      reservation.lost();
      throw error;
    }
    reservation.undone();
    return { kind: nothing };
  }
}

/** Of `storeItems`. */
export const intakeTransaction = {
  opening: openIntake,
  ...intakePoints,
} as const satisfies TransactionOptions;

/** Rolls back. */
export class NothingStored<Kind extends string> extends Error {
  readonly kind: Kind;
  constructor(kind: Kind) {
    super(kind);
    this.kind = kind;
  }
}

async function insertAll(
  client: TransactionClient,
  batch: BatchToInsert,
  reservation: IntakeReservation,
): Promise<BatchVerdict> {
  const { tenant, correlationId, items, definitionsVersion } = batch;
  // A run before this one was rolled back, or it would not be repeated.
  reservation.undone();
  const batchId = newId();
  let creating: Promise<Date> | undefined;
  const place = { batchId, tenant, correlationId, definitionsVersion, first: 0, lines: null };
  const writeBatchRow = (decided: readonly KeyVerdict[]) => {
    creating = insertBatchRow(client, batchId, batch, decided);
    creating.catch(() => undefined);
    return false;
  };
  const storing = storeItems(client, place, items, writeBatchRow, reservation);
  // Where the row is refused, so is all that went out behind it; what is thrown is its own error.
  const verdicts = await storing.catch((error: unknown) =>
    (creating ?? Promise.reject(error)).then(() => Promise.reject(error)),
  );
  return { batchId, createdAt: await creating!, correlationId, items: verdicts };
}

/**
 * Takes the items' keys, makes their jobs and stores their rows; all of an intake that is the same for a new batch and for
 * one that grows. Throws NothingStored `definitions_changed`.
 * @param writeBatchRow makes the batch's row, or adds these verdicts to its counts; in its place in the lock order. Gives
 *   whether a fuse holds the batch; at once where that needs no answer, and then a row that cannot be had must be an error of
 *   the database, since the rest and the COMMIT go out behind it
 * @param reservation made once the new jobs are known; what becomes of it is the caller's to say
 */
export async function storeItems(
  client: TransactionClient,
  place: RowsPlace & Pick<BatchToInsert, 'definitionsVersion'>,
  items: readonly SubmittedItem[],
  writeBatchRow: (verdicts: readonly KeyVerdict[]) => Promise<boolean> | boolean,
  reservation?: IntakeReservation,
): Promise<ItemVerdict[]> {
  const { tenant, first } = place;
  // All of it goes out together, and before the work that needs no answer: most items are accepted, in lanes that are there.
  const grouping = findGroups(client, items, place.definitionsVersion);
  const taking = takeKeys(client, tenant, items);
  const locking = lockLanes(client, tenant, lanesOf(items));
  client.flush();
  const acceptable = writeJobs(items.map(({ job, faults }) => (faults.length === 0 ? job : null)));
  const [{ version, groups }, taken, lanes] = await Promise.all([grouping, taking, locking, client.begun]);
  const writing = writeBatchRow(taken.verdicts);
  const laneIds = await findLanes(client, tenant, items, taken, groups, lanes);
  const held = typeof writing === 'boolean' ? writing : await writing;
  const rows = items.map((item, at) => toRow(item, { at, first }, items, taken, laneIds[at]!));
  const jobs = held ? null : newJobs(rows);
  const workerId = (jobs && reservation?.reserve(jobs, version)) ?? null;
  const { parked, admitted } = await insertBatchRows(client, place, rows, acceptable, held, workerId);
  if (jobs !== null && admitted !== null) reservation?.admit(place, jobs, admitted);
  return rows.map((row, at) => toVerdict(row, first + at, parked));
}

/** null: not each of them makes one. */
function newJobs(rows: readonly BatchRow[]): NewJob[] | null {
  const jobs = rows.flatMap(({ verdict, jobId, laneId, behind }) =>
    verdict === 'accepted' && behind?.kind === 'new' ? [{ jobId: jobId!, laneId, job: behind.job }] : [],
  );
  return jobs.length === rows.length ? jobs : null;
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
  const inserting = client.query<{ created_at: Date }>(
    `insert into sluice.batches (id, tenant, correlation_id, request_key, request_fingerprint,
                                 total, accepted, duplicate, conflict, rejected)
     values ($1, $2, $3, $4, decode($5, 'hex'), $6, $7, $8, $9, $10)
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
  const [row] = await inserting;
  return row!.created_at;
}

/** Why the intake was rolled back; null: for another reason, or nobody knows whether it was. */
function nothingStored(error: unknown): 'request_key_taken' | 'definitions_changed' | null {
  if (error instanceof NothingStored) return error.kind as 'definitions_changed';
  // A twin that was first: the insert has waited for its commit.
  return error instanceof pg.DatabaseError && error.constraint === 'batches_request_key' ? 'request_key_taken' : null;
}

/** Ids of the groups that acceptable items go to, by queue and upstream; and under which definitions. */
async function findGroups(
  client: TransactionClient,
  items: readonly SubmittedItem[],
  checkedVersion: number | null,
): Promise<{ readonly version: number; readonly groups: ReadonlyMap<string, number> }> {
  const keys = new Map<string, { queue: string; upstream: string }>();
  let before: RequestedJob | null = null;
  for (const { job, faults } of items) {
    if (job === null || faults.length > 0 || isOfSameLane(job, before)) continue;
    keys.set(groupName(job), { queue: job.queue, upstream: job.upstream });
    before = job;
  }
  const { version, ids } = await groupsUnderLock(client, [...keys.values()]);
  // Also where all is refused: it may be right under the others.
  if (checkedVersion !== null && version !== checkedVersion) throw new NothingStored('definitions_changed');
  const groups = new Map<string, number>();
  [...keys.keys()].forEach((name, place) => {
    const id = ids[place];
    if (id === null || id === undefined) throw new NothingStored('definitions_changed');
    groups.set(name, id);
  });
  return { version, groups };
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

/** Where acceptable items go. */
function lanesOf(items: readonly SubmittedItem[]): LanePath[] {
  const lanes = new Map<string, LanePath>();
  let before: RequestedJob | null = null;
  for (const { job, faults } of items) {
    if (job === null || faults.length > 0 || isOfSameLane(job, before)) continue;
    const { queue, upstream } = job;
    const partitionKey = job.partitionKey ?? '';
    lanes.set(`${groupName(job)}/${partitionKey}`, { queue, upstream, partitionKey });
    before = job;
  }
  return [...lanes.values()];
}

/** The lane of each accepted item, made where missing and locked; null for the others. */
async function findLanes(
  client: TransactionClient,
  tenant: string,
  items: readonly SubmittedItem[],
  { verdicts }: TakenKeys,
  groups: ReadonlyMap<string, number>,
  locked: readonly LockedLane[],
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
  const known = new Map(locked.map((lane) => [laneName(lane), lane.id]));
  const ids = keys.every((key) => known.has(laneName(key)))
    ? keys.map((key) => known.get(laneName(key))!)
    : await ensureLanes(client, tenant, keys);
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
