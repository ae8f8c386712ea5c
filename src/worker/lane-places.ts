/**
 * Where the next claim may go on in the lanes that this worker has just claimed from, and where it finds their windows. A claim that starts at the head of a
 * busy lane steps over every row that was taken since vacuum last came, and where a transaction is left open somewhere
 * vacuum takes none of them away.
 * A place is a hint and loses no job: what comes back before it (a retry, a higher priority, a batch that committed late) is
 * found by the next look from the start, and these come at intervals.
 */
import type { Claim, LanePlace, WindowPlace } from '../postgres/claim-jobs.ts';

/** How long places are gone by, in milliseconds: what came back before them waits for so long at most. */
const trustMs = 50;
/** A look from the start that took longer than this steps over many dead rows; it may take a twentieth of the time, up to a limit. */
const dearLookMs = 10;
const dearLookShare = 20;
const longestTrustMs = 5_000;
/** Of windows whose rows are remembered. */
const mostWindows = 100;

export class LanePlaces {
  readonly #places = new Map<number, LanePlace>();
  #windows: readonly WindowPlace[] = [];
  #dear = false;
  #untilMs = Number.NEGATIVE_INFINITY;

  /** For a claim at `nowMs`; empty: it is to look from the start everywhere. */
  at(nowMs: number): readonly LanePlace[] {
    return nowMs < this.#untilMs ? [...this.#places.values()] : [];
  }

  /**
   * For a claim at `nowMs`, where looks by name have become dear. Elsewhere a look by name is as good, and clears old versions
   * of the row away. Rows move with each change, wherever it is made: an old place is only further from where the row is.
   */
  windowsAt(nowMs: number): readonly WindowPlace[] {
    return this.#dear && nowMs < this.#untilMs ? this.#windows : [];
  }

  /** For how long the places are gone by yet, in milliseconds. */
  trustedForMs(nowMs: number): number {
    return Math.max(0, this.#untilMs - nowMs);
  }

  /** What a claim gave that was made with the places `from`, and is back at `nowMs`. */
  claimed(from: readonly LanePlace[], { places, windows, lookMs }: Claim, nowMs: number): void {
    if (from.length === 0) {
      this.#places.clear();
      // As the database measured it: the claim itself may have waited for a lock, a connection or a process that stood still.
      this.#dear = lookMs >= dearLookMs;
      this.#untilMs = nowMs + (this.#dear ? Math.min(longestTrustMs, lookMs * dearLookShare) : trustMs);
    }
    for (const place of places) this.#places.set(place.laneId, place);
    this.#windows = windows.slice(-mostWindows);
  }

  /** Nothing is known any more: a claim failed. */
  clear(): void {
    this.forget();
    this.#windows = [];
  }

  /** Work came, perhaps before a place. Where looks from the start are dear it has to wait for the next one. */
  workCame(): void {
    if (!this.#dear) this.forget();
  }

  /** A job of ours goes back to its place, or may: the next claim is to find it. */
  forget(): void {
    this.#untilMs = Number.NEGATIVE_INFINITY;
  }
}
