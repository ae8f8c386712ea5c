/**
 * Keeps the worker's lease, and knows when it may no longer be relied on. All durations are this process's own, measured
 * from before the renewal left, so the lease ends here no later than in the database.
 */
import { type Database, DatabaseUnavailableError } from '../postgres/database.ts';
import { heldJobs, registerWorker, renewLease, type WorkerIdentity } from '../postgres/leases.ts';
import type { Clock } from '../system/clock.ts';
import type { Logger } from '../system/logger.ts';
import { WakeSignal } from '../system/wake-signal.ts';

/** After a renewal that failed. */
const retryMs = 500;

export interface HeartbeatOptions {
  readonly database: Database;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly identity: WorkerIdentity;
  readonly leaseSeconds: number;
  /** The lease had run out or could not be kept: only these jobs (id → epoch) are still the worker's; null: maybe none. */
  readonly onLapse: (held: ReadonlyMap<string, number> | null) => void;
}

export class Heartbeat {
  readonly #options: HeartbeatOptions;
  readonly #wake: WakeSignal;
  #validUntilMs = 0;
  /** Since when the lease has held without a break, as far as we know. */
  #heldSinceMs = 0;
  #lapsed = false;
  #stopped = false;
  #loop: Promise<void> | undefined;

  constructor(options: HeartbeatOptions) {
    this.#options = options;
    this.#wake = new WakeSignal(options.clock);
  }

  /** Whether the lease holds now. */
  get valid(): boolean {
    return this.#options.clock.monotonicMs() < this.#validUntilMs;
  }

  /**
   * Whether the lease holds now and has held ever since. What was claimed before a break may have been taken back in it, and
   * then it is another's, however well the lease holds again: the answer of a claim can be slower than a break and its end.
   */
  hasHeldSince(monotonicMs: number): boolean {
    return this.valid && this.#heldSinceMs <= monotonicMs;
  }

  /** Registers the worker; throws where PostgreSQL is away. */
  async start(): Promise<void> {
    const { database, identity, leaseSeconds, clock } = this.#options;
    const before = clock.monotonicMs();
    await registerWorker(database, identity, leaseSeconds);
    this.#heldSinceMs = before;
    this.#validUntilMs = before + leaseSeconds * 1000;
    this.#loop = this.#run();
  }

  /** Renews at once: a claim found that the lease has run out. */
  renewNow(): void {
    this.#wake.set();
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#wake.set();
    await this.#loop;
  }

  async #run(): Promise<void> {
    const { clock, leaseSeconds, logger, onLapse } = this.#options;
    const intervalMs = (leaseSeconds * 1000) / 3;
    let waitMs = intervalMs;
    while (true) {
      await this.#wake.wait(
        Math.min(waitMs, Math.max(1, this.#lapsed ? waitMs : this.#validUntilMs - clock.monotonicMs())),
      );
      if (this.#stopped) return;
      if (!this.valid && !this.#lapsed) {
        // Whoever looks now may take the jobs over: calls end before that, as far as we can tell.
        this.#lapsed = true;
        onLapse(null);
      }
      try {
        await this.#renew();
        waitMs = intervalMs;
      } catch (err) {
        const level = err instanceof DatabaseUnavailableError ? 'warn' : 'error';
        logger[level]({ err }, 'the lease could not be renewed');
        waitMs = retryMs;
      }
    }
  }

  async #renew(): Promise<void> {
    const { database, clock, identity, leaseSeconds, logger, onLapse } = this.#options;
    const before = clock.monotonicMs();
    const renewal = await renewLease(database, identity.workerId, leaseSeconds);
    if (renewal === 'gone') await registerWorker(database, identity, leaseSeconds);
    if (renewal !== 'renewed' || this.#lapsed) {
      logger.warn({ renewal }, 'the lease had run out; looking which jobs are still ours');
      this.#heldSinceMs = before;
      onLapse(await heldJobs(database, identity.workerId));
    }
    this.#lapsed = false;
    this.#validUntilMs = before + leaseSeconds * 1000;
  }
}
