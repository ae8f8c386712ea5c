/**
 * Puts the HTTP side together: framework, checks, errors, log line, OpenAPI, routes. No route may be registered without a
 * scope (auth.ts) or with query parameters that are not listed (request-validation.ts).
 */
import { randomUUID } from 'node:crypto';
import type { Socket } from 'node:net';
import Fastify, { type FastifyBaseLogger, type FastifyError, type FastifyInstance, LogController } from 'fastify';
import { serializerCompiler } from 'fastify-type-provider-zod';
import { identify } from '../application/api-keys.ts';
import type { DefinitionStore } from '../application/definitions.ts';
import { createReadinessCheck } from '../application/readiness.ts';
import { type Fault, ProblemError } from '../domain/errors.ts';
import type { Database } from '../postgres/database.ts';
import type { IntakeClaimer } from '../postgres/intake-reservation.ts';
import type { Clock } from '../system/clock.ts';
import type { Logger } from '../system/logger.ts';
import { watchMethods } from './allowed-methods.ts';
import { addAuth } from './auth.ts';
import { refuseOtherCharsets } from './charset.ts';
import { createErrorHandler } from './error-handler.ts';
import { addIntakeLimit } from './intake-limit.ts';
import { addLoadShedding, type LoadLimits } from './load-shedding.ts';
import { addOpenApi } from './openapi.ts';
import { problemDocument, problemMediaType } from './problem-details.ts';
import { addRequestLog } from './request-log.ts';
import { refuseUnknownParameters, refuseUnreadBodies, requestValidator } from './request-validation.ts';
import { adminApiKeyRoutes } from './routes/admin-api-keys.ts';
import { adminDeadLetterRoutes } from './routes/admin-dead-letter.ts';
import { adminDefinitionRoutes } from './routes/admin-definitions.ts';
import { adminFleetRoutes } from './routes/admin-fleet.ts';
import { adminRateWindowRoutes } from './routes/admin-rate-windows.ts';
import { batchOperationRoutes } from './routes/batch-operations.ts';
import { batchReadRoutes } from './routes/batch-reads.ts';
import { batchRoutes } from './routes/batches.ts';
import { healthRoutes } from './routes/health.ts';
import { jobOperationRoutes } from './routes/job-operations.ts';
import { jobRoutes } from './routes/jobs.ts';
import { receiptRoutes } from './routes/receipts.ts';

/** The largest body of a request, in bytes: 16 MiB. */
export const bodyLimitBytes = 16 * 1_048_576;
/** A key of 255 code points, percent-encoded, is 3,060 characters. */
const longestParameter = 4_096;
/** Above the idle time of the usual load balancers (60 s), so that they close first and never meet a closed socket. */
const keepAliveMs = 72_000;

export interface AppDependencies {
  readonly logger: Logger;
  readonly clock: Clock;
  readonly database: Database;
  /** The bootstrap key with all scopes; undefined: requests need no key. */
  readonly adminKey: string | undefined;
  readonly definitions: DefinitionStore;
  /** Environment variables that headers of upstreams may use. */
  readonly secrets: ReadonlySet<string>;
  /** Told as soon as jobs are stored. */
  readonly workCame?: (() => void) | undefined;
  /** Has jobs in the commit that stores them. */
  readonly claimer?: IntakeClaimer | undefined;
  /** How long a key is kept after its job's end, in days. */
  readonly keyRetentionDays: number;
  /** Why this process should get no traffic apart from the database: claims have stopped. Empty: nothing. */
  readonly readiness: () => readonly Fault[];
  /** Most submissions a minute of one key or address; undefined: any number. */
  readonly intakePerMinute?: number | undefined;
  /** From when on what is dear is refused; undefined: never. */
  readonly loadLimits?: LoadLimits | undefined;
  /** This process runs no API: it answers for its health and nothing else. */
  readonly healthOnly?: boolean;
}

/** Ready to `listen` or `inject`; touches no dependency before the first request. */
export function buildApp(deps: AppDependencies): FastifyInstance {
  const { logger, clock } = deps;
  const handleError = createErrorHandler({ logger, clock });
  const app: FastifyInstance = Fastify({
    loggerInstance: logger as FastifyBaseLogger,
    // One line per request of our own instead; the framework's has headers and addresses.
    logController: new LogController({ disableRequestLogging: true }),
    genReqId: () => randomUUID(),
    bodyLimit: bodyLimitBytes,
    keepAliveTimeout: keepAliveMs,
    return503OnClosing: false,
    routerOptions: { maxParamLength: longestParameter },
    frameworkErrors: (error, request, reply) => void handleError(error, request, reply),
    clientErrorHandler: answerClientError,
  });
  app.setValidatorCompiler(requestValidator);
  app.setSerializerCompiler(serializerCompiler);
  app.setErrorHandler(handleError);
  // Bodies are JSON or nothing: a form that another site submits is never read.
  app.removeContentTypeParser('text/plain');
  takeEmptyBodies(app);

  const shutdown = refuseWhenClosing(app);
  const methodsOf = watchMethods(app);
  app.setNotFoundHandler((request, reply) => {
    const path = request.url.split('?', 1)[0]!;
    const methods = methodsOf(path);
    if (methods.length === 0) throw new ProblemError('not_found', 'there is no such path');
    reply.header('allow', methods.join(', '));
    throw new ProblemError('method_not_allowed', `it takes ${methods.join(', ')}`);
  });
  addRequestLog(app, logger);
  openDocs(app);
  addAuth(app, { adminKey: deps.adminKey, identify: (key) => identify(deps, key) });
  refuseUnknownParameters(app, docsPath);
  refuseUnreadBodies(app);
  refuseOtherCharsets(app);
  addIntakeLimit(app, deps.intakePerMinute);
  addLoadShedding(app, deps.loadLimits);
  addOpenApi(app);

  const readiness = createReadinessCheck({
    database: deps.database,
    clock,
    ownFaults: () => [...deps.readiness(), ...shutdown()],
  });
  app.register(async (scope) => {
    healthRoutes(scope, { readiness });
    if (deps.healthOnly) return;
    adminDefinitionRoutes(scope, deps);
    adminRateWindowRoutes(scope, deps);
    adminDeadLetterRoutes(scope, deps);
    adminFleetRoutes(scope, deps);
    adminApiKeyRoutes(scope, deps);
    batchRoutes(scope, deps);
    batchReadRoutes(scope, deps);
    batchOperationRoutes(scope, deps);
    jobRoutes(scope, deps);
    jobOperationRoutes(scope, deps);
    receiptRoutes(scope, deps);
  });
  return app;
}

/** Many clients name a content type also where they send nothing; a route that needs a body says so itself. */
function takeEmptyBodies(app: FastifyInstance): void {
  const parse = app.getDefaultJsonParser('error', 'error');
  app.removeContentTypeParser('application/json');
  app.addContentTypeParser('application/json', { parseAs: 'string' }, (request, body, done) => {
    if (body.length === 0) done(null, undefined);
    else parse(request, body as string, done);
  });
}

/** While connections drain, a request that comes on one of them is answered at once, and the connection ends. */
function refuseWhenClosing(app: FastifyInstance): () => Fault[] {
  let closing = false;
  app.addHook('preClose', async () => {
    closing = true;
  });
  app.addHook('onRequest', async () => {
    if (!closing) return;
    throw new ProblemError('shutting_down', 'this process is shutting down; try again', { retryAfterSeconds: 1 });
  });
  return () => (closing ? [{ code: 'shutting_down', message: 'the process is shutting down' }] : []);
}

/** The reader's own routes are registered by its package: scope and parameters are not its business. */
const docsPath = /^\/docs(\/|$)/;

function openDocs(app: FastifyInstance): void {
  app.addHook('onRoute', (route) => {
    if (docsPath.test(route.url)) route.config = { ...route.config, scope: 'open' };
  });
}

/** What is no HTTP: there is no request yet, so the answer is written by hand. */
function answerClientError(error: FastifyError, socket: Socket): void {
  if (error.code !== 'ECONNRESET' && socket.writable) {
    const detail =
      error.code === 'HPE_HEADER_OVERFLOW' ? 'the headers are too large' : 'this is not a valid HTTP request';
    const body = JSON.stringify(problemDocument('invalid_request', detail, randomUUID()));
    socket.write(
      `HTTP/1.1 400 Bad Request\r\nContent-Type: ${problemMediaType}\r\nContent-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
    );
  }
  socket.destroy(error);
}
