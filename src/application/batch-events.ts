/**
 * What happens to a batch, as events that a client can break off and take up again: where it stands, each job that ends or is
 * held, and the end. Made from the tables when asked, one page at a time, at the pace of who reads; nothing is kept for a
 * client, here or in the database.
 */
import { type EventPosition, eventId, isVisible, startPosition } from '../domain/event-position.ts';
import { DatabaseUnavailableError } from '../postgres/database.ts';
import type { JobEvent } from '../postgres/read-batch-events.ts';
import type { Clock } from '../system/clock.ts';
import { type BatchLook, type Following, isDone } from './batch-watches.ts';
import type { BatchProgress } from './batches.ts';

export type BatchEvent =
  | { readonly kind: 'progress'; readonly id: string; readonly batch: BatchProgress }
  | { readonly kind: 'job'; readonly id: string; readonly job: JobEvent }
  /** The last one. */
  | { readonly kind: 'done'; readonly id: string; readonly batch: BatchProgress };

/** Items looked at by one statement: what a client's memory costs here. */
const pageItems = 1_000;
/** Between two that say how far it is; a little less than between two counts, so that none of these is passed over. */
const progressGapMs = 400;
/** Between two tries while the database is away. */
const outageMs = 1_000;
/** Looking for what is new in a large batch may take no more than a sixth of the time. */
const gapForRound = 5;

/**
 * Events from a position on, in portions; an empty portion says that nothing has happened for `heartbeatMs`. Ends after
 * `done`, or when `signal` aborts. `following` is the caller's to end.
 */
export async function* followBatch(
  { following, clock }: { readonly following: Following; readonly clock: Clock },
  { position: start, heartbeatMs }: { readonly position: EventPosition; readonly heartbeatMs: number },
  signal: AbortSignal,
): AsyncGenerator<readonly BatchEvent[]> {
  let look = await following.now();
  // A position of another database (restored from a dump): nothing in it can be told from here.
  let position = start.from.xmax > look.snapshot.xmax ? startPosition : start;
  let shown = signOf(look.batch);
  let told: string | undefined;
  let nextRoundMs = 0;
  let nextProgressMs = clock.monotonicMs() + progressGapMs;
  yield [{ kind: 'progress', id: eventId(position), batch: look.batch }];
  while (!signal.aborted) {
    const done = isDone(look.batch);
    const startMs = clock.monotonicMs();
    if (done || position.round !== null || (signOf(look.batch) !== told && startMs >= nextRoundMs)) {
      const resumed = position.round !== null;
      try {
        for await (const [events, after] of round(following, position, look, signal)) {
          position = after;
          if (events.length > 0) yield events;
        }
      } catch (error) {
        if (!(error instanceof DatabaseUnavailableError)) throw error;
        await clock.sleep(outageMs, signal);
        yield [];
        continue;
      }
      if (signal.aborted) return;
      const nowMs = clock.monotonicMs();
      nextRoundMs = nowMs + (nowMs - startMs) * gapForRound;
      // What was broken off is told; what has come since is the next round's.
      if (resumed) continue;
      told = signOf(look.batch);
    }
    // Others who wait for the batch make it be counted more often: that is not told. The next count comes by itself.
    if (!done && signOf(look.batch) !== shown && clock.monotonicMs() >= nextProgressMs) {
      shown = signOf(look.batch);
      nextProgressMs = clock.monotonicMs() + progressGapMs;
      yield [{ kind: 'progress', id: eventId(position), batch: look.batch }];
    }
    if (done) {
      yield [{ kind: 'done', id: eventId({ ...position, done: true }), batch: look.batch }];
      return;
    }
    const next = await following.next(look, heartbeatMs, signal);
    if (next === null) yield [];
    else look = next;
  }
}

/** Counts; not the estimate, which moves by itself. */
function signOf({ status, counts, jobs }: BatchProgress): string {
  return JSON.stringify([status, counts.total, jobs]);
}

/** One round, or the rest of one: its events page by page, with the position after each page. */
async function* round(
  following: Following,
  { from, round: broken }: EventPosition,
  look: BatchLook,
  signal: AbortSignal,
): AsyncGenerator<readonly [events: BatchEvent[], after: EventPosition]> {
  const to = broken?.to ?? look.snapshot;
  for (let after = broken?.index ?? -1; after < look.items - 1 && !signal.aborted; after += pageItems) {
    const jobs = await following.page({ after, until: after + pageItems, from, to });
    const fresh = jobs.filter(({ transactions }) => {
      const seenIn = (snapshot: typeof to) => transactions.every((transaction) => isVisible(snapshot, transaction));
      return seenIn(to) && !seenIn(from);
    });
    yield [
      fresh.map((job) => ({
        kind: 'job',
        id: eventId({ from, round: { to, index: job.index }, done: false }),
        job,
      })),
      { from, round: { to, index: after + pageItems }, done: false },
    ];
  }
  if (!signal.aborted) yield [[], { from: to, round: null, done: false }];
}
