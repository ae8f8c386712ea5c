/** Batches as a whole: a list of them, and what a person does with one. */
import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import type { BatchDependencies } from '../../application/batches.ts';
import { cancelBatch } from '../../application/cancel.ts';
import { closeBatch } from '../../application/close-batch.ts';
import { type BatchSummary, listBatches } from '../../application/lists.ts';
import { resumeBatch } from '../../application/resume.ts';
import { batchProgressSchema, batchSummarySchema } from '../schemas/batches.ts';
import { idInPath } from '../schemas/ids.ts';
import { decodeCursor, encodeCursor, listOf, listParameters, shortPages } from '../schemas/lists.ts';
import { showProgress } from './batches.ts';

const tags = ['batches'];

export function batchOperationRoutes(app: FastifyInstance, deps: BatchDependencies): void {
  const typed = app.withTypeProvider<ZodTypeProvider>();

  typed.get(
    '/v1/batches',
    {
      config: { scope: 'read' },
      schema: {
        summary: 'List batches',
        description: `Newest first. ${shortPages}`,
        tags,
        querystring: z.strictObject(listParameters),
        response: { 200: listOf(batchSummarySchema).describe('A page of batches') },
      },
    },
    async (request) => {
      const { cursor, limit } = request.query;
      const before = decodeCursor(z.uuid(), cursor) ?? null;
      const { items, next } = await listBatches(deps, request.principal.tenant, { before, limit });
      return { items: items.map(showSummary), next_cursor: next === null ? null : encodeCursor(next) };
    },
  );

  typed.post(
    '/v1/batches/:batch_id/cancel',
    {
      config: { scope: 'submit' },
      schema: {
        summary: 'Cancel a batch',
        description:
          'What it has brought and waits (`scheduled`, `ready`, `held`) ends as `cancelled`; jobs behind its duplicates are not its own and stay. Calls under way end by themselves, and nothing of it starts after them: `status` is `cancelled` once nothing of it runs. To ask again is harmless. 409 with its `state` where it is `completed`.',
        tags,
        params: z.object({ batch_id: idInPath }),
        response: { 200: batchProgressSchema.describe('As it stands now') },
      },
    },
    async (request) => showProgress(await cancelBatch(deps, request.principal.tenant, request.params.batch_id)),
  );

  typed.post(
    '/v1/batches/:batch_id/resume',
    {
      config: { scope: 'submit' },
      schema: {
        summary: 'Resume a batch that a fuse holds',
        description:
          'For a batch with `held_by`: an answer such as 401 said that no further call of it would do, and what it has brought was put on hold. Once that is put right (new credentials: upstream secrets are read at the time of the call), this lets the jobs with the reason `fuse` go on as they were: ready or scheduled, with what they had spent, the same keys, in their old places. Jobs that are held for another reason stay. Where the answers are still such, the next one stops the batch again. To ask again is harmless, and a batch that no fuse holds stays as it is; 409 for one that was cancelled. Of a very large batch the last jobs follow within seconds of the answer.',
        tags,
        params: z.object({ batch_id: idInPath }),
        response: { 200: batchProgressSchema.describe('As it stands now') },
      },
    },
    async (request) => showProgress(await resumeBatch(deps, request.principal.tenant, request.params.batch_id)),
  );

  app.withTypeProvider<ZodTypeProvider>().post(
    '/v1/batches/:batch_id/close',
    {
      config: { scope: 'submit' },
      schema: {
        summary: 'Close an incomplete batch',
        description:
          'Ends a batch whose stream (NDJSON) broke off and will not be resumed: what is stored is all of it, and a stream that still brings lines ends with an error. By itself this happens after 24 hours in which nothing came. A batch that is not `incomplete` stays as it is.',
        tags,
        params: z.object({ batch_id: idInPath }),
        response: { 200: batchProgressSchema.describe('As it stands now') },
      },
    },
    async (request) => showProgress(await closeBatch(deps, request.principal.tenant, request.params.batch_id)),
  );
}

function showSummary(batch: BatchSummary): z.output<typeof batchSummarySchema> {
  return {
    batch_id: batch.batchId,
    status: batch.status,
    created_at: batch.createdAt.toISOString(),
    cancelled_at: batch.cancelledAt?.toISOString() ?? null,
    correlation_id: batch.correlationId,
    counts: batch.counts,
  };
}
