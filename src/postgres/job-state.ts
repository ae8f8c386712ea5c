/**
 * A job's state is where its row is: done, running, parked or ready, exactly one of them in any snapshot. This is the SQL
 * that finds it by primary keys (a ready row by its place in its lane, which the job's own row tells).
 * Each row is looked up by itself (`offset 0`): a plain join with a table that vacuum saw empty goes through all of it, for
 * every job, until it is analyzed.
 */
import type { JobState } from '../domain/job.ts';

/**
 * Joins for a FROM clause. They add `job` (sluice.jobs), `done`, `running`, `parked` and `ready`, each null where there is
 * no such row.
 * @param jobId the SQL expression that names the job
 */
export function jobRows(jobId: string): string {
  return `
    left join lateral (select * from sluice.jobs x where x.id = ${jobId} offset 0) job on true
    left join lateral (select * from sluice.done_jobs x where x.job_id = ${jobId} offset 0) done on true
    left join lateral (select * from sluice.running_jobs x where x.job_id = ${jobId} offset 0) running on true
    left join lateral (select * from sluice.parked_jobs x where x.job_id = ${jobId} offset 0) parked on true
    left join lateral (
      select * from sluice.ready_jobs x
       where x.lane_id = job.lane_id and x.rank = job.rank and x.seq = job.seq and x.job_id = job.id offset 0) ready on true`;
}

/** The state by the rows of `jobRows`; null: the job's rows are gone. */
export const stateOfRows = `
  case when done.job_id is not null then done.state
       when running.job_id is not null then 'running'
       when parked.job_id is not null then parked.state
       when ready.job_id is not null then 'ready' end`;

/** Type of `stateOfRows`. */
export type StoredState = JobState | null;
