/** The live workers and what each of them runs. Reading changes nothing. Index used: workers_pkey; running jobs are read whole. */
import type { Database } from './database.ts';

export interface RunningJob {
  readonly jobId: string;
  readonly queue: string;
  readonly upstream: string;
  readonly partitionKey: string | null;
  /** Of the call that it makes now, from 1. */
  readonly attempt: number;
  readonly epoch: number;
  readonly admittedAt: Date;
}

export interface LiveWorker {
  readonly workerId: string;
  readonly host: string;
  readonly pid: number;
  readonly concurrency: number;
  readonly startedAt: Date;
  readonly leaseExpiresAt: Date;
  readonly running: number;
  /** The longest running first, at most `mostShown`. */
  readonly jobs: readonly RunningJob[];
}

/** Of one worker: as many as usual settings have slots, several times over. */
const mostShown = 200;

/** By id, after `after` (null: from the first), at most `limit`. Ids ascend with the workers' start. */
export async function readWorkers(database: Database, after: string | null, limit: number): Promise<LiveWorker[]> {
  const workers = await database.query<Omit<LiveWorker, 'running' | 'jobs'>>(
    `select w.id as "workerId", w.host, w.pid, w.concurrency, w.started_at as "startedAt",
            w.lease_expires_at as "leaseExpiresAt"
       from sluice.workers w
      where w.lease_expires_at > sluice.at_us(sluice.clock_us()) and ($1::uuid is null or w.id > $1)
      order by w.id limit $2`,
    [after, limit],
  );
  const running = await database.query<
    Omit<RunningJob, 'partitionKey'> & { workerId: string; partition_key: string; count: number }
  >(
    `select r.worker_id as "workerId", r.job_id as "jobId", j.queue, j.upstream, j.partition_key, r.calls + 1 as attempt,
            r.epoch, r.admitted_at as "admittedAt", r.count::int
       from (select x.*, count(*) over (partition by x.worker_id) as count,
                    row_number() over (partition by x.worker_id order by x.admitted_at, x.job_id) as place
               from sluice.running_jobs x where x.worker_id = any ($1::uuid[])) r
       join sluice.jobs j on j.id = r.job_id
      where r.place <= $2
      order by r.worker_id, r.place`,
    [workers.map(({ workerId }) => workerId), mostShown],
  );
  return workers.map((worker) => {
    const its = running.filter(({ workerId }) => workerId === worker.workerId);
    return {
      ...worker,
      running: its[0]?.count ?? 0,
      jobs: its.map(({ workerId: _w, count: _c, partition_key: key, ...job }) => ({
        ...job,
        partitionKey: key === '' ? null : key,
      })),
    };
  });
}
