/**
 * What keeps the store right without anybody asking: jobs of workers that died go back, what a blown fuse holds is moved out
 * of the way, workers that are gone are cleared away, and so is what is idle or past its retention. Each round is bounded and may run in every replica at once; the fence
 * in the settle decides between them.
 */
import type { Definitions } from '../domain/definitions.ts';
import { decideReconciliation } from '../domain/reconcile.ts';
import { asksFirst, decideSettlement } from '../domain/settle.ts';
import { closeSilentStreams } from '../postgres/batch-streams.ts';
import { type Database, patientMs, promptly, ranOutOfTime } from '../postgres/database.ts';
import { findOrphanedJobs, type OrphanedJob, sweepClaimsAhead, sweepWorkers } from '../postgres/leases.ts';
import type { RetentionPolicy } from '../postgres/retention.ts';
import { type SettleRow, settleJobs, untouched } from '../postgres/settle-jobs.ts';
import { newSweepCursor, type SweepCursor, sweepCooldowns, sweepLanes, sweepWindows } from '../postgres/sweep.ts';
import type { Clock } from '../system/clock.ts';
import type { Logger } from '../system/logger.ts';
import { WakeSignal } from '../system/wake-signal.ts';
import { FuseWalks } from './fuse-walks.ts';
import { RetentionRounds } from './retention-rounds.ts';

const mostOrphans = 500;
const mostWorkers = 50;
/** With the lease this is how long a job of a dead worker waits. */
const intervalMs = 1_000;
/**
 * Jobs of workers that are not there any more are looked for at this interval. The look reads all that run, and where a
 * transaction is left open somewhere all that ever ran since: then it comes as seldom as makes it a hundredth of the time.
 */
const wholeLookMs = 5_000;
const wholeLookShare = 100;
const mostWholeLookMs = 600_000;
/** Sweeping is housekeeping: every this many rounds, a bounded piece of each table. */
const roundsPerSweep = 30;
const mostSwept = 1_000;
/** A lane that comes back within this time is not made anew each time. */
const idleLaneSeconds = 600;
const oldCooldownSeconds = 86_400;
/** A stream that broke off can be resumed for so long. */
const silentStreamSeconds = 86_400;

export interface MaintenanceOptions {
  readonly database: Database;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly currentDefinitions: () => Promise<Definitions>;
  readonly retention: RetentionPolicy;
}

export interface MaintenanceCounts {
  /** Jobs whose worker's lease had run out, given back or ended. */
  readonly reaped: number;
  readonly workersSwept: number;
}

/** What a sweep took away. */
export interface SweepCounts {
  readonly lanes: number;
  readonly windows: number;
  readonly cooldowns: number;
  /** Marks of claims whose worker is gone. */
  readonly claimsAhead: number;
  /** Batches whose stream was not resumed in time; they are taken as they are. */
  readonly streams: number;
}

/** One bounded sweep of what idleness left behind; `cursor` remembers where the next one goes on. */
export async function sweepOnce(database: Database, cursor: SweepCursor): Promise<SweepCounts> {
  return {
    lanes: await sweepLanes(database, cursor, { idleSeconds: idleLaneSeconds, most: mostSwept }),
    windows: await sweepWindows(database, cursor, { most: mostSwept }),
    claimsAhead: await sweepClaimsAhead(database, mostSwept),
    cooldowns: await sweepCooldowns(database, { idleSeconds: oldCooldownSeconds, most: mostSwept }),
    streams: await closeSilentStreams(database, { silentSeconds: silentStreamSeconds, most: mostSwept }),
  };
}

/** One bounded round. @param whole also jobs whose worker is not there any more */
export async function runMaintenanceOnce(
  options: Omit<MaintenanceOptions, 'retention'>,
  whole = true,
): Promise<MaintenanceCounts> {
  const { database } = options;
  const reaped = await reap(options, await findOrphanedJobs(database, mostOrphans, whole));
  return { reaped, workersSwept: await sweepWorkers(database, mostWorkers) };
}

async function reap(
  { database, clock, currentDefinitions }: Omit<MaintenanceOptions, 'retention'>,
  orphans: OrphanedJob[],
): Promise<number> {
  if (orphans.length === 0) return 0;
  const definitions = await currentDefinitions();
  const byWorker = new Map<string, SettleRow[]>();
  for (const job of orphans) {
    const upstream = definitions.upstreams.get(job.upstream);
    if (upstream === undefined) continue;
    const rows = byWorker.get(job.workerId) ?? [];
    byWorker.set(job.workerId, rows);
    if (job.neverCalled) {
      rows.push(untouched(job));
      continue;
    }
    const context = { random01: Math.random(), nowWallMs: clock.wallMs() };
    const asked = asksFirst(job, upstream);
    const decide = asked ? decideReconciliation : decideSettlement;
    const settlement = decide(job, upstream, { kind: 'lease_expired' }, context);
    rows.push({
      ...settlement,
      jobId: job.jobId,
      epoch: job.epoch,
      upstream: job.upstream,
      status: null,
      // As far as anybody knows it was sent; an attempt says so by its outcome.
      sentAfterMs: asked ? 0 : null,
      endedAfterMs: null,
      excerpt: null,
      truncated: false,
      sha256: null,
      permitUnused: false,
    });
  }
  let reaped = 0;
  for (const [workerId, rows] of byWorker) {
    reaped += (await settleJobs(database, workerId, rows, { onlyExpired: true })).size;
  }
  return reaped;
}

/** Rounds at intervals, each a little different so that replicas do not march in step. */
export class Maintenance {
  readonly #options: MaintenanceOptions;
  readonly #wake: WakeSignal;
  readonly #fuses: FuseWalks;
  readonly #retention: RetentionRounds;
  /** Rounds in a row in which the time of a statement ran out. */
  #outOfTime = 0;
  readonly #wholeLook: MaintenanceOptions;
  #nextWholeLookMs = Number.NEGATIVE_INFINITY;
  /** Of these in a row: they may be far slower than all the rest. */
  #wholeLooksOutOfTime = 0;
  #stopped = false;
  #loop: Promise<void> | undefined;

  constructor(options: MaintenanceOptions) {
    // All replicas may have met the same silence: jobs of dead workers must not wait for the usual limit of any statement here.
    const database = promptly(options.database, () => patientMs(this.#outOfTime));
    this.#options = { ...options, database };
    const patient = promptly(options.database, () => patientMs(this.#wholeLooksOutOfTime));
    this.#wholeLook = { ...options, database: patient };
    this.#wake = new WakeSignal(options.clock);
    this.#fuses = new FuseWalks(this.#options);
    this.#retention = new RetentionRounds({ ...this.#options, policy: options.retention });
  }

  start(): void {
    this.#loop = this.#run();
  }

  /** There is something to do that should not wait for the next round. */
  wake(): void {
    this.#wake.set();
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#wake.set();
    await this.#loop;
  }

  async #run(): Promise<void> {
    const { logger, database } = this.#options;
    const cursor = newSweepCursor();
    for (let round = 1; !this.#stopped; round += 1) {
      let more = false;
      try {
        const counts = await this.#lookForOrphans();
        if (counts.reaped > 0) logger.info(counts, 'jobs of workers that died were taken back');
        more = await this.#fuses.turn();
        if (round % roundsPerSweep === 0) logger.debug(await sweepOnce(database, cursor), 'swept');
        await this.#retention.turn();
        this.#outOfTime = 0;
      } catch (err) {
        if (ranOutOfTime(err)) this.#outOfTime += 1;
        logger.warn({ err }, 'a round of maintenance failed; the next one tries again');
      }
      if (!this.#stopped && !more) await this.#wake.wait(intervalMs * (0.8 + 0.4 * Math.random()));
    }
  }

  async #lookForOrphans(): Promise<MaintenanceCounts> {
    const { clock } = this.#options;
    const startedMs = clock.monotonicMs();
    if (startedMs < this.#nextWholeLookMs) return runMaintenanceOnce(this.#options, false);
    let reaped = 0;
    try {
      const counts = await runMaintenanceOnce(this.#wholeLook, true);
      reaped = counts.reaped;
      this.#wholeLooksOutOfTime = 0;
      return counts;
    } catch (err) {
      if (ranOutOfTime(err)) this.#wholeLooksOutOfTime += 1;
      throw err;
    } finally {
      // Where jobs were found the time is not the look's alone, and there may be more.
      const tookMs = reaped > 0 ? 0 : clock.monotonicMs() - startedMs;
      this.#nextWholeLookMs = startedMs + Math.min(mostWholeLookMs, Math.max(wholeLookMs, tookMs * wholeLookShare));
    }
  }
}
