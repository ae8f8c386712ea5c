/**
 * How many jobs to claim beyond the slots that are free, so that a slot that frees has its next call at hand while a claim is
 * under way, and claims are few and large. As much as the calls of the last moments would use up within milliseconds: where
 * calls are slow that is nothing, and no other replica is kept from a job.
 */
import type { Clock } from '../system/clock.ts';

/** What a claim brings ahead lasts for so long, in milliseconds, to begin with. */
const usualMs = 30;
/**
 * Calls wait for one another where slots run empty before the next claim is back: their speed is then less than it could be,
 * and what lasts 30 ms at that speed is too little.
 */
const longestMs = 60;
const starvedMs = 2;
/** A start so long after its claim had left is late: the permit (40 ms) is nearly over. */
const lateMs = 33;
const lateStepMs = 1;
/**
 * Jobs whose time ran out while they waited shorten it by so much; those of one claim do so together. Not by more: a few that go
 * back cost less than slots that have nothing to do.
 */
const shrinkBy = 0.85;
const togetherMs = 20;
/** By each claim, back to the usual. */
const driftMs = 0.5;
/** Never more than this, whatever the speed: bounds what a process holds. */
const mostJobs = 512;
/** Fewer are not worth it: calls that end now and then are no speed. */
const fewestJobs = 8;
/** The speed is taken over at least so long, in milliseconds. */
const windowMs = 10;

export class ClaimAhead {
  readonly #clock: Clock;
  #ended = 0;
  #sinceMs: number;
  /** Calls ended per millisecond. */
  #speed = 0;
  #aheadMs = usualMs;
  #shrunkAtMs = Number.NEGATIVE_INFINITY;
  #shortenedAtMs = Number.NEGATIVE_INFINITY;

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

  /** A job that came ahead starts, of a claim that left at `claimedAtMs`. */
  started(claimedAtMs: number): void {
    const now = this.#clock.monotonicMs();
    if (now - claimedAtMs < lateMs || now - this.#shortenedAtMs < togetherMs) return;
    this.#shortenedAtMs = now;
    this.#aheadMs = Math.max(lateStepMs, this.#aheadMs - lateStepMs);
  }

  /** A claim brought jobs. @param starved half of the slots it was for, or more, had been idle, and there is more to be had */
  claimed(starved: boolean): void {
    if (starved) this.#aheadMs = Math.min(longestMs, this.#aheadMs + starvedMs);
    else this.#aheadMs += Math.max(-driftMs, Math.min(driftMs, usualMs - this.#aheadMs));
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
    const jobs = Math.floor(this.#speed * this.#aheadMs);
    return jobs < fewestJobs ? 0 : Math.min(mostJobs, jobs);
  }
}
