/**
 * Asks for jobs whenever there are free slots and something could be had: when a slot frees, when the next lane opens (the
 * claim says when), on a notification, and at a bounded interval as the truth behind all of these.
 * One claim at a time per process, apart from those of its intakes (intake-claims.ts). A claim whose answer was lost may have leased jobs nobody here knows of, or may do so yet:
 * before the next one, and for a while after, what the database holds in our name is compared with what we hold, and the
 * rest goes back untouched.
 */

import { type Claim, claimJobs } from '../postgres/claim-jobs.ts';
import { type Database, DatabaseUnavailableError, patientMs, ranOutOfTime } from '../postgres/database.ts';
import { readReadyBehind } from '../postgres/ready-behind.ts';
import type { Clock } from '../system/clock.ts';
import type { Logger } from '../system/logger.ts';
import { WakeSignal } from '../system/wake-signal.ts';
import { LanePlaces } from './lane-places.ts';

/** Longest sleep when nothing tells otherwise; a notification that was lost costs no more than this. */
const pollMs = 5_000;
/** Another claimer holds what we want: about one claim's time. */
const busyMs = 2;
const longestPauseMs = 1_000;
/** The server gives up any statement by then, so a claim that has not been made by then never will be. */
const doubtMs = 40_000;
/** Between two looks for what a lost claim may have leased, while it may. */
const doubtPauseMs = 1_000;
/** Jobs that a look behind the places brings at most, of all lanes together, or one of each. */
const mostBehind = 500;

export interface ClaimLoopOptions {
  readonly database: Database;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly workerId: string;
  /** What a claim may bring now: for calls that can start at once, and beyond these. Nothing of either: no claim. */
  readonly demand: () => { readonly slots: number; readonly ahead: number };
  /** Takes the jobs of a claim; must not wait for them. `startedAtMs`, `startedWallMs`: before the claim query left. */
  readonly onClaim: (claim: Claim, startedAtMs: number, startedWallMs: number) => Promise<void>;
  readonly onLeaseLost: () => void;
  /** Gives back what is leased in our name and not known here. */
  readonly reconcile: () => Promise<void>;
}

export class ClaimLoop {
  readonly #options: ClaimLoopOptions;
  readonly #wake: WakeSignal;
  #stopped = false;
  #failures = 0;
  #failingSinceMs: number | null = null;
  /** The last claim left something behind for want of slots. */
  #hungry = true;
  /** Claims in a row whose time ran out. */
  #outOfTime = 0;
  /** Until when a lost claim may yet be made, and when to look for that next; null: a look since then has settled it. */
  #doubtUntilMs = 0;
  #nextLookMs: number | null = null;
  /** Until then the next claim would find nothing, for all that is known. */
  #restsUntilMs = Number.NEGATIVE_INFINITY;
  readonly #places = new LanePlaces();
  #loop: Promise<void> | undefined;
  #look: Promise<void> | undefined;

  constructor(options: ClaimLoopOptions) {
    this.#options = options;
    this.#wake = new WakeSignal(options.clock);
  }

  /** For how long claims have failed without a break, in milliseconds; null: the last one worked. */
  get failingForMs(): number | null {
    return this.#failingSinceMs === null ? null : this.#options.clock.monotonicMs() - this.#failingSinceMs;
  }

  /**
   * The last claim took all that it found, and no work has been heard of since: a job leased to this worker now overtakes none that
   * waits, but for what a poll would find. False while a claim is in doubt.
   */
  get atRest(): boolean {
    return this.#nextLookMs === null && this.#options.clock.monotonicMs() < this.#restsUntilMs;
  }

  start(): void {
    this.#loop = this.#run();
  }

  /** There may be work: a notification, or a job of this worker that went back to its lane. */
  wake(): void {
    this.#places.workCame();
    this.#hungry = true;
    this.#wakeUp();
  }

  /** A slot became free: worth a claim only if the last one was short of slots. */
  slotFreed(): void {
    if (!this.#hungry) return;
    const { slots, ahead } = this.#options.demand();
    if (slots + ahead > 0) this.#wakeUp();
  }

  /** Jobs may have been leased in our name of which nobody here will hear. */
  doubt(): void {
    this.#doubt(this.#options.clock.monotonicMs());
    this.#wakeUp();
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#wake.set();
    await this.#loop;
    await this.#look;
  }

  #wakeUp(): void {
    this.#restsUntilMs = Number.NEGATIVE_INFINITY;
    this.#wake.set();
  }

  #doubt(nowMs: number): void {
    this.#nextLookMs = nowMs;
    this.#doubtUntilMs = nowMs + doubtMs;
  }

  async #run(): Promise<void> {
    const { demand, logger } = this.#options;
    while (!this.#stopped) {
      this.#restsUntilMs = Number.NEGATIVE_INFINITY;
      const { slots, ahead } = demand();
      if (slots + ahead <= 0) {
        // It is owed to the next one that frees.
        this.#hungry = true;
        await this.#wake.wait(pollMs);
        continue;
      }
      let pauseMs: number;
      try {
        pauseMs = await this.#claim(slots, ahead);
        this.#failures = 0;
        this.#outOfTime = 0;
        this.#failingSinceMs = null;
      } catch (err) {
        this.#failures += 1;
        this.#places.clear();
        if (ranOutOfTime(err)) this.#outOfTime += 1;
        const now = this.#options.clock.monotonicMs();
        this.#failingSinceMs ??= now;
        this.#doubt(now);
        const level = err instanceof DatabaseUnavailableError ? 'warn' : 'error';
        logger[level]({ err, failures: this.#failures }, 'a claim failed');
        pauseMs = Math.min(longestPauseMs, 20 * 2 ** Math.min(this.#failures, 8)) * (0.5 + Math.random() / 2);
      }
      if (pauseMs > 0 && !this.#stopped) await this.#wake.wait(pauseMs);
    }
  }

  /** Gives how long to sleep. */
  async #claim(slots: number, ahead: number): Promise<number> {
    const { clock, database, workerId, onClaim, onLeaseLost } = this.#options;
    await this.#lookForLostClaims();
    const startedAtMs = clock.monotonicMs();
    const startedWallMs = clock.wallMs();
    this.#hungry = false;
    const places = this.#places.at(startedAtMs);
    const withinMs = patientMs(this.#outOfTime);
    const claim = await claimJobs(database, workerId, slots, { ahead, ...places, withinMs });
    const claimedAtMs = clock.monotonicMs();
    if (claim.leaseLost) {
      onLeaseLost();
      return longestPauseMs;
    }
    this.#places.claimed(places, claim, claimedAtMs);
    this.#lookBehind();
    // Without a free slot it cannot know what there was for one.
    this.#hungry ||= claim.more || slots === 0 || claim.jobs.length >= slots;
    if (claim.jobs.length > 0) await onClaim(claim, startedAtMs, startedWallMs);
    if (claim.more && slots > 0) return 0;
    if (claim.busy) return busyMs * (0.5 + Math.random());
    const next = claim.nextInMs ?? Number.POSITIVE_INFINITY;
    // What is open already and was not had is a rival's for a moment, or for those who have a slot.
    if (next <= 0) return slots > 0 ? busyMs * (0.5 + Math.random()) : pollMs;
    const trustedMs = claim.lingers ? this.#places.trustedForMs(clock.monotonicMs()) : Number.POSITIVE_INFINITY;
    // No longer than to the next poll: what falls due elsewhere is told to nobody.
    if (!this.#hungry && !this.#wake.isSet) this.#restsUntilMs = claimedAtMs + Math.min(next, trustedMs, pollMs);
    const pollsMs = this.#nextLookMs === null ? pollMs * (0.8 + 0.4 * Math.random()) : doubtPauseMs;
    return Math.min(next + 0.5, trustedMs + 0.5, pollsMs);
  }

  /** Beside the claims, which go on meanwhile. */
  #lookBehind(): void {
    const { clock, database, logger } = this.#options;
    const startedMs = clock.monotonicMs();
    const places = this.#places.dueLook(startedMs);
    if (places === null) return;
    const read = async () => {
      const most = Math.max(1, Math.floor(mostBehind / Math.max(1, places.length)));
      const found = await readReadyBehind(database, places, most).catch((err: unknown) => {
        logger.warn(
          { err },
          'jobs before the places where claims go on could not be looked for; they are looked for later',
        );
        return null;
      });
      const now = clock.monotonicMs();
      this.#places.looked(found, now - startedMs, now);
    };
    this.#look = read();
  }

  /** The last look comes after the doubt is over, be it long after: with all slots taken nobody looks. */
  async #lookForLostClaims(): Promise<void> {
    const { clock, reconcile } = this.#options;
    const now = clock.monotonicMs();
    if (this.#nextLookMs === null || now < this.#nextLookMs) return;
    await reconcile();
    this.#nextLookMs = now < this.#doubtUntilMs ? now + doubtPauseMs : null;
  }
}
