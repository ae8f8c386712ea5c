/**
 * Whatever is thrown while a request is served becomes problem+json here: refusals of use cases, faults of the framework
 * (body too large, not JSON, wrong type), PostgreSQL being away. Only what nobody foresaw is a 500, and only that is logged
 * with its stack; the answer never has one.
 */
import type { FastifyError, FastifyReply, FastifyRequest } from 'fastify';
import { type ProblemCode, ProblemError } from '../domain/errors.ts';
import { DatabaseUnavailableError } from '../postgres/database.ts';
import type { Clock } from '../system/clock.ts';
import type { Logger } from '../system/logger.ts';
import { problemDocument, problemMediaType, problems } from './problem-details.ts';

/** PostgreSQL restarts and fails over in seconds; sooner a client need not ask. */
const databaseRetryAfterSeconds = 2;

/** Faults of the framework by its code. `limit`: the body limit of the route, in bytes. */
const frameworkProblems: Readonly<Record<string, (error: FastifyError, limit: number) => [ProblemCode, string]>> = {
  FST_ERR_CTP_BODY_TOO_LARGE: (_error, limit) => [
    'payload_too_large',
    `the body is larger than the limit of ${limit} bytes${limit % 1_048_576 === 0 ? ` (${limit / 1_048_576} MiB)` : ''}`,
  ],
  FST_ERR_CTP_INVALID_MEDIA_TYPE: () => ['unsupported_media_type', 'send the body as application/json'],
  FST_ERR_CTP_EMPTY_JSON_BODY: () => [
    'malformed_json',
    'the body is empty, but the content type says application/json',
  ],
  FST_ERR_CTP_INVALID_JSON_BODY: () => [
    'malformed_json',
    'the body is not valid JSON (or has a member named __proto__, which is not taken)',
  ],
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: () => ['invalid_request', 'the body is not as long as Content-Length says'],
  FST_ERR_BAD_URL: () => ['invalid_request', 'the path is not a valid URL component'],
  FST_ERR_MAX_PARAM_LENGTH: () => ['not_found', 'a part of the path is longer than any name can be'],
};

/** SQLSTATE of a text that PostgreSQL does not take: NUL as text, and `\\u0000` in jsonb. A net under the checks of each route. */
const unstorableText: ReadonlySet<string> = new Set(['22021', '22P05']);

export function createErrorHandler({ logger, clock }: { logger: Logger; clock: Clock }) {
  return async function handleError(error: unknown, request: FastifyRequest, reply: FastifyReply): Promise<void> {
    const problem = asProblem(error, request.routeOptions?.bodyLimit ?? 0);
    if (problem.code === 'internal_error') logger.error({ request_id: request.id, err: error }, 'a request failed');
    if (problem.code === 'payload_too_large') await discardBody(request, clock);
    sendProblem(problem, request, reply);
  };
}

export function sendProblem(problem: ProblemError, request: FastifyRequest, reply: FastifyReply): void {
  request.problemCode = problem.code;
  if (problem.retryAfterSeconds !== undefined) reply.header('retry-after', String(problem.retryAfterSeconds));
  const document = problemDocument(problem.code, problem.message, request.id, problem.errors, problem.state);
  // Bytes, because the framework adds a charset to the content type of a string, and JSON has none (RFC 8259, section 11).
  reply
    .code(problems[problem.code].status)
    .type(problemMediaType)
    .send(Buffer.from(JSON.stringify(document)));
}

/** @param bodyLimit in bytes, of the route */
export function asProblem(error: unknown, bodyLimit: number): ProblemError {
  if (error instanceof ProblemError) return error;
  if (error instanceof DatabaseUnavailableError) {
    return new ProblemError('database_unavailable', 'PostgreSQL cannot be reached just now; try again', {
      retryAfterSeconds: databaseRetryAfterSeconds,
    });
  }
  if (error instanceof Error) {
    const { code, statusCode } = error as FastifyError;
    if (unstorableText.has(code))
      return new ProblemError('invalid_request', 'a text has a character that cannot be kept (NUL)');
    const known = frameworkProblems[code];
    if (known !== undefined) return new ProblemError(...known(error as FastifyError, bodyLimit));
    // Left over: the client broke off its body, or the framework refused the request for a reason with no code of its own.
    if (statusCode !== undefined && statusCode >= 400 && statusCode < 500) {
      return new ProblemError('invalid_request', 'the request could not be read');
    }
  }
  return new ProblemError('internal_error', 'an error of the service; its log has more under the request id');
}

/** What is read of a body that is too large, before the answer, … */
const discardBytes = 64 * 1_048_576;
/** … and for how long. */
const discardMs = 10_000;

/**
 * Reads the rest of a body that is refused. A socket that is closed while its peer still writes is reset, and the peer may
 * never see the answer that was on its way (valyala/fasthttp#1348); so the answer waits for the end of the body, within
 * bounds.
 */
async function discardBody(request: FastifyRequest, clock: Clock): Promise<void> {
  const body = request.raw;
  if (body.readableEnded || body.destroyed) return;
  const done = new AbortController();
  const stop = () => done.abort();
  let left = discardBytes;
  body.on('data', (chunk: Buffer) => {
    left -= chunk.length;
    if (left < 0) stop();
  });
  for (const event of ['end', 'close', 'error']) body.once(event, stop);
  body.resume();
  await clock.sleep(discardMs, done.signal);
}
