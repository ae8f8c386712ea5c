/**
 * How many submissions a minute are taken of each key, or of each address where no key is sent: a bound for a client that has
 * lost itself in a loop, off unless it is configured. Each process counts for itself, in its memory, from a client's first
 * submission on and not by the minutes of a clock; so at most twice as many fit around the turn of two such minutes.
 */
import rateLimit from '@fastify/rate-limit';
import type { FastifyInstance, FastifyReply, FastifyRequest, RouteOptions } from 'fastify';
import { ProblemError } from '../domain/errors.ts';

const windowMs = 60_000;
const limitedRoute = 'POST /v1/batches';

/** Must be called before the routes are registered. @param perMinute undefined: no limit */
export function addIntakeLimit(app: FastifyInstance, perMinute: number | undefined): void {
  if (perMinute === undefined) return;
  app.register(rateLimit, { global: false });
  let count: ReturnType<FastifyInstance['createRateLimit']> | undefined;

  const limit = async (request: FastifyRequest, reply: FastifyReply): Promise<void> => {
    count ??= app.createRateLimit({ max: perMinute, timeWindow: windowMs, keyGenerator: clientOf });
    const state = await count(request);
    if (state.isAllowed) return;
    const { remaining, ttlInSeconds, isExceeded } = state;
    // The fields of draft-ietf-httpapi-ratelimit-headers as it is now, and those of its first versions, which clients know.
    reply.headers({
      'ratelimit-policy': `"intake";q=${perMinute};w=${windowMs / 1000}`,
      ratelimit: `"intake";r=${remaining};t=${ttlInSeconds}`,
      'ratelimit-limit': String(perMinute),
      'ratelimit-remaining': String(remaining),
      'ratelimit-reset': String(ttlInSeconds),
    });
    if (!isExceeded) return;
    const whose = request.principal.key === null ? 'address' : 'key';
    throw new ProblemError(
      'too_many_requests',
      `more than ${perMinute} submissions a minute with this ${whose}; a batch may have 10,000 items, and a stream any number`,
      { retryAfterSeconds: Math.max(1, ttlInSeconds) },
    );
  };
  app.addHook('onRoute', (route) => {
    if (`${route.method} ${route.url}` === limitedRoute) route.onRequest = [...hooksOf(route), limit];
  });
}

function hooksOf({ onRequest = [] }: RouteOptions) {
  return Array.isArray(onRequest) ? onRequest : [onRequest];
}

function clientOf({ principal, ip }: FastifyRequest): string {
  return principal.key === null ? `address ${rateLimit.normalizeIP(ip)}` : `key ${principal.key}`;
}
