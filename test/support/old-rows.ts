/** Rows that look as old as a test of retention needs them: nothing waits for days to pass. */
import type { Database } from '../../src/postgres/database.ts';
import {
  newRetentionCursor,
  type RetentionCursor,
  type RetentionPolicy,
  retainOnce,
} from '../../src/postgres/retention.ts';

/** An SQL interval, such as `30 days 1 minute`. */
export type Age = string;

/** Ends the ready job of this key, that long ago, with one call on record. Gives its id. */
export async function endJob(database: Database, key: string, age: Age, state = 'succeeded'): Promise<string> {
  const [row] = await database.query<{ id: string }>(
    `with gone as (
       delete from sluice.ready_jobs r using sluice.jobs j
        where j.id = r.job_id and j.idempotency_key = $1 returning r.job_id),
     done as (
       insert into sluice.done_jobs (job_id, state, reason, evidence, status, ended_at, calls, attempts_used)
       select job_id, $3, null, 'response', 200, clock_timestamp() - $2::interval, 1, 1 from gone)
     insert into sluice.attempts (job_id, number, epoch, worker_id, outcome, charged, status, started_at, ended_at, excerpt)
     select job_id, (select 1 + count(*) from sluice.attempts a where a.job_id = gone.job_id), 1, job_id, 'success', 'attempt', 200, clock_timestamp() - $2::interval,
            clock_timestamp() - $2::interval, 'kept answer'
       from gone returning job_id as id`,
    [key, age, state],
  );
  if (row === undefined) throw new Error(`there is no ready job ${key}`);
  return row.id;
}

/** Makes a batch that old; its jobs stay as they are. */
export async function ageBatch(database: Database, batchId: string, age: Age): Promise<void> {
  await database.query('update sluice.batches set created_at = clock_timestamp() - $2::interval where id = $1', [
    batchId,
    age,
  ]);
}

/** Makes the end of a job, and the receipt that is kept of it, that old. */
export async function ageEnd(database: Database, jobId: string, age: Age): Promise<void> {
  for (const table of ['done_jobs', 'receipts']) {
    await database.query(`update sluice.${table} set ended_at = clock_timestamp() - $2::interval where job_id = $1`, [
      jobId,
      age,
    ]);
  }
}

export interface Round {
  readonly keys: number;
  readonly batches: number;
  readonly jobs: number;
  /** The most jobs that one step deleted. */
  readonly mostJobs: number;
}

/** Steps until a round is over; by default one that walks from the oldest on. */
export async function retentionRound(
  database: Database,
  policy: RetentionPolicy,
  { most = 500, cursor = newRetentionCursor() }: { most?: number; cursor?: RetentionCursor } = {},
): Promise<Round> {
  let round: Round = { keys: 0, batches: 0, jobs: 0, mostJobs: 0 };
  for (let steps = 0; steps < 1_000; steps += 1) {
    const step = await retainOnce(database, policy, cursor, { most });
    round = {
      keys: round.keys + step.keys,
      batches: round.batches + step.batches,
      jobs: round.jobs + step.jobs,
      mostJobs: Math.max(round.mostJobs, step.jobs),
    };
    if (step.roundOver) return round;
  }
  throw new Error('the round did not end');
}
