/**
 * Asks for jobs whenever there are free slots and something could be had: when a slot frees, when the next lane opens (the
 * claim says when), on a notification, and at a bounded interval as the truth behind all of these.
 * One claim at a time per process. Where nothing else is to be had, a claim goes along with the transaction that brings work in.
 * A claim whose answer was lost may have leased jobs nobody here knows of, or may do so yet:
 * before the next one, and for a while after, what the database holds in our name is compared with what we hold, and the
 * rest goes back untouched.
 */

import { type Claim, claimJobs, sendClaim } from '../postgres/claim-jobs.ts';
import { type Database, DatabaseUnavailableError, patientMs, ranOutOfTime } from '../postgres/database.ts';
import { readReadyBehind } from '../postgres/ready-behind.ts';
import type { Rider } from '../postgres/transaction.ts';
import type { Clock } from '../system/clock.ts';
import type { Logger } from '../system/logger.ts';
import { WakeSignal } from '../system/wake-signal.ts';
import { LanePlaces, type Places } from './lane-places.ts';

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

/** A claim that was made, and what it was made with. */
interface Made {
  readonly claim: Claim;
  readonly slots: number;
  readonly places: Places;
  /** Before it left, by both clocks. */
  readonly startedAtMs: number;
  readonly startedWallMs: number;
}

export class ClaimLoop {
  readonly #options: ClaimLoopOptions;
  readonly #wake: WakeSignal;
  #stopped = false;
  /** A claim is being made or taken in. */
  #busy = false;
  /** The last claim took all there was, and knew of nothing that waits for a time. */
  #quiet = false;
  /** One that goes along with somebody's transaction, and is not taken in yet; of null nothing came, for the transaction came to nothing. */
  #along: Promise<Made | null> | null = null;
  #failures = 0;
  #failingSinceMs: number | null = null;
  /** The last claim left something behind for want of slots. */
  #hungry = true;
  /** Claims in a row whose time ran out. */
  #outOfTime = 0;
  /** Until when a lost claim may yet be made, and when to look for that next; null: a look since then has settled it. */
  #doubtUntilMs = 0;
  #nextLookMs: number | null = null;
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

  start(): void {
    this.#loop = this.#run();
  }

  /** There may be work: a notification, or a job of this worker that went back to its lane. */
  wake(): void {
    this.#places.workCame();
    this.#hungry = true;
    this.#wake.set();
  }

  /** A slot became free: worth a claim only if the last one was short of slots. */
  slotFreed(): void {
    if (!this.#hungry) return;
    const { slots, ahead } = this.#options.demand();
    if (slots + ahead > 0) this.#wake.set();
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#wake.set();
    await this.#loop;
    await this.#look;
  }

  /**
   * A claim for the work that a transaction brings in, to be made by that transaction: the call can leave when it is committed,
   * and no second one has to be. Only where that work is all there is, or whoever brings some would wait for claims that bring
   * nothing. null: it would not be of use now.
   */
  along(jobs: number): Rider | null {
    if (this.#stopped || this.#busy || this.#along !== null || !this.#quiet || this.#nextLookMs !== null) return null;
    const { slots } = this.#options.demand();
    if (slots < jobs) return null;
    let made: Promise<Made> | undefined;
    let tell: (made: Promise<Made> | null) => void = () => undefined;
    this.#along = new Promise<Made | null>((resolve) => {
      tell = resolve;
    });
    this.#places.workCame();
    this.#wake.set();
    return {
      send: (client) => {
        made = this.#make(slots, (places, withinMs) =>
          sendClaim(client, this.#options.workerId, slots, { ...places, withinMs }),
        );
        return made;
      },
      over: (end) => {
        if (end === 'committed') tell(made?.then((each) => this.#passed(each)) ?? null);
        else if (end !== 'rolled_back') tell(Promise.reject(end.lost));
        else {
          // Should it have been the claim's fault, the next run goes without one.
          this.#quiet = false;
          tell(null);
        }
      },
    };
  }

  async #run(): Promise<void> {
    const { logger } = this.#options;
    // One that is under way at the end is taken in: what it brought is handed back.
    while (!this.#stopped || this.#along !== null) {
      const along = this.#along;
      const { slots, ahead } = this.#options.demand();
      if (along === null && slots + ahead <= 0) {
        await this.#wake.wait(pollMs);
        continue;
      }
      let pauseMs: number;
      this.#busy = true;
      try {
        const made = along === null ? await this.#claim(slots, ahead) : await along;
        pauseMs = made === null ? 0 : await this.#take(made);
        this.#failures = 0;
        this.#outOfTime = 0;
        this.#failingSinceMs = null;
      } catch (err) {
        this.#failures += 1;
        this.#quiet = false;
        this.#places.clear();
        if (ranOutOfTime(err)) this.#outOfTime += 1;
        const now = this.#options.clock.monotonicMs();
        this.#failingSinceMs ??= now;
        this.#doubtUntilMs = now + doubtMs;
        this.#nextLookMs = now;
        const level = err instanceof DatabaseUnavailableError ? 'warn' : 'error';
        logger[level]({ err, failures: this.#failures }, 'a claim failed');
        pauseMs = Math.min(longestPauseMs, 20 * 2 ** Math.min(this.#failures, 8)) * (0.5 + Math.random() / 2);
      } finally {
        this.#busy = false;
        if (along !== null) this.#along = null;
      }
      if (pauseMs > 0 && !this.#stopped) await this.#wake.wait(pauseMs);
    }
  }

  async #passed(made: Made): Promise<Made> {
    if (made.claim.jobs.length > 0) await this.#options.database.faultPoints.pass('claim.after');
    return made;
  }

  async #claim(slots: number, ahead: number): Promise<Made> {
    const { database, workerId } = this.#options;
    await this.#lookForLostClaims();
    return this.#make(slots, (places, withinMs) =>
      claimJobs(database, workerId, slots, { ahead, ...places, withinMs }),
    );
  }

  async #make(slots: number, send: (places: Places, withinMs: number) => Promise<Claim>): Promise<Made> {
    const { clock } = this.#options;
    const startedAtMs = clock.monotonicMs();
    const startedWallMs = clock.wallMs();
    this.#hungry = false;
    const places = this.#places.at(startedAtMs);
    const claim = await send(places, patientMs(this.#outOfTime));
    return { claim, slots, places, startedAtMs, startedWallMs };
  }

  /** Gives how long to sleep. */
  async #take({ claim, slots, places, startedAtMs, startedWallMs }: Made): Promise<number> {
    const { clock, onClaim, onLeaseLost } = this.#options;
    this.#quiet = false;
    if (claim.leaseLost) {
      onLeaseLost();
      return longestPauseMs;
    }
    this.#places.claimed(places, claim, clock.monotonicMs());
    this.#lookBehind();
    // Without a free slot it cannot know what there was for one.
    this.#hungry ||= claim.more || slots === 0 || claim.jobs.length >= slots;
    if (claim.jobs.length > 0) await onClaim(claim, startedAtMs, startedWallMs);
    if (claim.more && slots > 0) return 0;
    if (claim.busy) return busyMs * (0.5 + Math.random());
    this.#quiet = !this.#hungry && claim.nextInMs === null;
    const next = claim.nextInMs ?? Number.POSITIVE_INFINITY;
    // What is open already and was not had is a rival's for a moment, or for those who have a slot.
    if (next <= 0) return slots > 0 ? busyMs * (0.5 + Math.random()) : pollMs;
    const pollsMs = this.#nextLookMs === null ? pollMs * (0.8 + 0.4 * Math.random()) : doubtPauseMs;
    return Math.min(
      next + 0.5,
      pollsMs,
      claim.lingers ? this.#places.trustedForMs(clock.monotonicMs()) + 0.5 : pollsMs,
    );
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
