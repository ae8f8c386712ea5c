/**
 * Batches: submit one. The body of a submission is taken as text, because parsing it changes numbers; its
 * items are checked one by one by `read-submission.ts`, so the schema here is for the OpenAPI document.
 */
import { isUtf8 } from 'node:buffer';
import type { Readable } from 'node:stream';
import type { FastifyInstance, FastifySerializerCompiler } from 'fastify';
import { serializerCompiler, type ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import { type BatchProgress, isCompleted } from '../../application/batches.ts';
import { type DryRun, dryRunBatch } from '../../application/dry-run.ts';
import type { Eta } from '../../application/estimate.ts';
import { type SubmitDependencies, submitBatch } from '../../application/submit-batch.ts';
import { ProblemError } from '../../domain/errors.ts';
import { keyFault, keyFromHeader, needsRetry } from '../../domain/idempotency.ts';
import type { BatchVerdict, ItemVerdict } from '../../domain/submission.ts';
import { type AnswerStreamDependencies, answerStream, ndjson, type StreamAnswer } from '../ndjson/answer-stream.ts';
import { refuseStreamParameters, streamParameters } from '../ndjson/stream-parameters.ts';
import { readSubmission } from '../read-submission.ts';
import { validatorButForBody } from '../request-validation.ts';
import {
  type BatchAnswer,
  batchAnswerSchema,
  type batchProgressSchema,
  batchSchema,
  type DryRunAnswer,
  dryRunAnswerSchema,
  dryRunParameter,
  type etaSchema,
  streamAnswerSchema,
  streamLineSchema,
} from '../schemas/batches.ts';

const path = '/v1/batches';
const tags = ['batches'];

type BatchRouteDependencies = SubmitDependencies & AnswerStreamDependencies;

export function batchRoutes(app: FastifyInstance, deps: BatchRouteDependencies): void {
  // A scope of its own, for the parser of its body.
  app.register(async (scope) => addSubmission(scope, deps));
}

function addSubmission(app: FastifyInstance, deps: BatchRouteDependencies): void {
  app.removeContentTypeParser('application/json');
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, async (_request: unknown, body: Buffer) => {
    if (!isUtf8(body)) throw new ProblemError('malformed_json', 'the body is not UTF-8');
    return body.toString('utf8');
  });
  app.addContentTypeParser(ndjson, (_request: unknown, body: unknown, done: (error: null, body: unknown) => void) =>
    done(null, body),
  );
  const closing = new AbortController();
  app.addHook('preClose', async () => {
    closing.abort(
      new ProblemError('shutting_down', 'this process is shutting down; send the stream again to resume it'),
    );
  });

  app.withTypeProvider<ZodTypeProvider>().post(
    path,
    {
      config: {
        scope: 'submit',
        otherMedia: { type: ndjson, body: streamLineSchema, status: 202, answer: streamAnswerSchema },
      },
      validatorCompiler: validatorButForBody,
      serializerCompiler: uncheckedAnswer,
      schema: {
        summary: 'Submit a batch',
        description:
          'Every item gets its own verdict, in input order; one bad item never sinks another. What is accepted is durable when this answers. All of a JSON batch is stored, or none of it: at most 10,000 items and 16 MiB. Where the answer is lost, send the batch again: what was stored is then `duplicate`, or with an `Idempotency-Key` the first answer comes again.\n\nAs `application/x-ndjson` the batch is a stream of any length: one item a line, what all lines share in the query parameters. Lines are stored as they come, and each is answered by a line of its own as soon as it is durable; `Location` and `Sluice-Batch-Id` come at once. A client may read while it sends, or afterwards. A line that is no item, or longer than 1 MiB, is `rejected` and the stream goes on. A stream that broke off leaves the batch `incomplete`: sent again from its first line under the same `Idempotency-Key` it goes on where it stopped, and a line that is not the one stored ends it with `resume_mismatch`. One stream of a key at a time: a second one is a 409 `stream_in_progress`.\n\nWith `dry_run=true` a JSON batch gets the verdicts that it would get and the time at which it would be done, and nothing is stored: an `Idempotency-Key` is not taken (one that stands for another request is refused all the same), and an item has a `job_id` only where its job is there already.\n\nTwo items are the same request where the RFC 8785 forms of `{upstream, method, path, headers, body | body_text}` are equal, after `defaults`, with header names in lower case and members left out that the item has not (no headers and empty headers are equal); the SHA-256 of that form is the fingerprint. A member named `__proto__` is refused, except inside a `body`, which goes out as it is.',
        tags,
        headers: z.looseObject({
          'idempotency-key': z
            .string()
            .optional()
            .describe(
              'Of the request as a whole, bare or quoted. The same key and body gives the first answer again, with `replayed: true`; another body is a 422',
            ),
        }),
        querystring: z.strictObject({ ...streamParameters, ...dryRunParameter }),
        body: batchSchema,
        response: {
          200: dryRunAnswerSchema.describe('Of a dry run: what would become of it. Nothing is stored'),
          202: batchAnswerSchema.describe('Taken, whatever the verdicts. `Location` names the batch'),
        },
      },
    },
    async (request, reply) => {
      const { dry_run: asked, ...query } = request.query;
      const isDryRun = asked === 'true';
      if (request.mediaType === ndjson) {
        if (isDryRun) throw noDryStream();
        const key = requestKey(request.headers['idempotency-key']);
        const body = (request.body ?? undefined) as unknown as Readable | undefined;
        const shown = { showVerdict, showSummary: showProgress } satisfies Partial<StreamAnswer>;
        return answerStream(deps, request, reply, { key, query, body, closing: closing.signal, ...shown });
      }
      refuseStreamParameters(query);
      const { submission, fingerprint } = readSubmission((request.body as unknown as string | undefined) ?? '');
      const { tenant } = request.principal;
      const name = requestKey(request.headers['idempotency-key']);
      const key = name === null ? null : { key: name, fingerprint: fingerprint() };
      if (isDryRun) return reply.code(200).send(showDryRun(await dryRunBatch(deps, tenant, submission, key)));
      const { batch, replayed } = await submitBatch(deps, tenant, submission, key);
      reply.code(202).header('location', `${path}/${batch.batchId}`);
      return showAnswer(batch, replayed);
    },
  );
}

/** The answer to a batch is made here, member by member, and there is much of it: its schema is for the OpenAPI document. */
const uncheckedAnswer: FastifySerializerCompiler<unknown> = (part) =>
  part.httpStatus === '202'
    ? (answer) => JSON.stringify(answer)
    : serializerCompiler({ ...part, schema: part.schema as z.ZodType });

/** The header's key; null: there is none. Throws ProblemError for one that is not legal. */
function requestKey(header: string | undefined): string | null {
  if (header === undefined) return null;
  // Node reads header bytes as Latin-1.
  const bytes = Buffer.from(header, 'latin1');
  const key = keyFromHeader(isUtf8(bytes) ? bytes.toString('utf8') : header);
  const message = keyFault(key);
  if (message === null) return key;
  throw new ProblemError('invalid_request', `the Idempotency-Key ${message}`, {
    errors: [{ pointer: '/headers/idempotency-key', code: 'invalid_key', message }],
  });
}

function noDryStream(): ProblemError {
  const message = 'is for JSON batches; a stream (application/x-ndjson) has no dry run';
  return new ProblemError('invalid_request', `the query parameters: dry_run ${message}`, {
    errors: [{ pointer: '/query/dry_run', code: 'invalid', message }],
  });
}

function showAnswer({ batchId, createdAt, correlationId, items }: BatchVerdict, replayed: boolean): BatchAnswer {
  return {
    batch_id: batchId,
    status: isCompleted(items) ? 'completed' : 'processing',
    created_at: createdAt.toISOString(),
    correlation_id: correlationId,
    replayed,
    counts: countVerdicts(items),
    items: items.map(showVerdict),
  };
}

function showDryRun({ at, correlationId, items, eta }: DryRun): DryRunAnswer {
  return {
    dry_run: true,
    batch_id: null,
    status: isCompleted(items) ? 'completed' : 'processing',
    created_at: at.toISOString(),
    correlation_id: correlationId,
    replayed: false,
    counts: countVerdicts(items),
    eta: showEta(eta),
    items: items.map((item) => ({
      ...showVerdict(item),
      ...(item.verdict !== 'rejected' && item.jobId === null ? { job_id: null } : {}),
    })),
  };
}

function countVerdicts(items: readonly ItemVerdict[]): BatchAnswer['counts'] {
  const counts = { total: items.length, accepted: 0, duplicate: 0, conflict: 0, rejected: 0 };
  for (const { verdict } of items) counts[verdict] += 1;
  return counts;
}

/** What is undefined is not in the JSON; an object that is put together member by member costs several times as much. */
function showVerdict({ index, key, keySource, verdict, jobId, jobState, faults }: ItemVerdict) {
  return {
    index,
    idempotency_key: key,
    key_source: keySource ?? undefined,
    verdict,
    job_id: jobId ?? undefined,
    job_state: jobState ?? undefined,
    needs_retry: needsRetry(verdict, jobState) ? (true as const) : undefined,
    errors: faults.length === 0 ? undefined : [...faults],
  };
}

function showHeldBy(blown: BatchProgress['heldBy']) {
  if (blown === null) return null;
  return { reason: 'fuse', job_id: blown.jobId, status: blown.status, at: blown.at.toISOString() } as const;
}

function showEta(eta: Eta | null): z.output<typeof etaSchema> | null {
  return eta === null ? null : { at: eta.at.toISOString(), limited_by: eta.limitedBy };
}

/** A batch as GET and its levers show it. */
export function showProgress(batch: BatchProgress): z.output<typeof batchProgressSchema> {
  return {
    batch_id: batch.batchId,
    status: batch.status,
    created_at: batch.createdAt.toISOString(),
    completed_at: batch.completedAt?.toISOString() ?? null,
    cancelled_at: batch.cancelledAt?.toISOString() ?? null,
    correlation_id: batch.correlationId,
    counts: batch.counts,
    jobs: batch.jobs,
    progress: batch.progress,
    held_by: showHeldBy(batch.heldBy),
    eta: showEta(batch.eta),
  };
}
