/**
 * How many jobs to claim beyond the slots that are free, so that a slot that frees has its next call at hand while a claim is
 * under way, and claims are few and large. As much as the calls of the last moments would use up within milliseconds: where
 * calls are slow that is nothing, and no other replica is kept from a job.
 */
import type { Clock } from '../system/clock.ts';

/** What a claim may bring ahead lasts for so long, in milliseconds: the permits of what it brings run meanwhile. */
const longestMs = 20;
/** After jobs whose time ran out while they waited (those of one claim do so together), and how it grows again with each claim. */
const shrinkBy = 0.5;
const togetherMs = 20;
const growMs = 0.25;
/** Never more than this, whatever the speed: bounds what a process holds. */
const mostJobs = 512;
/** The speed is taken over at least so long, in milliseconds. */
const windowMs = 10;

export class ClaimAhead {
  readonly #clock: Clock;
  #ended = 0;
  #sinceMs: number;
  /** Calls ended per millisecond. */
  #speed = 0;
  #aheadMs = longestMs;
  #shrunkAtMs = Number.NEGATIVE_INFINITY;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#sinceMs = clock.monotonicMs();
  }

  /** A call ended. */
  ended(): void {
    this.#ended += 1;
  }

  /** A job's time ran out while it waited for its slot, or for its connection. */
  expired(): void {
    const now = this.#clock.monotonicMs();
    if (now - this.#shrunkAtMs < togetherMs) return;
    this.#shrunkAtMs = now;
    this.#aheadMs *= shrinkBy;
  }

  /** A claim brought jobs. */
  claimed(): void {
    this.#aheadMs = Math.min(longestMs, this.#aheadMs + growMs);
  }

  /** How many jobs should be at hand beyond those that are being called, now. */
  target(): number {
    const now = this.#clock.monotonicMs();
    const passedMs = now - this.#sinceMs;
    if (passedMs >= windowMs) {
      // The mean of this moment and the ones before, these counting half: a pause of some moments brings it down to nothing.
      this.#speed = (this.#speed * windowMs + this.#ended) / (windowMs + passedMs);
      this.#ended = 0;
      this.#sinceMs = now;
    }
    return Math.min(mostJobs, Math.floor(this.#speed * this.#aheadMs));
  }
}
