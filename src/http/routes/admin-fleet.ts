/** The fleet: live workers and what they run, and figures of the whole. */
import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import { getStats, listWorkers } from '../../application/fleet.ts';
import { type JobName, jobNames } from '../../application/job-names.ts';
import type { Database } from '../../postgres/database.ts';
import type { Stats } from '../../postgres/read-stats.ts';
import type { LiveWorker } from '../../postgres/read-workers.ts';
import { statsSchema, workerSchema } from '../schemas/fleet.ts';
import { decodeCursor, encodeCursor, listOf, listParameters } from '../schemas/lists.ts';

const tags = ['fleet'];
const access = { scope: 'admin' } as const;

export function adminFleetRoutes(app: FastifyInstance, deps: { readonly database: Database }): void {
  const typed = app.withTypeProvider<ZodTypeProvider>();

  typed.get(
    '/admin/workers',
    {
      config: access,
      schema: {
        summary: 'List workers',
        description: 'Those whose lease is good, by the time of their start.',
        tags,
        querystring: z.strictObject(listParameters),
        response: { 200: listOf(workerSchema).describe('A page of workers') },
      },
    },
    async (request) => {
      const { cursor, limit } = request.query;
      const after = decodeCursor(z.uuid(), cursor) ?? null;
      const { items, next } = await listWorkers(deps, { after, limit });
      const running = items.flatMap(({ jobs }) => jobs.map(({ jobId }) => jobId));
      const nameOf = await jobNames(deps, request.principal.tenant, running);
      return {
        items: items.map((worker) => showWorker(worker, nameOf)),
        next_cursor: next === null ? null : encodeCursor(next),
      };
    },
  );

  typed.get(
    '/admin/stats',
    {
      config: access,
      schema: {
        summary: 'Read figures of the whole',
        description: 'Counts, rates and ages over all tenants, worked out when asked.',
        tags,
        response: { 200: statsSchema.describe('As it stands') },
      },
    },
    async () => showStats(await getStats(deps)),
  );
}

function showWorker(worker: LiveWorker, nameOf: JobName): z.output<typeof workerSchema> {
  return {
    worker_id: worker.workerId,
    host: worker.host,
    pid: worker.pid,
    concurrency: worker.concurrency,
    started_at: worker.startedAt.toISOString(),
    lease_expires_at: worker.leaseExpiresAt.toISOString(),
    running: worker.running,
    jobs: worker.jobs.map((job) => ({
      job_id: nameOf(job.jobId),
      queue: job.queue,
      upstream: job.upstream,
      partition_key: job.partitionKey,
      attempt: job.attempt,
      epoch: job.epoch,
      admitted_at: job.admittedAt.toISOString(),
    })),
  };
}

function showStats({ at, jobs, succeededIsEstimate, queues, recent, workers }: Stats): z.output<typeof statsSchema> {
  const { seconds, ended } = recent;
  const none = { success: 0, rejected: 0, throttled: 0, error: 0, timeout: 0, not_sent: 0, unknown: 0 };
  const attempts = { ...none, ...recent.attempts };
  const ages = queues.flatMap(({ oldestEligibleSeconds: age }) => (age === null ? [] : [age]));
  return {
    at: at.toISOString(),
    jobs,
    succeeded_is_estimate: succeededIsEstimate,
    rates: {
      seconds,
      attempts_per_second: sum(attempts) / seconds,
      ended_per_second: sum(ended) / seconds,
      attempts,
      ended,
    },
    oldest_eligible_age_seconds: ages.length === 0 ? null : Math.max(...ages),
    queues: queues.map((queue) => ({
      queue: queue.queue,
      ready: queue.ready,
      oldest_eligible_age_seconds: queue.oldestEligibleSeconds,
      oldest_throttled_age_seconds: queue.oldestThrottledSeconds,
    })),
    workers,
  };
}

function sum(counts: Readonly<Record<string, number>>): number {
  return Object.values(counts).reduce((total, each) => total + each, 0);
}
