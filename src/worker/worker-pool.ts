/**
 * The worker of one process: its slots, and the life of what it runs, from the claim to the written outcome. Decides
 * nothing about jobs; it starts calls while permit and lease hold, and gives every end to the settler.
 * Shutdown: no new claims, calls in flight end or are given up when the grace is over, outcomes are written, the lease goes.
 */
import { hostname } from 'node:os';
import { v7 as uuidv7 } from 'uuid';
import { type RunAttemptDependencies, runAttempt } from '../application/run-attempt.ts';
import type { Definitions, Upstream } from '../domain/definitions.ts';
import type { Fault } from '../domain/errors.ts';
import { type ClaimedJob, firstLedger } from '../domain/job.ts';
import { permitMs } from '../domain/rate-window.ts';
import { fuseReason } from '../domain/settle.ts';
import type { Claim } from '../postgres/claim-jobs.ts';
import type { Database } from '../postgres/database.ts';
import type { IntakeClaimer } from '../postgres/intake-reservation.ts';
import { deregisterWorker, heldJobs, letGoAhead } from '../postgres/leases.ts';
import type { RetentionPolicy } from '../postgres/retention.ts';
import { type SettleRow, untouched } from '../postgres/settle-jobs.ts';
import type { Clock } from '../system/clock.ts';
import { noFaultPoints } from '../system/fault-points.ts';
import type { Logger } from '../system/logger.ts';
import { ClaimAhead } from './claim-ahead.ts';
import { ClaimLoop } from './claim-loop.ts';
import { Heartbeat } from './heartbeat.ts';
import { type ClaimAtIntake, IntakeClaims } from './intake-claims.ts';
import { Maintenance } from './maintenance.ts';
import { PermitWatch } from './permit-watch.ts';
import { Settler } from './settler.ts';
import { Slots } from './slots.ts';

/** How long outcomes are still tried to be written after the grace is over. */
const lastWritesMs = 5_000;
/** How long a claim that is under way is waited for at least, so that what it brings can be handed back. */
const lastClaimMs = 1_000;
/** How long a job that no window admits may wait for a slot after its claim, in milliseconds: then it is another's to have. */
const longestWaitMs = permitMs;
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

/** A job that this worker holds: its call is under way, or waits for a slot. */
interface Held {
  readonly job: ClaimedJob;
  /** undefined: its definition could not be read, so it goes back. */
  upstream: Upstream | undefined;
  /** Looked at by the call every few milliseconds; a real signal would cost more than it is worth. */
  readonly cancel: { aborted: boolean };
  /** Before the claim query left, by both clocks. */
  readonly startedAtMs: number;
  readonly startedWallMs: number;
  /** The claim that brought it ahead of its slot, so that the store has to hear of its call first; null: it had one. */
  readonly aheadOf: string | null;
}

export class WorkerPool {
  readonly workerId = uuidv7();
  readonly #options: WorkerPoolOptions;
  /** By lease, not by job: a job that was taken over may come back while its lost call is still ending. */
  readonly #held = new Map<string, Held>();
  readonly #slots: Slots<Held>;
  readonly #ahead: ClaimAhead;
  readonly #heartbeat: Heartbeat;
  readonly #settler: Settler;
  readonly #claims: ClaimLoop;
  readonly #intakes: IntakeClaims;
  readonly #maintenance: Maintenance;
  readonly #permits: PermitWatch;
  #onIdle: (() => void) | undefined;
  #draining = false;

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
      demand: () => this.#demand(),
      onClaim: (claim, startedAtMs, startedWallMs) => this.#start(claim, startedAtMs, startedWallMs),
      onLeaseLost: () => this.#heartbeat.renewNow(),
      reconcile: () => this.#giveBackUnknown(),
    });
    this.#slots = new Slots({
      clock,
      size: concurrency,
      start: (held) => this.#call(held),
      goodUntilMs: ({ job, startedAtMs }) => startedAtMs + (job.permitMs ?? longestWaitMs),
      giveBack: (jobs, late) => this.#giveBack(jobs, late),
    });
    this.#intakes = new IntakeClaims({
      clock,
      workerId,
      slots: this.#slots,
      isOpen: () => !this.#draining && this.#claims.atRest,
      onClaim: (claim) => this.#startReserved(claim),
      onFreed: () => this.#claims.slotFreed(),
      onLost: () => this.#claims.doubt(),
    });
    this.#ahead = new ClaimAhead(clock);
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

  /** For intakes of this process. */
  get intakeClaimer(): IntakeClaimer {
    return this.#intakes;
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

  /**
   * Stops claiming, waits `graceMs` for calls in flight, hands back the rest, writes all outcomes. A statement that gets no
   * answer costs neither the calls their grace nor the process its end: what it may have leased is left to the lease.
   */
  async drain(graceMs: number): Promise<void> {
    const { clock, logger, database, faultPoints = noFaultPoints } = this.#options;
    await faultPoints.pass('drain.begin');
    this.#draining = true;
    const loops = Promise.all([this.#claims.stop(), this.#maintenance.stop(), this.#intakes.ended()]);
    this.#slots.clear(() => true);
    const [idle] = await Promise.all([
      this.#idleWithin(graceMs),
      endsWithin(loops, Math.max(graceMs, lastClaimMs), clock),
    ]);
    if (!idle) {
      logger.warn({ calls: this.#held.size }, 'the grace is over: calls in flight are handed back');
      for (const { cancel } of this.#held.values()) cancel.aborted = true;
      await this.#idleWithin(lastWritesMs);
    }
    const late = new AbortController();
    const written = await endsWithin(this.#settler.drain(late.signal), lastWritesMs, clock);
    late.abort();
    await faultPoints.pass('drain.written');
    const left = this.#heartbeat
      .stop()
      .then(() => deregisterWorker(database, this.workerId))
      .catch((err: unknown) => {
        logger.warn({ err }, 'the worker could not be deregistered; its lease runs out by itself');
      });
    // Where nothing could be written, nothing more is waited for.
    if (written) await endsWithin(left, lastWritesMs, clock);
  }

  async #start(claim: Claim, startedAtMs: number, startedWallMs: number): Promise<void> {
    const aheadOf = (place: number) => (place < claim.slots ? null : claim.aheadId);
    const held = await this.#hold(claim, { startedAtMs, startedWallMs }, aheadOf);
    if (held === null) return;
    // Slots that were idle when it came, while there was more than it could bring.
    const starved = claim.more && this.#slots.free > claim.slots / 2;
    this.#ahead.claimed(starved);
    this.#slots.add(
      held.filter(({ aheadOf }) => aheadOf === null),
      held.filter(({ aheadOf }) => aheadOf !== null),
    );
    if (claim.aheadId !== null) void this.#letGoAhead(claim.aheadId);
  }

  /** Slots are reserved for these. */
  async #startReserved({ startedAtMs, startedWallMs, ...claim }: ClaimAtIntake): Promise<void> {
    const held = await this.#hold(claim, { startedAtMs, startedWallMs }, () => null);
    if (held === null) this.#slots.release(claim.jobs.length);
    else this.#slots.addReserved(held);
  }

  /**
   * Takes the jobs over before anything is waited for, then reads what their calls need.
   * @param aheadOf by a job's place in the claim
   * @returns null: no call is started any more, and they go back
   */
  async #hold(
    { jobs, definitionsVersion }: Pick<ClaimAtIntake, 'jobs' | 'definitionsVersion'>,
    started: Pick<Held, 'startedAtMs' | 'startedWallMs'>,
    aheadOf: (place: number) => string | null,
  ): Promise<Held[] | null> {
    this.#permits.claimed(this.#options.clock.monotonicMs() - started.startedAtMs);
    this.#giveUpLost(jobs);
    if (this.#draining) {
      // It was under way when the end was told; nothing is started any more.
      for (const job of jobs) this.#settler.add(untouched(job));
      return null;
    }
    const held: Held[] = jobs.map((job, place) => ({
      job,
      upstream: undefined,
      cancel: { aborted: false },
      ...started,
      aheadOf: aheadOf(place),
    }));
    for (const each of held) this.#held.set(leaseOf(each.job), each);
    let definitions: Definitions | undefined;
    try {
      definitions = await this.#options.definitionsAtLeast(definitionsVersion);
    } catch (err) {
      this.#options.logger.warn({ err }, 'definitions could not be read: the claimed jobs go back untouched');
    }
    for (const each of held) each.upstream = definitions?.upstreams.get(each.job.upstream);
    return held;
  }

  /** Where it cannot be written that they are called, jobs ahead are not: they go back when their time is over. */
  async #letGoAhead(claimId: string): Promise<void> {
    const { database, logger } = this.#options;
    try {
      if (await letGoAhead(database, this.workerId, claimId)) this.#slots.letGo(({ aheadOf }) => aheadOf === claimId);
    } catch (err) {
      logger.warn({ err }, 'jobs that were claimed ahead could not be let go; they go back untouched');
    }
  }

  /** What the next claim may bring. It is asked for jobs ahead only when half of those at hand are used up. */
  #demand(): { slots: number; ahead: number } {
    const { free, waiting } = this.#slots;
    const target = this.#ahead.target();
    return { slots: free, ahead: waiting <= target / 2 ? target - waiting : 0 };
  }

  /** Makes the call of a job that has got its slot. */
  #call(held: Held): void {
    const { job, upstream, cancel, startedAtMs, aheadOf } = held;
    if (aheadOf !== null) this.#ahead.started(startedAtMs);
    const terms = { startedAtMs, mayStillSend: () => this.#mayStillSend(held), signal: cancel };
    const ended =
      upstream === undefined || cancel.aborted
        ? Promise.resolve(untouched(job))
        : runAttempt(job, upstream, terms, this.#options);
    void ended.then((row) => this.#end(held, row));
  }

  /** By the larger of monotonic and wall time: a suspended machine stops the one, a clock set back the other. */
  #mayStillSend({ job, cancel, startedAtMs, startedWallMs }: Held): boolean {
    if (cancel.aborted || !this.#heartbeat.hasHeldSince(startedAtMs)) return false;
    if (job.permitMs === null) return true;
    const { clock } = this.#options;
    return Math.max(clock.monotonicMs() - startedAtMs, clock.wallMs() - startedWallMs) < job.permitMs;
  }

  #end(held: Held, row: SettleRow): void {
    const { job, cancel } = held;
    if (row.outcome !== null) this.#permits.used();
    else if (job.permitMs !== null && !cancel.aborted) {
      this.#permits.expired(job.upstream);
      this.#ahead.expired();
    }
    this.#ahead.ended();
    this.#settler.add(row);
    if (this.#options.logger.isLevelEnabled('debug')) this.#tell(held, row);
    // What waits here was let through before this answer; the store stops the rest once it is written.
    if (row.throttle !== null) this.#slots.clear((each) => each.job.upstream === job.upstream);
    if (blowsFuse(row)) {
      this.#slots.clear((each) => each.job.batchId === job.batchId);
      // Until it is written that the batch is stopped, the slot would go to the next of its jobs.
      return;
    }
    this.#letGo(row);
  }

  #tell({ job, startedAtMs }: Held, row: SettleRow): void {
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
  }

  /** A call is over, and its slot is free. */
  #letGo(row: Pick<SettleRow, 'jobId' | 'epoch'>): void {
    if (!this.#held.delete(leaseOf(row))) return;
    this.#slots.ended();
    this.#claims.slotFreed();
    if (this.#held.size === 0) this.#onIdle?.();
  }

  /** These have no slot, and get none here: they go back untouched. */
  #giveBack(jobs: readonly Held[], late: boolean): void {
    if (late) this.#ahead.expired();
    for (const { job } of jobs) {
      this.#held.delete(leaseOf(job));
      this.#settler.add(untouched(job));
    }
    if (this.#held.size === 0) this.#onIdle?.();
  }

  #onSettled(rows: readonly SettleRow[], stale: readonly SettleRow[]): void {
    const blown = [...rows, ...stale].filter(blowsFuse);
    if (blown.length > 0) {
      for (const row of blown) this.#letGo(row);
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
    for (const { job, cancel } of this.#held.values()) {
      if (held?.get(job.jobId) !== job.epoch) cancel.aborted = true;
    }
  }

  /** A job that was given to us again is ours under a new epoch; a call under an older one has lost its lease. */
  #giveUpLost(claimed: readonly ClaimedJob[]): void {
    const ids = new Set(claimed.map((job) => job.jobId));
    for (const { job, cancel } of this.#held.values()) if (ids.has(job.jobId)) cancel.aborted = true;
  }

  async #giveBackUnknown(): Promise<void> {
    const { database } = this.#options;
    // Known before the question: what ends while it is under way is still in the answer. (No claim begins meanwhile.)
    const underWay = this.#intakes.jobIds.map((jobId) => leaseOf({ jobId, epoch: firstLedger.epoch }));
    const known = new Set([...this.#held.keys(), ...this.#settler.rows.map(leaseOf), ...underWay]);
    const held = await heldJobs(database, this.workerId);
    for (const [jobId, epoch] of held) {
      if (known.has(leaseOf({ jobId, epoch }))) continue;
      this.#settler.add(untouched({ jobId, epoch, upstream: '', outcomeUnknown: false }));
    }
  }

  /** Whether all calls ended within `ms`. */
  async #idleWithin(ms: number): Promise<boolean> {
    if (this.#held.size === 0) return true;
    const over = new AbortController();
    this.#onIdle = () => over.abort();
    await this.#options.clock.sleep(ms, over.signal);
    this.#onIdle = undefined;
    return this.#held.size === 0;
  }
}

/** Whether it ended in that time; it goes on by itself otherwise. */
async function endsWithin(work: Promise<unknown>, ms: number, clock: Clock): Promise<boolean> {
  const ended = new AbortController();
  const done = () => ended.abort();
  work.then(done, done);
  await clock.sleep(ms, ended.signal);
  return ended.signal.aborted;
}

function leaseOf({ jobId, epoch }: Pick<ClaimedJob, 'jobId' | 'epoch'>): string {
  return `${jobId}/${epoch}`;
}

function blowsFuse({ next }: SettleRow): boolean {
  return next.kind === 'held' && next.reason === fuseReason;
}
