/** Workers and figures of the fleet, as the admin API shows them. */
import { z } from 'zod';
import { instant } from './batches.ts';

const count = z.number().int().min(0);

export const workerSchema = z
  .object({
    worker_id: z.uuid(),
    host: z.string(),
    pid: z.number().int(),
    concurrency: count.describe('Worker slots of the process'),
    started_at: instant,
    lease_expires_at: instant.describe('Renewed at a third of its length'),
    running: count.describe('Jobs that it holds now'),
    jobs: z
      .array(
        z.object({
          job_id: z.uuid(),
          queue: z.string(),
          upstream: z.string(),
          partition_key: z.string().nullable(),
          attempt: z.number().int().describe('Number of the call that is under way'),
          epoch: z.number().int(),
          admitted_at: instant,
        }),
      )
      .describe('What it runs, the longest running first, at most 200'),
  })
  .meta({ id: 'Worker', description: 'A live worker process' });

const age = z.number().min(0).nullable();
const rate = z.number().min(0);

export const statsSchema = z
  .object({
    at: instant,
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
          queue: z.string(),
          ready: count,
          oldest_eligible_age_seconds: age.describe('Of what could run now'),
          oldest_throttled_age_seconds: age.describe('Of what a window or a cooldown keeps waiting'),
        }),
      )
      .describe('Queues in which jobs are ready'),
    workers: z.object({ live: count, slots: count, running: count }),
  })
  .meta({ id: 'Stats', description: 'How the service stands, all tenants together' });
