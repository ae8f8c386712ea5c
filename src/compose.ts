/**
 * Puts the service together: the only place that constructs its parts and knows in which order they start and stop.
 * Start: database, migrations, config file, listener, HTTP, worker; so nothing is claimed by a process that cannot run.
 * Stop: no new requests and no new claims, then what is in flight, then the listener, sockets, the pool, PostgreSQL itself.
 */
import type { FastifyInstance } from 'fastify';
import { DefinitionStore } from './application/definitions.ts';
import { applyConfigFile } from './application/manage-definitions.ts';
import { faultLines, readDefinitionsFile } from './cli/definitions-file.ts';
import type { RunningService } from './cli/serve.ts';
import { StartError } from './cli/start-error.ts';
import type { Config } from './config.ts';
import { ProblemError } from './domain/errors.ts';
import { buildApp } from './http/app.ts';
import { createSender } from './outbound/send-request.ts';
import { type Database, openDatabase, shareOf } from './postgres/database.ts';
import { type EmbeddedPostgres, startEmbedded } from './postgres/embedded.ts';
import { migrate } from './postgres/migrate.ts';
import { type WaitOptions, waitUntilReachable } from './postgres/wait-until-reachable.ts';
import { WakeUps } from './postgres/wake-ups.ts';
import { type Clock, systemClock } from './system/clock.ts';
import { armFaultPoints, noFaultPoints } from './system/fault-points.ts';
import type { Logger } from './system/logger.ts';
import { WorkerPool } from './worker/worker-pool.ts';

/** How long a PostgreSQL that is away at the start is waited for. */
const databaseWaitMs = 60_000;
/** Looks for connections that have become idle while HTTP drains. */
const drainPollMs = 50;
/** Lent clients come back by then, unless PostgreSQL is gone. */
const poolCloseMs = 5_000;

/** Parts that have been opened, to be closed in reverse order when the start fails. */
type Opened = Array<() => Promise<unknown>>;

/** Starts the service; undefined: `signal` aborted before it was ready, and all is closed again. */
export async function startService(
  config: Config,
  logger: Logger,
  signal: AbortSignal,
): Promise<RunningService | undefined> {
  const opened: Opened = [];
  try {
    const service = await start(config, logger, signal, opened);
    if (service !== undefined) return service;
  } catch (error) {
    await closeAll(opened, logger);
    throw error;
  }
  await closeAll(opened, logger);
  return undefined;
}

/** Brings the configured database, or the embedded one, up to date, and lets go of it. */
export async function migrateDatabase(config: Config, logger: Logger): Promise<void> {
  const opened: Opened = [];
  try {
    await prepareDatabase(config, logger, new AbortController().signal, opened);
  } finally {
    await closeAll(opened, logger);
  }
}

async function start(
  config: Config,
  logger: Logger,
  signal: AbortSignal,
  opened: Opened,
): Promise<RunningService | undefined> {
  const clock = systemClock;
  const { connectionString, embedded } = await prepareDatabase(config, logger, signal, opened);
  if (signal.aborted) return undefined;

  const faultPoints =
    config.faultPlan === undefined ? noFaultPoints : armFaultPoints(config.faultPlan, { clock, logger });
  const database = openDatabase({ connectionString, max: config.poolMax, logger, faultPoints });
  opened.push(() => database.close());
  const reachable: WaitOptions = { connectionString, logger, clock, withinMs: databaseWaitMs, signal };
  await waitUntilReachable(reachable, () => applyFile(config, database, logger, clock));

  const definitions = new DefinitionStore(database);
  const sender = createSender({ clock, connectionsPerOrigin: config.concurrency, faultPoints });
  opened.push(() => sender.close());
  const wakeUps = new WakeUps({ connectionString, logger, clock, isTold: (session) => database.ownsSession(session) });
  opened.push(() => wakeUps.stop());

  const worker = config.roles.has('worker')
    ? new WorkerPool({
        database,
        clock,
        logger,
        sender,
        concurrency: config.concurrency,
        leaseSeconds: config.leaseSeconds,
        readSecret: config.readSecret,
        faultPoints,
        currentDefinitions: () => definitions.current(),
        definitionsAtLeast: (version) => definitions.atLeast(version),
        retention: config,
      })
    : undefined;
  if (worker !== undefined) {
    wakeUps.onWork(() => worker.wake());
    wakeUps.onDefinitions(() => worker.wake());
  }
  await wakeUps.start();

  const app = buildApp({
    logger,
    clock,
    database: shareOf(database, mostOfRequests(config.poolMax)),
    definitions,
    workCame: () => worker?.wake(),
    claimer: worker?.intakeClaimer,
    secrets: config.secrets,
    keyRetentionDays: config.keyRetentionDays,
    adminKey: config.adminKey,
    intakePerMinute: config.intakePerMinute,
    loadLimits: config.shedDelayMs === undefined ? undefined : { loopDelayMs: config.shedDelayMs },
    readiness: () => worker?.faults() ?? [],
    healthOnly: !config.roles.has('api'),
  });
  opened.push(() => app.close());
  const address = await listen(app, config);
  if (signal.aborted) return undefined;
  const started = await waitUntilReachable(reachable, async () => {
    await worker?.start();
    return true;
  });
  if (started === undefined) return undefined;
  await embedded?.announce(address);

  return {
    address,
    workerId: worker?.workerId ?? null,
    async stop() {
      const graceMs = config.shutdownSeconds * 1000;
      await Promise.all([
        closeHttp(app, graceMs, clock).then(() => logger.info('HTTP is drained')),
        worker?.drain(graceMs).then(() => logger.info('the worker is drained')),
      ]);
      await wakeUps.stop();
      await sender.close();
      await closePool(database, logger, clock);
      await embedded?.stop();
    },
  };
}

/** Connections that requests use at once at the most: what the worker says to the database cannot wait behind readers. */
function mostOfRequests(poolMax: number): number {
  return Math.max(1, poolMax - (poolMax >= 4 ? 2 : 1));
}

/** A database that is up to date, wherever it is. */
async function prepareDatabase(
  config: Config,
  logger: Logger,
  signal: AbortSignal,
  opened: Opened,
): Promise<{ connectionString: string; embedded: EmbeddedPostgres | undefined }> {
  const clock = systemClock;
  const embedded =
    config.databaseUrl === undefined ? await startEmbedded({ dataDir: config.dataDir, logger, clock }) : undefined;
  if (embedded !== undefined) opened.push(() => embedded.stop());
  const connectionString = embedded?.connectionString ?? config.databaseUrl ?? '';
  const reachable: WaitOptions = { connectionString, logger, clock, withinMs: databaseWaitMs, signal };
  try {
    await waitUntilReachable(reachable);
  } catch (cause) {
    // What PostgreSQL itself refuses: a wrong password, a database that does not exist.
    if (cause instanceof Error && 'code' in cause) {
      throw new StartError([`DATABASE_URL: ${cause.message} (${cause.code})`], { cause });
    }
    throw cause;
  }
  await waitUntilReachable(reachable, () => migrate(connectionString, logger));
  return { connectionString, embedded };
}

/** Applies the config file, if there is one. Throws a StartError with a line per fault. */
async function applyFile(config: Config, database: Database, logger: Logger, clock: Clock): Promise<void> {
  const path = config.configFile;
  if (path === undefined) return;
  const json = await readDefinitionsFile(path);
  try {
    const report = await applyConfigFile({ database, clock, secrets: config.secrets }, json);
    logger.info({ file: path, ...report }, 'the config file is applied');
  } catch (error) {
    if (error instanceof ProblemError && error.errors.length > 0) {
      throw new StartError(faultLines(path, error.errors), { cause: error });
    }
    throw error;
  }
}

async function listen(app: FastifyInstance, { host, port }: Config): Promise<string> {
  try {
    // By the name the framework would open a second server for ::1, which it does not drain (fastify/fastify#7043).
    await app.listen({ host: /^localhost$/i.test(host) ? '127.0.0.1' : host, port });
  } catch (cause) {
    const code = cause instanceof Error && 'code' in cause ? cause.code : undefined;
    if (code === 'EADDRINUSE') {
      throw new StartError(
        [`PORT: ${port} is taken on ${host}; stop what listens there, or choose another (0: a free one)`],
        {
          cause,
        },
      );
    }
    if (code === 'EACCES' || code === 'EADDRNOTAVAIL' || code === 'ENOTFOUND') {
      throw new StartError([`HOST, PORT: cannot listen on ${host} port ${port} (${code})`], { cause });
    }
    throw cause;
  }
  const found = app.server.address();
  if (found === null || typeof found === 'string') throw new Error('the server has no TCP address');
  return `http://${found.family === 'IPv6' ? `[${found.address}]` : found.address}:${found.port}`;
}

/** No new connections; requests in flight are answered, and connections end as they become idle or the grace is over. */
async function closeHttp(app: FastifyInstance, graceMs: number, clock: Clock): Promise<void> {
  const closed = app.close();
  const done = new AbortController();
  const end = clock.monotonicMs() + graceMs;
  void closed.then(
    () => done.abort(),
    () => done.abort(),
  );
  while (!done.signal.aborted && clock.monotonicMs() < end) {
    await clock.sleep(drainPollMs, done.signal);
    // Node closes those that are idle when it starts to close, not those that become so.
    app.server.closeIdleConnections();
  }
  if (!done.signal.aborted) app.server.closeAllConnections();
  await closed;
}

async function closePool(database: Database, logger: Logger, clock: Clock): Promise<void> {
  const done = new AbortController();
  const closed = database.close().finally(() => done.abort());
  await Promise.race([closed, clock.sleep(poolCloseMs, done.signal)]);
  if (!done.signal.aborted) logger.warn('PostgreSQL did not let go of its connections; leaving them');
}

async function closeAll(opened: Opened, logger: Logger): Promise<void> {
  for (const close of opened.reverse()) {
    await close().catch((err: unknown) => logger.warn({ err }, 'a part could not be closed'));
  }
}
