/** Why a job has not run, as the API tells it. */
import { z } from 'zod';
import { instant, jobState } from './batches.ts';

export const explanationSchema = z
  .object({
    job_id: z.uuid().describe('The job that was asked about'),
    state: jobState.describe('As it is now'),
    runnable: z.boolean().describe('It is ready and waits for nothing but a worker slot'),
    position: z
      .number()
      .int()
      .nullable()
      .describe(
        'Its place in its lane, from 1: among what is due there, in a fifo queue among all that is unfinished; null: it runs or has ended',
      ),
    waiting_on: z
      .array(
        z.object({
          kind: z
            .enum([
              'window',
              'cooldown',
              'upstream_paused',
              'queue_paused',
              'scheduled',
              'fifo',
              'slot',
              'lease',
              'held',
              'ended',
            ])
            .describe(
              '`window`: a rate limit has no room for it and those before it, is paused, or has as many calls in flight as it may. `cooldown`: the upstream said 429 or 503, or the rate is coming back after that. `scheduled`: its `run_at`, or the backoff of a retry. `fifo`: a job before it in its lane is unfinished. `slot`: all worker slots are taken. `lease`: it runs, under the lease of a worker. `held`: a person decides. `ended`: there is nothing to wait for',
            ),
          name: z
            .string()
            .nullable()
            .describe(
              'Of the limit, the upstream, the queue or the worker; of a held job its reason, of an ended one its state',
            ),
          partition_key: z.string().nullable().describe('Where the window or the cooldown is of one partition'),
          until: instant.nullable().describe('The earliest time at which this is over, as far as one is known'),
          detail: z.string().describe('For people'),
        }),
      )
      .describe('All that is in its way now, what keeps its whole lane first; empty: the next claim takes it'),
  })
  .meta({ id: 'Explanation', description: 'Why a job has not run' });
