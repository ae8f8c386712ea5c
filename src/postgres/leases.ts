/**
 * Workers and their leases. The lease is the worker's, one row renewed at a third of its length, and covers every job it
 * runs; the epoch on the job fences late writes. All of it is judged by the database's clock.
 * A lease that ran out can be renewed as long as nobody has acted on it: then the worker must look which of its jobs are
 * still its own.
 */
import type { ClaimedJob } from '../domain/job.ts';
import { type Database, promptMs } from './database.ts';

export interface WorkerIdentity {
  readonly workerId: string;
  readonly host: string;
  readonly pid: number;
  readonly concurrency: number;
}

/** Registers a worker with a fresh lease. */
export async function registerWorker(database: Database, worker: WorkerIdentity, leaseSeconds: number): Promise<void> {
  await database.query(
    `insert into sluice.workers (id, host, pid, concurrency, lease_expires_at)
     values ($1::uuid, $2::text, $3::int, $4::int, clock_timestamp() + make_interval(secs => $5::float8))
     on conflict (id) do update set lease_expires_at = excluded.lease_expires_at`,
    [worker.workerId, worker.host, worker.pid, worker.concurrency, leaseSeconds],
  );
}

/** What a renewal found: `lapsed` had run out before (jobs may be another's by now), `gone` was cleared away: register anew. */
export type Renewal = 'renewed' | 'lapsed' | 'gone';

/** Renews the lease of a worker. A connection that does not answer within a third of it leaves time for another try. */
export async function renewLease(database: Database, workerId: string, leaseSeconds: number): Promise<Renewal> {
  const rows = await database.query<{ lapsed: boolean }>(
    `with old as materialized (
       select lease_expires_at < clock_timestamp() as lapsed from sluice.workers where id = $1::uuid for update)
     update sluice.workers w set lease_expires_at = clock_timestamp() + make_interval(secs => $2::float8)
       from old where w.id = $1::uuid returning old.lapsed`,
    [workerId, leaseSeconds],
    'renew_lease',
    { before: 'renew.before', after: 'renew.after', withinMs: Math.min(promptMs, (leaseSeconds * 1000) / 3) },
  );
  const row = rows[0];
  if (!row) return 'gone';
  return row.lapsed ? 'lapsed' : 'renewed';
}

/** The jobs that a worker holds, as the database sees it: job id → epoch. */
export async function heldJobs(database: Database, workerId: string): Promise<Map<string, number>> {
  const rows = await database.query<{ job_id: string; epoch: number }>(
    'select job_id, epoch from sluice.running_jobs where worker_id = $1::uuid',
    [workerId],
    undefined,
    { withinMs: promptMs },
  );
  return new Map(rows.map((row) => [row.job_id, row.epoch]));
}

/** Removes a worker that runs nothing; one that still has jobs stays, for the reaper. */
export async function deregisterWorker(database: Database, workerId: string): Promise<void> {
  await database.query(
    `delete from sluice.workers w where w.id = $1::uuid
        and not exists (select 1 from sluice.running_jobs r where r.worker_id = w.id)`,
    [workerId],
  );
}

/** A job whose worker's lease has run out, with what the decision about it needs. */
export type OrphanedJob = Pick<
  ClaimedJob,
  | 'jobId'
  | 'epoch'
  | 'upstream'
  | 'method'
  | 'calls'
  | 'attemptsUsed'
  | 'throttles'
  | 'maxAttempts'
  | 'firstSentAgeMs'
  | 'outcomeUnknown'
  | 'reconcileFailures'
> & {
  readonly workerId: string;
  /** It waited for its slot: its call was surely not made. */
  readonly neverCalled: boolean;
};

/**
 * Jobs whose worker's lease has run out or whose worker is gone, at most `limit`. Nothing is locked: the settle is fenced.
 * Looking means reading every running job, and every one that has ended since vacuum came: nothing is read while all leases
 * hold, unless `whole` asks for workers that are gone (a claim that was made after its worker had left).
 */
export async function findOrphanedJobs(database: Database, limit: number, whole = true): Promise<OrphanedJob[]> {
  return database.query<OrphanedJob>(
    `select r.job_id as "jobId", r.epoch, r.worker_id as "workerId", j.upstream, j.method, r.calls,
            r.attempts_used as "attemptsUsed", r.throttles, j.max_attempts as "maxAttempts",
            (extract(epoch from clock_timestamp() - sluice.key_age_start(r.first_sent_at, j.key_age_from)) * 1000)::float8 as "firstSentAgeMs",
            r.outcome_unknown as "outcomeUnknown", r.reconcile_failures as "reconcileFailures",
            exists (select 1 from sluice.claims_ahead a where a.id = r.claim_ahead) as "neverCalled"
       from sluice.running_jobs r join sluice.jobs j on j.id = r.job_id
       left join sluice.workers w on w.id = r.worker_id
      where (w.id is null or w.lease_expires_at < clock_timestamp())
        and ($2::boolean or (select exists (select 1 from sluice.workers e where e.lease_expires_at < clock_timestamp())))
      limit $1::int`,
    [limit, whole],
  );
}

/**
 * Writes that the jobs which a claim brought ahead of their slots may be called from now on. false: the mark is gone, and with
 * it the right to call them.
 */
export async function letGoAhead(database: Database, workerId: string, claimId: string): Promise<boolean> {
  const rows = await database.query(
    'delete from sluice.claims_ahead c where c.id = $1::uuid and c.worker_id = $2::uuid returning c.id',
    [claimId, workerId],
    'let_go_ahead',
    { withinMs: promptMs },
  );
  return rows.length === 1;
}

/**
 * Clears away what claims of workers that are gone have left; those of a worker that is there end with its settles. Who is gone
 * is asked first: whether a claim still has jobs can only be seen by reading all that run.
 */
export async function sweepClaimsAhead(database: Database, limit: number): Promise<number> {
  const left = await database.query<{ id: string }>(
    `select o.id from sluice.claims_ahead o
      where not exists (select 1 from sluice.workers w where w.id = o.worker_id) limit $1::int`,
    [limit],
  );
  if (left.length === 0) return 0;
  const rows = await database.query(
    `delete from sluice.claims_ahead c where c.id in (
       select o.id from sluice.claims_ahead o
        where o.id = any ($1::uuid[]) and not exists (select 1 from sluice.running_jobs r where r.claim_ahead = o.id)
        for update skip locked)
     returning c.id`,
    [left.map(({ id }) => id)],
  );
  return rows.length;
}

/** Clears away workers whose lease ran out and that hold no job. Gives how many. */
export async function sweepWorkers(database: Database, limit: number): Promise<number> {
  const rows = await database.query(
    `delete from sluice.workers w where w.id in (
       select o.id from sluice.workers o
        where o.lease_expires_at < clock_timestamp() - interval '10 seconds'
          and not exists (select 1 from sluice.running_jobs r where r.worker_id = o.id)
        order by o.id limit $1::int for update skip locked)
     returning w.id`,
    [limit],
  );
  return rows.length;
}
