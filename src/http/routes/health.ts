/** For load balancers and supervisors: is the process alive, should it get traffic. */
import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import { type Fault, ProblemError } from '../../domain/errors.ts';

export function healthRoutes(
  app: FastifyInstance,
  { readiness }: { readiness: () => Promise<readonly Fault[]> },
): void {
  const typed = app.withTypeProvider<ZodTypeProvider>();

  typed.get(
    '/livez',
    {
      config: { scope: 'open' },
      schema: {
        summary: 'Is the process alive',
        description: 'Answers as long as the process can answer at all, whatever the database does.',
        tags: ['health'],
        response: { 200: z.object({ status: z.literal('alive') }).describe('It answers') },
      },
    },
    async () => ({ status: 'alive' as const }),
  );

  typed.get(
    '/readyz',
    {
      config: { scope: 'open' },
      schema: {
        summary: 'Should it get traffic',
        description:
          '503 when PostgreSQL is away, when claims have stopped, and during a shutdown; `errors` says which.',
        tags: ['health'],
        response: { 200: z.object({ status: z.literal('ready') }).describe('Ready') },
      },
    },
    async () => {
      const faults = await readiness();
      if (faults.length > 0) {
        throw new ProblemError('not_ready', faults.map((fault) => fault.message).join('; '), {
          errors: faults,
          retryAfterSeconds: 1,
        });
      }
      return { status: 'ready' as const };
    },
  );
}
