/**
 * A job's state is where its row is: done, running, parked or ready, exactly one of them in any snapshot. This is the SQL
 * that finds it by primary keys (a ready row by its place in its lane, which the job's own row tells).
 */
import type { JobState } from '../domain/job.ts';

/**
 * Joins for a FROM clause. They add `job` (sluice.jobs), `done`, `running`, `parked` and `ready`, each null where there is
 * no such row.
 * @param jobId the SQL expression that names the job
 */
export function jobRows(jobId: string): string {
  return `
    left join sluice.jobs job on job.id = ${jobId}
    left join sluice.done_jobs done on done.job_id = ${jobId}
    left join sluice.running_jobs running on running.job_id = ${jobId}
    left join sluice.parked_jobs parked on parked.job_id = ${jobId}
    left join sluice.ready_jobs ready
      on ready.lane_id = job.lane_id and ready.rank = job.rank and ready.seq = job.seq and ready.job_id = job.id`;
}

/** The state by the rows of `jobRows`; null: the job's rows are gone. */
export const stateOfRows = `
  case when done.job_id is not null then done.state
       when running.job_id is not null then 'running'
       when parked.job_id is not null then parked.state
       when ready.job_id is not null then 'ready' end`;

/** Type of `stateOfRows`. */
export type StoredState = JobState | null;
