/**
 * The worker of one process: its slots, and the life of what it runs, from the claim to the written outcome. Decides
 * nothing about jobs; it starts calls while permit and lease hold, and gives every end to the settler.
 * Shutdown: no new claims, calls in flight end or are given up when the grace is over, outcomes are written, the lease goes.
 */
import { hostname } from 'node:os';
import { v7 as uuidv7 } from 'uuid';
import { type RunAttemptDependencies, runAttempt } from '../application/run-attempt.ts';
import type { Definitions } from '../domain/definitions.ts';
import type { Fault } from '../domain/errors.ts';
import type { ClaimedJob } from '../domain/job.ts';
import { fuseReason } from '../domain/settle.ts';
import type { Claim } from '../postgres/claim-jobs.ts';
import type { Database } from '../postgres/database.ts';
import { deregisterWorker, heldJobs } from '../postgres/leases.ts';
import type { RetentionPolicy } from '../postgres/retention.ts';
import type { SettleRow } from '../postgres/settle-jobs.ts';
import { noFaultPoints } from '../system/fault-points.ts';
import type { Logger } from '../system/logger.ts';
import { ClaimLoop } from './claim-loop.ts';
import { Heartbeat } from './heartbeat.ts';
import { Maintenance } from './maintenance.ts';
import { PermitWatch } from './permit-watch.ts';
import { Settler } from './settler.ts';

/** How long outcomes are still tried to be written after the grace is over. */
const lastWritesMs = 5_000;
/** Claims that fail for longer make the process not ready. */
const failingClaimsMs = 3_000;

export interface WorkerPoolOptions extends RunAttemptDependencies {
  readonly database: Database;
  readonly logger: Logger;
  readonly concurrency: number;
  readonly leaseSeconds: number;
  readonly currentDefinitions: () => Promise<Definitions>;
  /** The definitions at this version or a newer one. */
  readonly definitionsAtLeast: (version: number) => Promise<Definitions>;
  readonly retention: RetentionPolicy;
}

interface Running {
  readonly job: ClaimedJob;
  readonly cancel: AbortController;
}

export class WorkerPool {
  readonly workerId = uuidv7();
  readonly #options: WorkerPoolOptions;
  /** By lease, not by job: a job that was taken over may come back while its lost call is still ending. */
  readonly #running = new Map<string, Running>();
  readonly #heartbeat: Heartbeat;
  readonly #settler: Settler;
  readonly #claims: ClaimLoop;
  readonly #maintenance: Maintenance;
  readonly #permits: PermitWatch;
  #onIdle: (() => void) | undefined;

  constructor(options: WorkerPoolOptions) {
    this.#options = options;
    const { database, clock, logger, leaseSeconds, concurrency, currentDefinitions, retention } = options;
    const { workerId } = this;
    const identity = { workerId, host: hostname(), pid: process.pid, concurrency };
    this.#heartbeat = new Heartbeat({
      database,
      clock,
      logger,
      identity,
      leaseSeconds,
      onLapse: (held) => this.#giveUp(held),
    });
    this.#settler = new Settler({
      database,
      clock,
      logger,
      workerId,
      onSettled: (rows, stale) => this.#onSettled(rows, stale),
    });
    this.#claims = new ClaimLoop({
      database,
      clock,
      logger,
      workerId,
      freeSlots: () => concurrency - this.#running.size,
      onClaim: (claim, startedAtMs, startedWallMs) => this.#start(claim, startedAtMs, startedWallMs),
      onLeaseLost: () => this.#heartbeat.renewNow(),
      reconcile: () => this.#giveBackUnknown(),
    });
    this.#permits = new PermitWatch({ clock, logger });
    this.#maintenance = new Maintenance({ database, clock, logger, currentDefinitions, retention });
  }

  /** Registers the worker and starts claiming. Throws where PostgreSQL is away. */
  async start(): Promise<void> {
    await this.#heartbeat.start();
    this.#settler.start();
    this.#claims.start();
    this.#maintenance.start();
  }

  /** There may be work. */
  wake(): void {
    this.#claims.wake();
  }

  /** What speaks against this process being ready. */
  faults(): Fault[] {
    const failing = this.#claims.failingForMs;
    if (failing === null || failing < failingClaimsMs) return [];
    return [{ code: 'claims_stopped', message: `claims have failed for ${Math.round(failing / 1000)} s` }];
  }

  /** Stops claiming, waits `graceMs` for calls in flight, hands back the rest, writes all outcomes. */
  async drain(graceMs: number): Promise<void> {
    const { clock, logger, database, faultPoints = noFaultPoints } = this.#options;
    await faultPoints.pass('drain.begin');
    await this.#claims.stop();
    await this.#maintenance.stop();
    if (!(await this.#idleWithin(graceMs))) {
      logger.warn({ calls: this.#running.size }, 'the grace is over: calls in flight are handed back');
      for (const { cancel } of this.#running.values()) cancel.abort();
      await this.#idleWithin(lastWritesMs);
    }
    const late = new AbortController();
    const finished = new AbortController();
    void clock.sleep(lastWritesMs, finished.signal).then(() => late.abort());
    await this.#settler.drain(late.signal);
    finished.abort();
    await faultPoints.pass('drain.written');
    await this.#heartbeat.stop();
    await deregisterWorker(database, this.workerId).catch((err: unknown) => {
      logger.warn({ err }, 'the worker could not be deregistered; its lease runs out by itself');
    });
  }

  async #start(claim: Claim, startedAtMs: number, startedWallMs: number): Promise<void> {
    this.#permits.claimed(this.#options.clock.monotonicMs() - startedAtMs);
    // Held from the first moment on: a slot is taken before anything is waited for.
    this.#giveUpLost(claim.jobs);
    const started = claim.jobs.map((job) => {
      const running = { job, cancel: new AbortController() };
      this.#running.set(leaseOf(job), running);
      return running;
    });
    let definitions: Definitions | undefined;
    try {
      definitions = await this.#options.definitionsAtLeast(claim.definitionsVersion);
    } catch (err) {
      this.#options.logger.warn({ err }, 'definitions could not be read: the claimed jobs go back untouched');
    }
    for (const running of started) {
      const upstream = definitions?.upstreams.get(running.job.upstream);
      const ended =
        upstream === undefined
          ? Promise.resolve(untouched(running.job))
          : runAttempt(
              running.job,
              upstream,
              {
                startedAtMs,
                mayStillSend: () => this.#mayStillSend(running, startedAtMs, startedWallMs),
                signal: running.cancel.signal,
              },
              this.#options,
            );
      void ended.then((row) => this.#end(running, row, startedAtMs));
    }
  }

  /** By the larger of monotonic and wall time: a suspended machine stops the one, a clock set back the other. */
  #mayStillSend({ job, cancel }: Running, startedAtMs: number, startedWallMs: number): boolean {
    if (cancel.signal.aborted || !this.#heartbeat.hasHeldSince(startedAtMs)) return false;
    if (job.permitMs === null) return true;
    const { clock } = this.#options;
    return Math.max(clock.monotonicMs() - startedAtMs, clock.wallMs() - startedWallMs) < job.permitMs;
  }

  #end({ job, cancel }: Running, row: SettleRow, startedAtMs: number): void {
    if (row.outcome !== null) this.#permits.used();
    else if (job.permitMs !== null && !cancel.signal.aborted) this.#permits.expired(job.upstream);
    this.#settler.add(row);
    // Until it is written that the batch is stopped, the slot would go to the next of its jobs.
    if (!blowsFuse(row)) this.#running.delete(leaseOf(job));
    this.#options.logger.debug(
      {
        job_id: job.jobId,
        batch_id: job.batchId,
        queue: job.queue,
        upstream: job.upstream,
        attempt: job.calls + 1,
        epoch: job.epoch,
        outcome: row.outcome,
        reconciliation: row.reconciliation,
        status: row.status,
        next: row.next,
        slot_wait_ms: Math.round(job.slotWaitMs),
        sent_after_ms: row.sentAfterMs,
        took_ms: Math.round(this.#options.clock.monotonicMs() - startedAtMs),
      },
      'attempt',
    );
    this.#slotFreed();
  }

  #slotFreed(): void {
    this.#claims.slotFreed();
    if (this.#running.size === 0) this.#onIdle?.();
  }

  #onSettled(rows: readonly SettleRow[], stale: readonly SettleRow[]): void {
    const blown = [...rows, ...stale].filter(blowsFuse);
    if (blown.length > 0) {
      for (const row of blown) this.#running.delete(leaseOf(row));
      this.#slotFreed();
      this.#maintenance.wake();
    }
    if (stale.length > 0) {
      const jobs = stale.map((row) => row.jobId);
      this.#options.logger.warn({ jobs }, 'results of jobs that were taken over were dropped');
    }
    // A job that waits for a time of its own moves the moment of the next claim.
    if (rows.some((row) => row.next.kind === 'scheduled' || row.next.kind === 'ready')) this.#claims.wake();
  }

  /** The lease is gone or was: calls of jobs that are not surely ours end. */
  #giveUp(held: ReadonlyMap<string, number> | null): void {
    for (const { job, cancel } of this.#running.values()) {
      if (held?.get(job.jobId) !== job.epoch) cancel.abort();
    }
  }

  /** A job that was given to us again is ours under a new epoch; a call under an older one has lost its lease. */
  #giveUpLost(claimed: readonly ClaimedJob[]): void {
    const ids = new Set(claimed.map((job) => job.jobId));
    for (const { job, cancel } of this.#running.values()) if (ids.has(job.jobId)) cancel.abort();
  }

  async #giveBackUnknown(): Promise<void> {
    const { database } = this.#options;
    // Known before the question: what ends while it is under way is still in the answer. (No claim runs meanwhile.)
    const known = new Set([...this.#running.keys(), ...this.#settler.rows.map(leaseOf)]);
    const held = await heldJobs(database, this.workerId);
    for (const [jobId, epoch] of held) {
      if (known.has(leaseOf({ jobId, epoch }))) continue;
      this.#settler.add(untouched({ jobId, epoch, upstream: '', outcomeUnknown: false }));
    }
  }

  /** Whether all calls ended within `ms`. */
  async #idleWithin(ms: number): Promise<boolean> {
    if (this.#running.size === 0) return true;
    const over = new AbortController();
    this.#onIdle = () => over.abort();
    await this.#options.clock.sleep(ms, over.signal);
    this.#onIdle = undefined;
    return this.#running.size === 0;
  }
}

function leaseOf({ jobId, epoch }: Pick<ClaimedJob, 'jobId' | 'epoch'>): string {
  return `${jobId}/${epoch}`;
}

function blowsFuse({ next }: SettleRow): boolean {
  return next.kind === 'held' && next.reason === fuseReason;
}

/** Back to its place as if it had not been claimed. */
function untouched(job: Pick<ClaimedJob, 'jobId' | 'epoch' | 'upstream' | 'outcomeUnknown'>): SettleRow {
  return {
    jobId: job.jobId,
    epoch: job.epoch,
    upstream: job.upstream,
    next: { kind: 'ready' },
    outcome: null,
    charge: 'none',
    status: null,
    sentAfterMs: null,
    endedAfterMs: null,
    retryAfterMs: null,
    retryAfterCapped: false,
    excerpt: null,
    truncated: false,
    sha256: null,
    error: null,
    mayHaveHadEffect: false,
    outcomeUnknown: job.outcomeUnknown,
    answeredWithoutThrottle: false,
    throttle: null,
    permitUnused: true,
    reconciliation: null,
  };
}
