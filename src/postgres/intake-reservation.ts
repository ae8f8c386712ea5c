/**
 * What an intake does about a worker of its own process, so that its jobs can be leased to it in the commit that stores them
 * (claim-at-intake.ts): it reserves slots right before the statement leaves, and tells what became of it.
 * Invariant: whoever has reserved slots hears exactly once.
 */
import { type ClaimedJob, firstLedger } from '../domain/job.ts';
import type { RequestedJob } from '../domain/submission.ts';
import { systemClock } from '../system/clock.ts';
import { bodyToSend, noHeaders } from './claim-jobs.ts';
import type { Admission, RowsPlace } from './insert-batch-rows.ts';

/** A worker of this process: jobs of an intake may be leased to it in the commit that stores them. */
export interface IntakeClaimer {
  readonly workerId: string;
  /** Keeps a slot for each of these jobs until it hears what became of them; null: it has none to spare, or other jobs wait. */
  reserve(jobIds: readonly string[]): ReservedSlots | null;
}

/** To be ended by one of these. */
export interface ReservedSlots {
  /**
   * The jobs are leased to the worker, durably, under these definitions: all that it keeps slots for. Resolves when their calls
   * have begun, so that these leave before the intake is answered, which takes longer.
   */
  claimed(jobs: readonly ClaimedJob[], definitionsVersion: number): Promise<void>;
  /** None of them is. */
  unused(): void;
  /** Nobody knows whether they are. */
  lost(): void;
}

/** More are not claimed at once: one replica would get them all, where claims share them out. Half of the usual slots. */
const mostJobs = 16;
/** All bodies together, in UTF-16 units: their way to the disk takes time of the permits, and the windows' rows are held meanwhile. */
const mostBodyUnits = 65_536;
/** A job that is to expire so soon, in milliseconds, is left to the claim, whatever the clocks say; the store looks once more. */
const clockSlackMs = 1_000;

/** A job that an intake makes. */
export interface NewJob {
  readonly jobId: string;
  /** null: not known yet. */
  readonly laneId: number | null;
  readonly job: RequestedJob;
}

/** The slots that one intake has reserved, if any, until it is known what becomes of it. */
export class IntakeReservation {
  readonly #claimer: IntakeClaimer | undefined;
  #slots: ReservedSlots | null = null;
  #definitionsVersion = 0;
  #jobs: readonly ClaimedJob[] = [];

  constructor(claimer: IntakeClaimer | undefined) {
    this.#claimer = claimer;
  }

  /** The worker to claim for; null: they are left to the claims. @param jobs all that the intake has brought */
  reserve(jobs: readonly NewJob[], definitionsVersion: number): string | null {
    if (this.#claimer === undefined || jobs.length > mostJobs || !jobs.every(isReady)) return null;
    if (jobs.reduce((sum, { job }) => sum + (job.body?.length ?? 0), 0) > mostBodyUnits) return null;
    if (jobs.some(({ laneId }) => laneId !== jobs[0]!.laneId)) return null;
    this.#slots = this.#claimer.reserve(jobs.map(({ jobId }) => jobId));
    this.#definitionsVersion = definitionsVersion;
    return this.#slots && this.#claimer.workerId;
  }

  /** All of them were admitted, and are the worker's once the transaction is committed. They are called in the order of the lane. */
  admit(batch: Pick<RowsPlace, 'batchId' | 'tenant'>, jobs: readonly NewJob[], admission: Admission): void {
    this.#jobs = [...jobs]
      .sort((a, b) => b.job.priority - a.job.priority)
      .map(({ jobId, job }) => toClaimedJob(jobId, batch, job, admission));
  }

  /** The transaction is committed. Gives whether the jobs are the worker's. */
  async committed(): Promise<boolean> {
    const [slots, jobs] = [this.#slots, this.#jobs];
    if (slots === null || jobs.length === 0) {
      this.undone();
      return false;
    }
    this.#forget();
    await slots.claimed(jobs, this.#definitionsVersion);
    return true;
  }

  /** It is rolled back, or has stored none of them. */
  undone(): void {
    this.#slots?.unused();
    this.#forget();
  }

  /** Nobody knows whether it is committed. */
  lost(): void {
    this.#slots?.lost();
    this.#forget();
  }

  #forget(): void {
    this.#slots = null;
    this.#jobs = [];
  }
}

function isReady({ job: { runAt, expiresAt } }: NewJob): boolean {
  return runAt === null && (expiresAt === null || Date.parse(expiresAt) > systemClock.wallMs() + clockSlackMs);
}

/** As a claim would have read it back. */
function toClaimedJob(
  jobId: string,
  { batchId, tenant }: Pick<RowsPlace, 'batchId' | 'tenant'>,
  job: RequestedJob,
  { permitMs, slotWaitMs }: Admission,
): ClaimedJob {
  const { queue, upstream, partitionKey, keySource, method, path, headers, body, bodyIsText } = job;
  return {
    jobId,
    batchId,
    tenant,
    queue,
    upstream,
    partitionKey,
    idempotencyKey: job.key,
    keySource,
    method,
    path,
    headers: headers ?? noHeaders,
    body: bodyToSend(body, bodyIsText),
    bodyIsText,
    payloadVersion: job.payloadVersion,
    maxAttempts: job.maxAttempts,
    cost: job.cost,
    freshKeys: 0,
    permitMs,
    slotWaitMs,
    ...firstLedger,
  };
}
