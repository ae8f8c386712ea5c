/** What a person does with a job: call it off, or send it on its way again. */
import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import { cancelJob } from '../../application/cancel.ts';
import type { JobDependencies } from '../../application/jobs.ts';
import { retryJob } from '../../application/retry.ts';
import { jobSchema, retryRequestSchema } from '../schemas/jobs.ts';
import { showJob } from './jobs.ts';

const path = '/v1/jobs/:job_id';
const tags = ['jobs'];
const jobParameter = z.object({ job_id: z.string() });
const access = { scope: 'submit' } as const;

export function jobOperationRoutes(app: FastifyInstance, deps: JobDependencies): void {
  const typed = app.withTypeProvider<ZodTypeProvider>();

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
