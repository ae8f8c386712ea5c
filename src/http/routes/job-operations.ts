/** A job in the hands of a person: ask why it has not run, call it off, send it on its way again. */
import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import { cancelJob } from '../../application/cancel.ts';
import { explainJob, type JobExplanation } from '../../application/explain.ts';
import type { JobDependencies } from '../../application/jobs.ts';
import { retryJob } from '../../application/retry.ts';
import { explanationSchema } from '../schemas/explain.ts';
import { idInPath } from '../schemas/ids.ts';
import { jobSchema, retryRequestSchema } from '../schemas/jobs.ts';
import { showJob } from './jobs.ts';

const path = '/v1/jobs/:job_id';
const tags = ['jobs'];
const jobParameter = z.object({ job_id: idInPath });
const access = { scope: 'submit' } as const;

export function jobOperationRoutes(app: FastifyInstance, deps: JobDependencies): void {
  const typed = app.withTypeProvider<ZodTypeProvider>();

  typed.get(
    `${path}/explain`,
    {
      config: { scope: 'read' },
      schema: {
        summary: 'Explain a job',
        description:
          'Why it has not run: what it waits for, until when, and its place. Worked out from the windows, cooldowns and definitions as they are; reading changes nothing.',
        tags,
        params: jobParameter,
        response: { 200: explanationSchema.describe('As it is now') },
      },
    },
    async (request) => showExplanation(await explainJob(deps, request.principal.tenant, request.params.job_id)),
  );

  typed.post(
    `${path}/cancel`,
    {
      config: access,
      schema: {
        summary: 'Cancel a job',
        description:
          'One that waits (`scheduled`, `ready`, `held`) ends as `cancelled`. 409 with its `state` where it runs or has ended.',
        tags,
        params: jobParameter,
        response: { 200: jobSchema.describe('Cancelled') },
      },
    },
    async (request) => showJob(await cancelJob(deps, request.principal.tenant, request.params.job_id)),
  );

  typed.post(
    `${path}/retry`,
    {
      config: access,
      schema: {
        summary: 'Retry a job',
        description:
          'One that is `failed`, `cancelled`, `expired` or `held` goes on its way again: `ready`, or `scheduled` before its `run_at`; an `expires_at` that has passed is dropped. Its budgets start anew (`attempts_used`, `throttles`), its calls are counted on, its key stays. Of a `held` job this is your decision that the call may be made again. 409 with its `state` where it goes on by itself or has succeeded.',
        tags,
        params: jobParameter,
        body: retryRequestSchema,
        response: { 200: jobSchema.describe('On its way again') },
      },
    },
    async (request) =>
      showJob(
        await retryJob(deps, request.principal.tenant, request.params.job_id, {
          freshKey: request.body?.fresh_key ?? false,
        }),
      ),
  );
}

function showExplanation({
  jobId,
  state,
  runnable,
  position,
  waitingOn,
}: JobExplanation): z.output<typeof explanationSchema> {
  return {
    job_id: jobId,
    state,
    runnable,
    position,
    waiting_on: waitingOn.map(({ kind, name, partitionKey, untilUs, detail }) => ({
      kind,
      name,
      partition_key: partitionKey,
      until: untilUs === null ? null : untilText(untilUs),
      detail,
    })),
  };
}

/** The last millisecond that RFC 3339 can write. */
const lastMs = Date.UTC(9999, 11, 31, 23, 59, 59, 999);

/** Not before it: rounded up to the millisecond. null: the place of a job in its lane can take it beyond any date. */
function untilText(us: number): string | null {
  const ms = Math.ceil(us / 1000);
  return ms > lastMs ? null : new Date(ms).toISOString();
}
