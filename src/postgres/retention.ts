/**
 * Retention: what ended long ago goes, in rounds of small steps. A step is one short transaction over a bounded number of
 * rows and waits for nobody; a round is over when nothing more is found. One process of the fleet steps at a time.
 *
 * A round walks the batches that are old enough, from where the last one stopped: first for keys, then for the batches
 * themselves. What was too young then, or not ended, is found when the walk begins anew (a new cursor); that is rare, since
 * it reads those batches again.
 * Deletes need no flush of their own: what a crash undoes is deleted again.
 */
import type { Database } from './database.ts';
import { expireKeys, expireReceipts, markKeysGone } from './expire-keys.ts';
import { clearRetiredBatch, hasLiveJobs, retireBatches, retireLargeBatch } from './retire-batches.ts';
import { inTransaction, type TransactionClient } from './transaction.ts';
import { beforeAll, nextPortion, type Place, placeAfter } from './walk-batches.ts';

/** How long things are kept after their end, in days; 0: not at all. */
export interface RetentionPolicy {
  /** Batches, with their items, jobs and attempts. */
  readonly retentionDays: number;
  /** Keys and receipts, whatever happens to the job's rows. */
  readonly keyRetentionDays: number;
}

/** The order within a round; what the walks find last is cleared last. */
const stages = ['keys', 'receipts', 'batches', 'clear'] as const;
type Stage = (typeof stages)[number];

/** Where the rounds stand. */
export interface RetentionCursor {
  stage: Stage;
  keys: Place;
  batches: Place;
}

export function newRetentionCursor(): RetentionCursor {
  return { stage: stages[0], keys: beforeAll, batches: beforeAll };
}

export interface RetentionStep {
  readonly keys: number;
  readonly batches: number;
  readonly jobs: number;
  /** Nothing more to do for now, or another process is at it. */
  readonly roundOver: boolean;
}

/** What a stage did in a transaction; `next` is the cursor once that is committed, `over` that the stage found nothing. */
interface Work {
  readonly keys?: number;
  readonly batches?: number;
  readonly jobs?: number;
  readonly next?: Partial<RetentionCursor>;
  readonly over: boolean;
}

/** A step looks up a bounded number of rows, in tables of any size and whatever the planner believes of them. */
const onlyLookUps = ['seqscan', 'hashjoin', 'mergejoin']
  .map((name) => `set_config('enable_${name}', 'off', true)`)
  .join(', ');

/** Any fixed number; held by the process that steps. */
const stepLock = 7305004;

/** One step over at most `most` items (those of a batch count, not those of a job); moves the cursor on. */
export async function retainOnce(
  database: Database,
  policy: RetentionPolicy,
  cursor: RetentionCursor,
  { most }: { most: number },
): Promise<RetentionStep> {
  const work = await inTransaction(database, async (client) => {
    const [lock] = await client.query<{ got: boolean }>(
      `select pg_try_advisory_xact_lock($1) as got, set_config('synchronous_commit', 'off', true), ${onlyLookUps}`,
      [stepLock],
      'begin-retention-step',
    );
    return lock!.got ? await workOf[cursor.stage](client, policy, cursor, most) : null;
  });
  if (work === null) return { keys: 0, batches: 0, jobs: 0, roundOver: true };
  Object.assign(cursor, work.next);
  const roundOver = work.over && cursor.stage === stages.at(-1);
  if (work.over) cursor.stage = stages[(stages.indexOf(cursor.stage) + 1) % stages.length]!;
  return { keys: work.keys ?? 0, batches: work.batches ?? 0, jobs: work.jobs ?? 0, roundOver };
}

const workOf: Readonly<
  Record<
    Stage,
    (client: TransactionClient, policy: RetentionPolicy, cursor: RetentionCursor, most: number) => Promise<Work>
  >
> = {
  async keys(client, { keyRetentionDays: days }, cursor, most) {
    const portion = await nextPortion(client, cursor.keys, { days, most, withKeysOnly: true });
    if (portion === null) return { over: true };
    const { keys, withKeys } = await expireKeys(client, portion, days);
    const stays = portion.large !== null && (portion.large.stays || withKeys.size > 0);
    if (portion.large !== null && !portion.large.isLast) {
      const large = { id: portion.ids[0]!, index: portion.to, stays };
      return { keys, next: { keys: placeAfter(portion, cursor.keys, large) }, over: false };
    }
    const without = stays ? [] : portion.ids.filter((id) => !withKeys.has(id));
    await markKeysGone(client, without);
    return { keys, next: { keys: placeAfter(portion, cursor.keys) }, over: false };
  },

  async receipts(client, { keyRetentionDays: days }, _cursor, most) {
    const keys = await expireReceipts(client, { days, most });
    return { keys, over: keys < most };
  },

  async batches(client, { retentionDays: days }, cursor, most) {
    const portion = await nextPortion(client, cursor.batches, { days, most, withKeysOnly: false });
    if (portion === null) return { over: true };
    if (portion.large === null) {
      const deleted = await retireBatches(client, portion.ids, days);
      return { ...deleted, next: { batches: placeAfter(portion, cursor.batches) }, over: false };
    }
    const id = portion.ids[0]!;
    if (await hasLiveJobs(client, portion, days)) {
      return { next: { batches: placeAfter(portion, cursor.batches) }, over: false };
    }
    if (!portion.large.isLast) {
      const large = { id, index: portion.to, stays: false };
      return { next: { batches: placeAfter(portion, cursor.batches, large) }, over: false };
    }
    const retired = await retireLargeBatch(client, id);
    return { batches: retired ? 1 : 0, next: { batches: placeAfter(portion, cursor.batches) }, over: false };
  },

  async clear(client, { retentionDays: days }, _cursor, most) {
    const deleted = await clearRetiredBatch(client, { days, most });
    return { jobs: deleted?.jobs ?? 0, over: deleted === null };
  },
};
