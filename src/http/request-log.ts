/**
 * One line per request, from an allow-list: never headers, bodies, query strings or paths as they were sent, only the
 * route's pattern. A handler adds ids and counts through `request.facts`.
 */
import type { FastifyInstance } from 'fastify';
import type { ProblemCode } from '../domain/errors.ts';
import type { Logger } from '../system/logger.ts';

declare module 'fastify' {
  interface FastifyRequest {
    /** What the log line of this request says besides the usual: ids and counts, nothing that a client wrote. */
    facts: Record<string, string | number | boolean>;
    /** Set when the request was refused. */
    problemCode: ProblemCode | undefined;
  }
}

/** Asked every few seconds by those who watch the service. */
const watched = new Set(['/livez', '/readyz', '/metrics']);

export function addRequestLog(app: FastifyInstance, logger: Logger): void {
  app.decorateRequest('facts', null as unknown as Record<string, string>);
  app.decorateRequest('problemCode', undefined);
  app.addHook('onRequest', async (request) => {
    request.facts = {};
  });
  app.addHook('onResponse', async (request, reply) => {
    const route = request.routeOptions.url;
    const level = route !== undefined && watched.has(route) ? 'debug' : 'info';
    logger[level](
      {
        request_id: request.id,
        method: request.method,
        route: route ?? null,
        status: reply.statusCode,
        duration_ms: Math.round(reply.elapsedTime * 1000) / 1000,
        tenant: request.principal.tenant,
        ...(request.problemCode === undefined ? {} : { code: request.problemCode }),
        ...request.facts,
      },
      'request',
    );
  });
}
