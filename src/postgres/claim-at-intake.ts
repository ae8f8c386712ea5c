/**
 * The claim of new jobs by the intake that stores them: where a worker of the process has slots to spare and all that covers the
 * jobs is open, they are leased in the commit that makes them durable, and their calls leave as soon as it is told. They are
 * never seen waiting, so no other claim is needed, nobody is notified and no row of theirs is moved.
 *
 * Invariants: those of the claim (claim-jobs.ts), whose gates stand here for one lane and all or none of its jobs. Whatever is
 * not plain is left to the claim: an order, calls that are counted, a cooldown or its ramp, a window that is closed, paused or
 * has not room for all, a row that somebody holds. Nothing is charged then. What waits already is not overtaken: only a worker
 * asks whose last claim found nothing more to be had.
 * Lock order: as the claim's, behind the lanes of the intake; waits for nobody.
 * It is planned under the settings of the intake's transaction (lane-groups.ts).
 */
import type { ClaimedJob } from '../domain/job.ts';
import type { RequestedJob } from '../domain/submission.ts';
import { systemClock } from '../system/clock.ts';
import { bodyToSend, noHeaders } from './claim-jobs.ts';
import type { Admission, BatchRow, RowsPlace } from './insert-batch-rows.ts';

export const claimAtIntakeFunction = {
  name: 'claim_at_intake',
  sql: String.raw`
-- For jobs that cost p_cost together, of which the first expires at p_expires (null: none does). No row: they are not to be had.
create or replace function sluice.claim_at_intake(p_worker uuid, p_lane bigint, p_cost bigint, p_expires timestamptz)
returns table (group_id int, admitted_at timestamptz, charged text, permit_ms float8) language plpgsql as $$
#variable_conflict use_column
declare
  c record;
  r sluice.rate_limits;
  w sluice.rate_windows;
  v_limits text[];
  v_name text;
  v_key text;
  v_us bigint;
  v_now timestamptz := sluice.at_us(sluice.clock_us());
  v_began timestamptz;
  l_r sluice.rate_limits[] := '{}';
  l_w sluice.rate_windows[] := '{}';
  l_at tid[] := '{}';
  l_took interval[] := '{}';
begin
  select g.id, g.upstream, g.shared_limits, g.partition_limits, l.partition_key into c
    from sluice.lanes l join sluice.lane_groups g on g.id = l.group_id
   where l.id = p_lane and not g.fifo and not g.counted and g.next_at <= v_now and (l.next_at <= v_now or l.closed_by = 'empty')
     and exists (select 1 from sluice.workers x where x.id = p_worker and x.lease_expires_at > v_now)
     -- They are older, and a claim puts them where they belong.
     and not exists (select 1 from sluice.parked_jobs x where x.due_at <= v_now);
  if not found or not pg_try_advisory_xact_lock_shared(7305002, hashtext(c.upstream)) then return; end if;

  v_limits := c.shared_limits || c.partition_limits;
  for i in 1 .. cardinality(v_limits) loop
    v_name := v_limits[i];
    if not pg_try_advisory_xact_lock_shared(7305003, hashtext(v_name)) then return; end if;
    v_key := case when i > cardinality(c.shared_limits) then c.partition_key else '' end;
    select * into r from sluice.rate_limits x where x.name = v_name;
    l_at[i] := sluice.window_seen_at(v_name, v_key);
    v_began := clock_timestamp();
    w := sluice.lock_window(r, v_key, l_at[i]);
    if w.limit_name is null then return; end if;
    l_took[i] := clock_timestamp() - v_began;
    l_r[i] := r;
    l_w[i] := w;
  end loop;

  -- Read after the locks, as are the cooldowns: see the claim.
  v_us := sluice.clock_us();
  v_now := greatest(v_now, sluice.at_us(v_us));
  if p_expires <= v_now or exists (
    select 1 from sluice.cooldowns x
     where x.partition_key in ('', c.partition_key) and (x.until > v_now or x.ramp is not null)
       and ((x.kind = 'upstream' and x.name = c.upstream) or (x.kind = 'limit' and x.name = any (v_limits)))) then return; end if;

  for i in 1 .. cardinality(v_limits) loop
    w := sluice.rate_window_roll(l_w[i], l_r[i], v_us);
    if w.paused or sluice.rate_window_room(w, l_r[i]) < p_cost then return; end if;
    l_w[i] := w;
    if l_r[i]."limit" is not null then
      permit_ms := least(coalesce(permit_ms, 40), sluice.rate_window_permit_ms(w, l_r[i], v_us));
    end if;
  end loop;
  for i in 1 .. cardinality(v_limits) loop
    w := l_w[i];
    perform sluice.window_seen(w.limit_name, w.partition_key,
                               sluice.store_window(sluice.rate_window_charge(w, l_r[i], v_us, p_cost), l_at[i]),
                               l_at[i] is null, l_took[i]);
  end loop;
  group_id := c.id;
  admitted_at := sluice.at_us(v_us);
  charged := sluice.charged_to(c.shared_limits, v_us, c.partition_limits, v_us);
  return next;
end $$;`,
} as const;

/** A worker of this process: jobs of an intake may be leased to it in the commit that stores them. */
export interface IntakeClaimer {
  readonly workerId: string;
  /** Keeps a slot for each of these jobs until it hears what became of them; null: it has none to spare, or other jobs wait. */
  reserve(jobIds: readonly string[]): ReservedSlots | null;
}

/** To be ended by one of these. */
export interface ReservedSlots {
  /**
   * The transaction is over: the jobs are the worker's, durably, under these definitions; all that it keeps slots for,
   * or none of them. Resolves when their calls have begun: to answer costs more time than to let them go first.
   */
  committed(jobs: readonly ClaimedJob[], definitionsVersion: number): Promise<void>;
  /** Nobody knows what became of it. */
  lost(): void;
}

/** Of the first lease of a job. */
export const firstEpoch = 1;

/** More are not had at once: one replica would get them all, where claims share them out. */
const mostJobs = 16;
/** All bodies together, in UTF-16 units: their way to the disk takes time of the permits, and the windows' rows are held meanwhile. */
const longestBodies = 65_536;
/** A job that is to expire so soon, in milliseconds, is left to the claim, whatever the clocks say; the store looks once more. */
const clockSlackMs = 1_000;

/** What one intake does about a claimer. */
export class IntakeClaim {
  readonly #claimer: IntakeClaimer | undefined;
  #slots: ReservedSlots | null = null;
  #definitionsVersion = 0;
  #jobs: readonly ClaimedJob[] = [];

  constructor(claimer: IntakeClaimer | undefined) {
    this.#claimer = claimer;
  }

  /** The worker to claim for; null: the jobs are left to the claims. @param rows all that the intake has brought */
  reserve(rows: readonly BatchRow[], definitionsVersion: number): string | null {
    // Of a run before this one.
    this.lost();
    if (this.#claimer === undefined || rows.length > mostJobs || !rows.every(isReady)) return null;
    if (rows.reduce((sum, row) => sum + bodyLength(row), 0) > longestBodies) return null;
    if (rows.some(({ laneId }) => laneId !== rows[0]!.laneId)) return null;
    this.#slots = this.#claimer.reserve(rows.map(({ jobId }) => jobId!));
    this.#definitionsVersion = definitionsVersion;
    return this.#slots && this.#claimer.workerId;
  }

  /** They were claimed, all of them; in the order in which they are to be called. */
  admit(batch: Pick<RowsPlace, 'batchId' | 'tenant'>, rows: readonly BatchRow[], admission: Admission): void {
    const jobs = rows.map(({ jobId, behind }) => ({ jobId: jobId!, job: (behind as NewJob).job }));
    this.#jobs = jobs
      .sort((a, b) => b.job.priority - a.job.priority)
      .map(({ jobId, job }) => toClaimedJob(jobId, batch, job, admission));
  }

  /** The transaction is committed. Gives whether the claimer has its jobs. */
  async committed(): Promise<boolean> {
    const claimed = this.#jobs.length > 0;
    const begun = this.#slots?.committed(this.#jobs, this.#definitionsVersion);
    this.#forget();
    await begun;
    return claimed;
  }

  /** It is rolled back. */
  undone(): void {
    void this.#slots?.committed([], this.#definitionsVersion);
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

function bodyLength({ behind }: BatchRow): number {
  return behind?.kind === 'new' ? (behind.job.body?.length ?? 0) : 0;
}

type NewJob = Extract<BatchRow['behind'], { kind: 'new' }>;

function isReady({ verdict, behind }: BatchRow): boolean {
  if (verdict !== 'accepted' || behind?.kind !== 'new') return false;
  const { runAt, expiresAt } = behind.job;
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
    epoch: firstEpoch,
    calls: 0,
    attemptsUsed: 0,
    throttles: 0,
    firstSentAgeMs: null,
    outcomeUnknown: false,
    reconcileFailures: 0,
  };
}
