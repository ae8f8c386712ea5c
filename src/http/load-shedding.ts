/**
 * What is dear is refused while the process cannot keep up: its event loop turns slowly, or its heap is nearly full. What it
 * has taken on gets done, and who watches or steers it is always heard. Both are measured all the time, once a second.
 *
 * The delay is the mean of a second's turns: one batch of 10,000 items, which holds the loop for some tenths of a second, moves
 * it by a few milliseconds, and several at once by about what each of them takes.
 */
import { getHeapStatistics } from 'node:v8';
import underPressure from '@fastify/under-pressure';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { ProblemError } from '../domain/errors.ts';

export interface LoadLimits {
  /** Mean delay of the event loop, in milliseconds. */
  readonly loopDelayMs: number;
  /** Heap in use, in bytes; 90 % of what V8 allows itself by default. Near all of it, collecting garbage takes all the time. */
  readonly heapBytes?: number;
}

const heapShare = 0.9;
const retryAfterSeconds = 2;

/** Routes that may cost much for one request. */
export const dearRoutes: ReadonlySet<string> = new Set([
  'POST /v1/batches',
  'GET /v1/batches/:batch_id/items',
  'GET /v1/batches',
  'GET /v1/jobs',
  'POST /v1/receipts/lookup',
  'GET /admin/dead-letter',
  'GET /admin/rate-windows/:limit/audit',
]);

/** Must be called before the routes are registered. @param limits undefined: nothing is refused */
export function addLoadShedding(app: FastifyInstance, limits: LoadLimits | undefined): void {
  if (limits === undefined) return;
  const { loopDelayMs, heapBytes = Math.floor(getHeapStatistics().heap_size_limit * heapShare) } = limits;
  app.register(underPressure, {
    maxEventLoopDelay: loopDelayMs,
    maxHeapUsedBytes: heapBytes,
    pressureHandler: (request, _reply, what) => (isDear(request) ? Promise.reject(overloaded(what)) : undefined),
  });
}

function isDear({ method, routeOptions: { url } }: FastifyRequest): boolean {
  // A HEAD costs what its GET costs.
  return url !== undefined && dearRoutes.has(`${method === 'HEAD' ? 'GET' : method} ${url}`);
}

function overloaded(what: string): ProblemError {
  const why = what === 'heapUsedBytes' ? 'its memory is nearly full' : 'it is too busy to answer in time';
  return new ProblemError(
    'overloaded',
    `this process does not take more work just now: ${why}; try again, or another`,
    {
      retryAfterSeconds,
    },
  );
}
