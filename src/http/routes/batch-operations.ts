/** What a person does with a batch as a whole. */
import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import type { BatchDependencies } from '../../application/batches.ts';
import { cancelBatch } from '../../application/cancel.ts';
import { closeBatch } from '../../application/close-batch.ts';
import { batchProgressSchema } from '../schemas/batches.ts';
import { showProgress } from './batches.ts';

const tags = ['batches'];

export function batchOperationRoutes(app: FastifyInstance, deps: BatchDependencies): void {
  app.withTypeProvider<ZodTypeProvider>().post(
    '/v1/batches/:batch_id/cancel',
    {
      config: { scope: 'submit' },
      schema: {
        summary: 'Cancel a batch',
        description:
          'What it has brought and waits (`scheduled`, `ready`, `held`) ends as `cancelled`; jobs behind its duplicates are not its own and stay. Calls under way end by themselves, and nothing of it starts after them: `status` is `cancelled` once nothing of it runs. To ask again is harmless. 409 with its `state` where it is `completed`.',
        tags,
        params: z.object({ batch_id: z.string() }),
        response: { 200: batchProgressSchema.describe('As it stands now') },
      },
    },
    async (request) => showProgress(await cancelBatch(deps, request.principal.tenant, request.params.batch_id)),
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
        params: z.object({ batch_id: z.string() }),
        response: { 200: batchProgressSchema.describe('As it stands now') },
      },
    },
    async (request) => showProgress(await closeBatch(deps, request.principal.tenant, request.params.batch_id)),
  );
}
