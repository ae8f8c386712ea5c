/**
 * Asks for jobs whenever there are free slots and something could be had: when a slot frees, when the next lane opens (the
 * claim says when), on a notification, and at a bounded interval as the truth behind all of these.
 * One claim at a time per process. A claim whose answer was lost may have leased jobs nobody here knows of: before the next
 * one, what the database holds in our name is compared with what we hold, and the rest goes back untouched.
 */

import { type Claim, claimJobs } from '../postgres/claim-jobs.ts';
import { type Database, DatabaseUnavailableError } from '../postgres/database.ts';
import type { Clock } from '../system/clock.ts';
import type { Logger } from '../system/logger.ts';
import { WakeSignal } from './wake-signal.ts';

/** Longest sleep when nothing tells otherwise; a notification that was lost costs no more than this. */
const pollMs = 5_000;
/** Another claimer holds what we want: about one claim's time. */
const busyMs = 2;
const longestPauseMs = 1_000;

export interface ClaimLoopOptions {
  readonly database: Database;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly workerId: string;
  readonly freeSlots: () => number;
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
  #loop: Promise<void> | undefined;

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

  /** There may be work: a notification, or a settle that put a job back. */
  wake(): void {
    this.#hungry = true;
    this.#wake.set();
  }

  /** A slot became free: worth a claim only if the last one was short of slots. */
  slotFreed(): void {
    if (this.#hungry) this.#wake.set();
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#wake.set();
    await this.#loop;
  }

  async #run(): Promise<void> {
    const { freeSlots, logger } = this.#options;
    while (!this.#stopped) {
      const free = freeSlots();
      if (free <= 0) {
        await this.#wake.wait(pollMs);
        continue;
      }
      let pauseMs: number;
      try {
        pauseMs = await this.#claim(free);
        this.#failures = 0;
        this.#failingSinceMs = null;
      } catch (err) {
        this.#failures += 1;
        this.#failingSinceMs ??= this.#options.clock.monotonicMs();
        const level = err instanceof DatabaseUnavailableError ? 'warn' : 'error';
        logger[level]({ err, failures: this.#failures }, 'a claim failed');
        pauseMs = Math.min(longestPauseMs, 20 * 2 ** Math.min(this.#failures, 8)) * (0.5 + Math.random() / 2);
      }
      if (pauseMs > 0 && !this.#stopped) await this.#wake.wait(pauseMs);
    }
  }

  /** Gives how long to sleep. */
  async #claim(free: number): Promise<number> {
    const { clock, database, workerId, onClaim, onLeaseLost, reconcile } = this.#options;
    if (this.#failures > 0) await reconcile();
    const startedAtMs = clock.monotonicMs();
    const startedWallMs = clock.wallMs();
    this.#hungry = false;
    const claim = await claimJobs(database, workerId, free);
    if (claim.leaseLost) {
      onLeaseLost();
      return longestPauseMs;
    }
    this.#hungry ||= claim.more || claim.jobs.length >= free;
    if (claim.jobs.length > 0) await onClaim(claim, startedAtMs, startedWallMs);
    if (claim.more) return 0;
    if (claim.busy) return busyMs * (0.5 + Math.random());
    const next = claim.nextInMs ?? Number.POSITIVE_INFINITY;
    // What is open already and was not had is a rival's for a moment.
    return next <= 0 ? busyMs * (0.5 + Math.random()) : Math.min(next + 0.5, pollMs * (0.8 + 0.4 * Math.random()));
  }
}
