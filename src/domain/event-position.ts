/**
 * How far a follower of a batch has been told, as the id of an event: a snapshot of the database (its transactions that had
 * committed), so that what commits late, after others that began after it, is neither missed nor told twice. It means the same
 * in every replica and after a restart.
 *
 * A round tells, in the order of the items, what a newer snapshot has and an older one has not; broken off in its middle, its
 * position is both snapshots and the last item told.
 */

/** Text as PostgreSQL has it (`xmin:xmax:xip,…`), read. Numbers of transactions are safe integers. */
export interface Snapshot {
  /** Everything below has ended. */
  readonly xmin: number;
  /** Nothing from here on had begun. */
  readonly xmax: number;
  /** Between the two, what had not ended. */
  readonly open: readonly number[];
}

export interface EventPosition {
  /** What had committed here is told. */
  readonly from: Snapshot;
  /** The round that was broken off; null: none is. */
  readonly round: { readonly to: Snapshot; readonly index: number } | null;
  /** The end of the batch is told as well. */
  readonly done: boolean;
}

/** Nothing is told yet. */
export const startPosition: EventPosition = { from: { xmin: 1, xmax: 1, open: [] }, round: null, done: false };

/** Whether what a transaction wrote can be seen in a snapshot. */
export function isVisible({ xmin, xmax, open }: Snapshot, transaction: number): boolean {
  return transaction < xmin || (transaction < xmax && !open.includes(transaction));
}

/** Throws a RangeError for what is no snapshot; PostgreSQL gives none such. */
export function parseSnapshot(text: string): Snapshot {
  const snapshot = snapshotOf(text);
  if (snapshot === null) throw new RangeError(`no snapshot of transactions: ${text}`);
  return snapshot;
}

function snapshotOf(text: string): Snapshot | null {
  const match = /^(\d{1,16}):(\d{1,16}):((?:\d{1,16}(?:,\d{1,16})*)?)$/.exec(text);
  if (match === null) return null;
  const [, xmin, xmax, open] = match;
  const snapshot = {
    xmin: Number(xmin),
    xmax: Number(xmax),
    open: open === '' ? [] : open!.split(',').map(Number),
  };
  const safe = [snapshot.xmin, snapshot.xmax, ...snapshot.open].every(Number.isSafeInteger);
  return safe && snapshot.xmin <= snapshot.xmax ? snapshot : null;
}

function textOf({ xmin, xmax, open }: Snapshot): string {
  return `${xmin}:${xmax}:${open.join(',')}`;
}

const endMark = '~done';

export function eventId({ from, round, done }: EventPosition): string {
  const middle = round === null ? '' : `~${textOf(round.to)}~${round.index}`;
  return `${textOf(from)}${middle}${done ? endMark : ''}`;
}

/** null: not an id that `eventId` gives. */
export function parseEventId(id: string): EventPosition | null {
  const done = id.endsWith(endMark);
  const [first = '', to, index, ...rest] = (done ? id.slice(0, -endMark.length) : id).split('~');
  const from = snapshotOf(first);
  if (from === null || rest.length > 0) return null;
  if (to === undefined) return { from, round: null, done };
  const upTo = snapshotOf(to);
  if (upTo === null || done || index === undefined || !/^\d{1,10}$/.test(index)) return null;
  return { from, round: { to: upTo, index: Number(index) }, done };
}
