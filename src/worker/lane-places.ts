/**
 * Where the next claim may go on in the lanes that this worker has just claimed from. A claim that starts at the head of a
 * busy lane steps over every row that was taken since vacuum last came, and where a transaction is left open somewhere
 * vacuum takes none of them away.
 * A place is a hint and loses no job: what comes back before it (a retry, a higher priority, a batch that committed late) is
 * found by the next look from the start, and these come at intervals.
 */
import type { LanePlace } from '../postgres/claim-jobs.ts';

/** How long places are gone by, in milliseconds: what came back before them waits for so long at most. */
const trustMs = 50;
/** A look from the start that took longer than this steps over many dead rows; it may take a twentieth of the time. */
const dearLookMs = 10;
const dearLookShare = 20;

export class LanePlaces {
  readonly #places = new Map<number, LanePlace>();
  #untilMs = Number.NEGATIVE_INFINITY;

  /** For a claim at `nowMs`; empty: it is to look from the start everywhere. */
  at(nowMs: number): readonly LanePlace[] {
    return nowMs < this.#untilMs ? [...this.#places.values()] : [];
  }

  /** For how long the places are gone by yet, in milliseconds. */
  trustedForMs(nowMs: number): number {
    return Math.max(0, this.#untilMs - nowMs);
  }

  /** What a claim gave that was made with the places `from`; it left at `startedAtMs` and was back at `endedAtMs`. */
  claimed(from: readonly LanePlace[], places: readonly LanePlace[], startedAtMs: number, endedAtMs: number): void {
    if (from.length === 0) {
      this.#places.clear();
      const tookMs = endedAtMs - startedAtMs;
      this.#untilMs = endedAtMs + (tookMs < dearLookMs ? trustMs : Math.max(trustMs, tookMs * dearLookShare));
    }
    for (const place of places) this.#places.set(place.laneId, place);
  }

  /** A job of ours goes back to its place, or may: the next claim is to find it. */
  forget(): void {
    this.#untilMs = Number.NEGATIVE_INFINITY;
  }
}
