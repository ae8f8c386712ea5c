/**
 * Ids of jobs: in the order of acceptance, as far as one process can tell it, so that jobs made together lie together in every
 * index.
 */
import { randomFillSync } from 'node:crypto';
import { v7 as newId } from 'uuid';
import { systemClock } from '../system/clock.ts';

/** Where the counter of ids stands, in the millisecond that it is of. */
let latest = { msecs: 0, seq: 0 };

/**
 * UUIDs of version 7 (RFC 9562 section 5.7), each above all that this process has drawn here before. The randomness of all in
 * one draw: one for each costs as much again as the rest.
 */
export function ascendingIds(count: number): string[] {
  if (count === 0) return [];
  const random = randomFillSync(Buffer.allocUnsafe(16 * count));
  const now = systemClock.wallMs();
  // A new millisecond begins anywhere in 31 of the counter's 32 bits, so that it has room to go up.
  const { msecs, seq } = now > latest.msecs ? { msecs: now, seq: random.readUInt32BE() >>> 1 } : latest;
  latest = { msecs, seq: seq + count };
  return Array.from({ length: count }, (_, nth) =>
    newId({ msecs, seq: seq + nth, random: random.subarray(16 * nth, 16 * (nth + 1)) }),
  );
}
