/** Follow a batch: read it, wait for its end, list or export its items, and listen to what happens. */
import { setMaxListeners } from 'node:events';
import { Readable } from 'node:stream';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import { BatchCounts } from '../../application/batch-counts.ts';
import { type BatchEvent, followBatch } from '../../application/batch-events.ts';
import { BatchWatches, isDone, type WatchDependencies } from '../../application/batch-watches.ts';
import { type BatchDependencies, exportBatchItems, listBatchItems, requireBatch } from '../../application/batches.ts';
import { ProblemError } from '../../domain/errors.ts';
import { type EventPosition, parseEventId, startPosition } from '../../domain/event-position.ts';
import type { StoredItem } from '../../postgres/read-batches.ts';
import type { Logger } from '../../system/logger.ts';
import { prefersNdjson } from '../accept.ts';
import { ndjson } from '../ndjson/answer-stream.ts';
import { problemLine } from '../ndjson/problem-line.ts';
import { preferredWait } from '../prefer.ts';
import { eventStreamSchema, type JobEventData, jobEventSchema } from '../schemas/batch-events.ts';
import {
  batchItemSchema,
  batchProgressSchema,
  exportLineSchema,
  itemFilters,
  maxWaitSeconds,
  waitParameter,
} from '../schemas/batches.ts';
import { idInPath } from '../schemas/ids.ts';
import { decodeCursor, encodeCursor, listOf, listParameters } from '../schemas/lists.ts';
import { showProgress } from './batches.ts';

const path = '/v1/batches/:batch_id';
const tags = ['batches'];
const batchParameter = z.object({ batch_id: idInPath });
const eventStream = 'text/event-stream';
/** Proxies cut what is silent for a minute, some for 30 s. */
const heartbeatMs = 15_000;
/** How long a client that was cut off waits before it comes back. */
const retryMs = 2_000;

export type BatchReadDependencies = BatchDependencies & WatchDependencies & { readonly logger: Logger };

export function batchReadRoutes(app: FastifyInstance, deps: BatchReadDependencies): void {
  const counts = new BatchCounts(deps);
  const watches = new BatchWatches(deps, counts);
  const closing = new AbortController();
  // One for each client that waits.
  setMaxListeners(0, closing.signal);
  app.addHook('preClose', async () => closing.abort());
  addBatch(app, counts, watches, closing.signal);
  addItems(app, deps);
  addEvents(app, deps, counts, watches, closing.signal);
}

function addBatch(app: FastifyInstance, counts: BatchCounts, watches: BatchWatches, closing: AbortSignal): void {
  app.withTypeProvider<ZodTypeProvider>().get(
    path,
    {
      config: { scope: 'read' },
      schema: {
        summary: 'Read a batch',
        description: `How far it is, and when it is expected to be done. With \`wait\` (or the header \`Prefer: wait=30\`, RFC 7240, at most ${maxWaitSeconds}; the answer then has \`Preference-Applied\`) it answers when the batch is done or the time is up, whichever is first; 200 in both cases, \`status\` tells.`,
        tags,
        params: batchParameter,
        headers: z.looseObject({
          prefer: z
            .string()
            .optional()
            .describe('`wait=30`: as the query parameter, which goes before it; what is not understood is passed over'),
        }),
        querystring: z.strictObject(waitParameter),
        response: { 200: batchProgressSchema.describe('As it stands') },
      },
    },
    async (request, reply) => {
      const { wait } = request.query;
      const preferred = wait === undefined ? preferredWait(request.headers.prefer, maxWaitSeconds) : undefined;
      const seconds = wait ?? preferred ?? 0;
      const name = { tenant: request.principal.tenant, batchId: request.params.batch_id };
      let batch = await counts.read(name.tenant, name.batchId);
      if (seconds > 0 && !isDone(batch)) {
        const { signal, release } = untilGone(reply, closing);
        batch = await watches.waitForEnd(name, seconds * 1000, signal).finally(release);
      }
      if (preferred !== undefined) reply.header('preference-applied', `wait=${preferred}`);
      return showProgress(batch);
    },
  );
}

function addItems(app: FastifyInstance, deps: BatchReadDependencies): void {
  app.withTypeProvider<ZodTypeProvider>().get(
    `${path}/items`,
    {
      config: { scope: 'read', otherMedia: { type: ndjson, status: 200, answer: exportLineSchema } },
      schema: {
        summary: 'List the items of a batch',
        description:
          'In their order, page by page. With `Accept: application/x-ndjson` all of them come in one answer, one item a line, at the pace of the reader: the export to compare with the receiver\'s books. Filters apply to both; `cursor` and `limit` are for pages. An export that cannot be finished ends with a line `{"error": …}`.',
        tags,
        params: batchParameter,
        querystring: z.strictObject({ ...listParameters, ...itemFilters }),
        response: { 200: listOf(batchItemSchema).describe('A page of items, or all of them') },
      },
    },
    async (request, reply) => {
      const { verdict = null, state = null, cursor, limit } = request.query;
      const { tenant } = request.principal;
      const batchId = request.params.batch_id;
      reply.header('vary', 'accept');
      if (prefersNdjson(request.headers.accept)) {
        if (cursor !== undefined) throw noCursor();
        const pages = await exportBatchItems(deps, tenant, batchId, { verdict, state });
        return sendLines(deps, request, reply, pages);
      }
      const after = decodeCursor(z.int32().min(0), cursor) ?? -1;
      const { items, next } = await listBatchItems(deps, tenant, batchId, { verdict, state, after, limit });
      return { items: items.map(showItem), next_cursor: next === null ? null : encodeCursor(next) };
    },
  );
}

function noCursor(): ProblemError {
  const message = 'is for pages; an export (application/x-ndjson) has all items';
  return new ProblemError('invalid_request', `the query parameters: cursor ${message}`, {
    errors: [{ pointer: '/query/cursor', code: 'invalid', message }],
  });
}

function showItem(item: StoredItem): z.output<typeof batchItemSchema> {
  return {
    index: item.index,
    idempotency_key: item.key,
    key_source: item.keySource,
    verdict: item.verdict,
    job_id: item.jobId,
    job_state: item.jobState,
    response_status: item.responseStatus,
    errors: [...item.faults],
  };
}

function sendLines(
  { logger }: BatchReadDependencies,
  request: FastifyRequest,
  reply: FastifyReply,
  pages: AsyncIterable<readonly StoredItem[]>,
): never {
  const lines = async function* (): AsyncGenerator<string> {
    let count = 0;
    try {
      for await (const page of pages) {
        count += page.length;
        if (page.length > 0) yield page.map((item) => `${JSON.stringify(showItem(item))}\n`).join('');
      }
    } catch (error) {
      yield problemLine(logger, request, error);
    }
    request.facts.lines = count;
  };
  return sendText(request, reply.type(ndjson), lines());
}

/**
 * Sends it as it comes, at the pace of the reader; nothing to a HEAD. Its bytes are of another media type than the one that
 * the route's own answer has, so they have no type here.
 */
function sendText(request: FastifyRequest, reply: FastifyReply, text: AsyncGenerator<string>): never {
  return reply.send(request.method === 'HEAD' ? '' : Readable.from(text, { objectMode: false })) as never;
}

function addEvents(
  app: FastifyInstance,
  deps: BatchReadDependencies,
  counts: BatchCounts,
  watches: BatchWatches,
  closing: AbortSignal,
): void {
  app.withTypeProvider<ZodTypeProvider>().get(
    `${path}/events`,
    {
      config: {
        scope: 'read',
        otherMedia: {
          type: eventStream,
          status: 200,
          answer: eventStreamSchema,
          events: { progress: batchProgressSchema, job: jobEventSchema, done: batchProgressSchema },
        },
      },
      schema: {
        summary: 'Follow a batch',
        description:
          'Server-Sent Events: `progress` when it begins and as counts change, at most twice a second; `job` once for each job behind the batch that ends or is held (again, where a person has sent it on its way since), first those that have already; `done` when the batch is completed or cancelled, and then the stream ends. Every event has an `id`: sent back as `Last-Event-ID`, to any replica, the stream goes on after it, and nothing is left out or told twice. A client that comes back after `done` gets a 204, which stops an `EventSource`. A comment keeps the connection alive every 15 seconds. The larger the batch, the more events come at once: those of 1,000,000 jobs in steps of some seconds.',
        tags,
        params: batchParameter,
        headers: z.looseObject({
          'last-event-id': z.string().optional().describe('The `id` of the last event that was received'),
        }),
        response: {
          200: z.string().describe('Events, as they happen'),
          204: z.null().describe('Everything has been told, its end included'),
        },
      },
    },
    async (request, reply) => {
      const position = positionOf(request.headers['last-event-id']);
      const name = { tenant: request.principal.tenant, batchId: request.params.batch_id };
      // It is counted by the watch, once for all who follow it.
      await requireBatch(deps.database, name.tenant, name.batchId);
      if (position.done && isDone(await counts.read(name.tenant, name.batchId))) return reply.code(204).send(null);
      reply.headers({
        'content-type': eventStream,
        'cache-control': 'no-cache',
        // Some proxies (nginx) would hold events back.
        'x-accel-buffering': 'no',
      });
      const show = async function* (): AsyncGenerator<string> {
        const { signal, release } = untilGone(reply, closing);
        const following = watches.follow(name);
        let count = 0;
        try {
          yield `retry: ${retryMs}\n\n`;
          for await (const events of followBatch({ ...deps, following }, { position, heartbeatMs }, signal)) {
            count += events.length;
            yield events.length === 0 ? ': nothing new\n\n' : events.map(showEvent).join('');
          }
        } catch (error) {
          // The client comes back, and is told then.
          if (!signal.aborted) deps.logger.warn({ request_id: request.id, err: error }, 'a stream of events broke off');
        } finally {
          following.end();
          release();
          request.facts.events = count;
        }
      };
      return sendText(request, reply as unknown as FastifyReply, show());
    },
  );
}

/** Throws a ProblemError `invalid_request`. */
function positionOf(header: string | undefined): EventPosition {
  if (header === undefined || header === '') return startPosition;
  const position = parseEventId(header);
  if (position !== null) return position;
  const message = 'is not an id that a stream of events has given';
  throw new ProblemError('invalid_request', `the headers: Last-Event-ID ${message}`, {
    errors: [{ pointer: '/headers/last-event-id', code: 'invalid', message }],
  });
}

function showEvent(event: BatchEvent): string {
  const data = event.kind === 'job' ? showJob(event.job) : showProgress(event.batch);
  return `id: ${event.id}\nevent: ${event.kind}\ndata: ${JSON.stringify(data)}\n\n`;
}

function showJob({
  jobId,
  index,
  key,
  state,
  reason,
  status,
}: Extract<BatchEvent, { kind: 'job' }>['job']): JobEventData {
  return { job_id: jobId, index, idempotency_key: key, state, reason, response_status: status };
}

/** Aborts when the client has gone, or no more time shall be given to it; `release` when it is served. */
function untilGone(reply: FastifyReply, closing: AbortSignal): { signal: AbortSignal; release: () => void } {
  const gone = new AbortController();
  const abort = () => gone.abort();
  if (closing.aborted) abort();
  closing.addEventListener('abort', abort);
  reply.raw.once('close', abort);
  return {
    signal: gone.signal,
    release: () => {
      closing.removeEventListener('abort', abort);
      reply.raw.off('close', abort);
    },
  };
}
