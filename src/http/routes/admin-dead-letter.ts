/** Dead letters: failed and held jobs, and sending them on their way again in bulk. */
import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import { type DeadLetterFilter, listDeadLetters, redrive } from '../../application/dead-letters.ts';
import type { JobDependencies } from '../../application/jobs.ts';
import {
  type DeadLetterFilters,
  deadLetterFilters,
  redriveAnswerSchema,
  redriveRequestSchema,
} from '../schemas/dead-letters.ts';
import { jobSummarySchema } from '../schemas/jobs.ts';
import { decodeCursor, encodeCursor, listOf, listParameters, shortPages } from '../schemas/lists.ts';
import { showSummary } from './jobs.ts';

const path = '/admin/dead-letter';
const tags = ['dead letters'];
const access = { scope: 'admin' } as const;

export function adminDeadLetterRoutes(app: FastifyInstance, deps: JobDependencies): void {
  const typed = app.withTypeProvider<ZodTypeProvider>();

  typed.get(
    path,
    {
      config: access,
      schema: {
        summary: 'List dead letters',
        description: `Failed and held jobs of the key's tenant, newest first. ${shortPages}`,
        tags,
        querystring: z.strictObject({ ...listParameters, ...deadLetterFilters }),
        response: { 200: listOf(jobSummarySchema).describe('A page of jobs') },
      },
    },
    async (request) => {
      const { cursor, limit, ...filters } = request.query;
      const before = decodeCursor(z.uuid(), cursor) ?? null;
      const page = await listDeadLetters(deps, request.principal.tenant, filterOf(filters), { before, limit });
      return {
        items: page.items.map(showSummary),
        next_cursor: page.next === null ? null : encodeCursor(page.next),
      };
    },
  );

  typed.post(
    `${path}/redrive`,
    {
      config: access,
      schema: {
        summary: 'Redrive dead letters',
        description:
          'Each goes on its way again as `POST /v1/jobs/{job_id}/retry` does it: new budgets, its key kept or (with `fresh_key`) a new one. In steps of some hundred jobs; one that is broken off has done what it has done, and to ask again does the rest. An empty `filter` takes all dead letters.',
        tags,
        body: redriveRequestSchema,
        response: { 200: redriveAnswerSchema.describe('What was done') },
      },
    },
    async (request) => {
      const { filter, job_ids: jobIds, fresh_key: freshKey } = request.body;
      const selection = jobIds === undefined ? { filter: filterOf(filter ?? {}) } : { jobIds };
      return redrive(deps, request.principal.tenant, selection, { freshKey });
    },
  );
}

function filterOf({ state, reason, upstream, queue, batch_id }: DeadLetterFilters): DeadLetterFilter {
  return {
    state: state ?? null,
    reason: reason ?? null,
    upstream: upstream ?? null,
    queue: queue ?? null,
    batchId: batch_id ?? null,
  };
}
