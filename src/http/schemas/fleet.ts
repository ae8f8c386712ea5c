/** Workers and figures of the fleet, as the admin API shows them. */
import { z } from 'zod';
import { instant } from './batches.ts';

const count = z.number().int().min(0);

export const workerSchema = z
  .object({
    worker_id: z.uuid().describe('New with each start of a process'),
    host: z.string().describe('Host name of its machine'),
    pid: z.number().int().describe('Its process id there'),
    concurrency: count.describe('Worker slots of the process'),
    started_at: instant.describe('When it registered'),
    lease_expires_at: instant.describe('Renewed at a third of its length'),
    running: count.describe('Jobs that it holds now'),
    jobs: z
      .array(
        z.object({
          job_id: z.uuid().nullable().describe('The job; null: of another tenant'),
          queue: z.string().describe('Its queue'),
          upstream: z.string().describe('Its upstream'),
          partition_key: z.string().nullable().describe('Its partition key'),
          attempt: z.number().int().describe('Number of the call that is under way'),
          epoch: z.number().int().describe('Of the lease'),
          admitted_at: instant.describe('When the claim let it through'),
        }),
      )
      .describe('What it runs, the longest running first, at most 200'),
  })
  .meta({ id: 'Worker', description: 'A live worker process' });

const age = z.number().min(0).nullable();
const rate = z.number().min(0);

export const statsSchema = z
  .object({
    at: instant.describe('When this was worked out, on the clock of the database'),
    jobs: z
      .object({
        scheduled: count,
        ready: count,
        running: count,
        succeeded: count,
        failed: count,
        held: count,
        cancelled: count,
        expired: count,
      })
      .describe('Jobs that are kept, by state'),
    succeeded_is_estimate: z.boolean().describe('Beyond two million ended jobs `succeeded` is an estimate'),
    rates: z
      .object({
        seconds: z.number().int().describe('Taken over so many seconds until now'),
        attempts_per_second: rate.describe('Calls that were started in that time and have ended'),
        ended_per_second: rate.describe('Jobs that have ended'),
        attempts: z
          .object({
            success: count,
            rejected: count,
            throttled: count,
            error: count,
            timeout: count,
            not_sent: count,
            unknown: count,
          })
          .describe('Those calls by outcome'),
        ended: z
          .object({ succeeded: count, failed: count, cancelled: count, expired: count })
          .describe('Those jobs by state'),
      })
      .describe('What has happened lately'),
    oldest_eligible_age_seconds: age.describe('Of the job that could run now and has waited longest; null: none could'),
    queues: z
      .array(
        z.object({
          queue: z.string().describe('Its name'),
          ready: count.describe('Jobs that are due in it'),
          oldest_eligible_age_seconds: age.describe('Of what could run now'),
          oldest_throttled_age_seconds: age.describe('Of what a window or a cooldown keeps waiting'),
        }),
      )
      .describe('Queues in which jobs are ready'),
    workers: z
      .object({
        live: count.describe('Processes whose lease is good'),
        slots: count.describe('Their worker slots'),
        running: count.describe('Jobs that run'),
      })
      .describe('The fleet'),
  })
  .meta({ id: 'Stats', description: 'How the service stands, all tenants together' });
