/**
 * POST /v1/batches as a stream: lines in, lines out, both at once. The head of the answer leaves as soon as the batch has an
 * id; what happens after that can only be told in the last line.
 */
import { Readable } from 'node:stream';
import { finished } from 'node:stream/promises';
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { BatchProgress } from '../../application/batches.ts';
import type { StreamLine } from '../../application/line-chunks.ts';
import { openStream, type StreamDependencies, type StreamEvent } from '../../application/stream-batch.ts';
import type { ItemVerdict } from '../../domain/submission.ts';
import type { Logger } from '../../system/logger.ts';
import { problemLine } from './problem-line.ts';
import { type LineContext, readLine } from './read-line.ts';
import { LineSplitter } from './split-lines.ts';
import { readParameters, type StreamParameters } from './stream-parameters.ts';

export const ndjson = 'application/x-ndjson';

export interface AnswerStreamDependencies extends StreamDependencies {
  readonly logger: Logger;
}

export interface StreamAnswer {
  /** The request's own Idempotency-Key. */
  readonly key: string | null;
  readonly query: StreamParameters;
  /** What the lines come from; undefined: the request has no body. */
  readonly body: Readable | undefined;
  readonly showVerdict: (item: ItemVerdict) => object;
  readonly showSummary: (batch: BatchProgress) => object;
  /** Aborts, with the reason, when no more lines shall be taken in. */
  readonly closing: AbortSignal;
}

/** Answers 202 and the lines; throws ProblemError before the first of them where there is nothing to begin with. */
export async function answerStream(
  deps: AnswerStreamDependencies,
  request: FastifyRequest,
  reply: FastifyReply,
  answer: StreamAnswer,
): Promise<FastifyReply> {
  const { correlationId, context, fingerprint } = readParameters(answer.query);
  const stop = new AbortController();
  const close = () => stop.abort(answer.closing.reason);
  const { batchId, stored, run } = await openStream(deps, {
    tenant: request.principal.tenant,
    correlationId,
    requestKey: answer.key === null ? null : { key: answer.key, fingerprint },
    stop,
  });
  if (answer.closing.aborted) close();
  answer.closing.addEventListener('abort', close);
  request.facts.batch_id = batchId;
  request.facts.resumed_from = stored;
  const events = run(readLines(answer.body ?? Readable.from([]), context, stop.signal));

  const show = async function* (): AsyncGenerator<string> {
    try {
      for await (const event of events) {
        if (event.kind === 'failed' && answer.body?.errored != null) {
          // The connection is broken: nobody is there to be told.
          request.facts.broken_off = true;
          return;
        }
        yield showEvent(event);
      }
    } finally {
      answer.closing.removeEventListener('abort', close);
    }
    // Whoever still sends on a connection that ends with this answer would have it reset, and never see the last line.
    if (!reply.raw.shouldKeepAlive) await endOf(deps, answer.body);
  };
  const showEvent = (event: StreamEvent): string => {
    if (event.kind === 'verdicts') {
      request.facts.lines = event.items.at(-1)!.index + 1;
      return event.items.map((item) => `${JSON.stringify(showLine(item, stored, answer.showVerdict))}\n`).join('');
    }
    if (event.kind === 'summary') return `${JSON.stringify({ summary: answer.showSummary(event.batch) })}\n`;
    return problemLine(deps.logger, request, event.error);
  };

  reply.code(202).header('location', `/v1/batches/${batchId}`).header('sluice-batch-id', batchId).type(ndjson);
  reply.send(Readable.from(show(), { objectMode: false }));
  reply.raw.flushHeaders();
  return reply;
}

function showLine(item: ItemVerdict, stored: number, showVerdict: (item: ItemVerdict) => object): object {
  return item.index < stored ? { ...showVerdict(item), replayed: true } : showVerdict(item);
}

/** After `stop` the rest is read, so that the client is not left in the middle of a write, and nothing is made of it. */
async function* readLines(
  body: Readable,
  context: LineContext,
  stop: AbortSignal,
): AsyncGenerator<readonly StreamLine[]> {
  const splitter = new LineSplitter();
  let index = 0;
  for await (const piece of body) {
    if (!stop.aborted) yield Array.from(splitter.push(piece as Buffer), (raw) => readLine(raw, index++, context));
  }
  yield Array.from(splitter.end(), (raw) => readLine(raw, index++, context));
}

/** Bounds how long an answer that is complete stays open. */
const longestWaitMs = 2_000;

async function endOf({ clock }: StreamDependencies, body: Readable | undefined): Promise<void> {
  if (body === undefined) return;
  const done = new AbortController();
  const end = () => done.abort();
  finished(body, { writable: false }).then(end, end);
  await clock.sleep(longestWaitMs, done.signal);
}
