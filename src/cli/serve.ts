/**
 * `sluice serve`: runs the service until it is told to stop. Owns the life of the process: the ready line, signals, exit
 * codes. The first SIGTERM or SIGINT (or SIGHUP, when the terminal goes) drains; a second one ends the process at once.
 */
import { Command } from 'commander';
import { type Config, loadConfig } from '../config.ts';
import { systemClock } from '../system/clock.ts';
import { createLogger, type Logger } from '../system/logger.ts';

export interface RunningService {
  /** `http://…`, without a slash at the end. */
  readonly address: string;
  /** null: this process runs no worker. */
  readonly workerId: string | null;
  /** Drains and closes everything. */
  stop(): Promise<void>;
}

/** Starts the service. `signal` aborts when it is told to stop before it is ready; it then cleans up and gives undefined. */
export type StartService = (config: Config, logger: Logger, signal: AbortSignal) => Promise<RunningService | undefined>;

/** By convention 128 and the signal's number. */
const exitCodes = { SIGHUP: 129, SIGINT: 130, SIGTERM: 143 } as const;
type StopSignal = keyof typeof exitCodes;
const parentPollMs = 500;
/** npm passes on the Ctrl-C that the terminal has sent to us as well. */
const npmEchoMs = 1_000;

const environmentHelp = `
Environment:
  DATABASE_URL               PostgreSQL 14 or newer; without it an embedded one is started
  SLUICE_DATA_DIR            where the embedded PostgreSQL keeps its data (./.sluice)
  HOST, PORT                 where to listen (127.0.0.1, 3000); PORT=0 picks a free port
  SLUICE_CONFIG              file of upstreams, rate limits and queues (./sluice.json if present)
  SLUICE_SECRETS             comma list of environment variables that headers of upstreams may use
  SLUICE_ROLES               api, worker or both (api,worker)
  SLUICE_ADMIN_KEY           key with all scopes; must be set where HOST is not a loopback address
  SLUICE_CONCURRENCY         worker slots (32)
  SLUICE_LEASE_SECONDS       lease length (30)
  SLUICE_SHUTDOWN_SECONDS    how long SIGTERM waits for calls in flight (25)
  SLUICE_POOL_MAX            PostgreSQL connections, beside one that listens (10)
  SLUICE_RETENTION_DAYS      how long ended batches and jobs are kept (30)
  SLUICE_KEY_RETENTION_DAYS  how long keys and receipts are kept after their job ended (7)
  SLUICE_INTAKE_PER_MINUTE   most submissions a minute of one key or address, in this process (any number)
  SLUICE_SHED_DELAY_MS       delay of the event loop from which dear requests are refused (2000); 0: never
  LOG_LEVEL                  fatal, error, warn, info, debug, trace or silent (info)`;

export function serveCommand(start: StartService): Command {
  return new Command('serve')
    .description('run the service: HTTP API, workers, or both')
    .addHelpText('after', environmentHelp)
    .action(async () => {
      const config = loadConfig();
      const logger = createLogger(config.logLevel);
      for (const warning of config.warnings) logger.warn(warning);
      await serve(config, logger, start);
    });
}

async function serve(config: Config, logger: Logger, start: StartService): Promise<void> {
  const stop = new AbortController();
  listenForSignals(stop, logger, config.startedByNpm ? npmEchoMs : 0);
  if (config.startedByNpm) void stopWithParent(stop, logger);
  endOnUncaughtErrors(logger);
  const service = await start(config, logger, stop.signal);
  if (service === undefined) {
    logger.info('stopped before it was ready');
    return;
  }
  logger.info({ address: service.address, worker_id: service.workerId }, 'ready');
  await aborted(stop.signal);
  await service.stop();
  logger.info('stopped');
}

/** A second signal within `echoMs` of the first is taken for the same. */
function listenForSignals(stop: AbortController, logger: Logger, echoMs: number): void {
  let firstMs = 0;
  const onSignal = (signal: StopSignal) => {
    const now = systemClock.monotonicMs();
    if (stop.signal.aborted) {
      if (now - firstMs < echoMs) return;
      logger.warn({ signal }, 'told to stop a second time: ending at once');
      process.exit(exitCodes[signal]);
    }
    firstMs = now;
    logger.info({ signal }, 'shutting down');
    stop.abort();
  };
  for (const signal of Object.keys(exitCodes) as StopSignal[]) process.on(signal, onSignal);
}

/** Who ends npx ends the shell between it and us, and the signal stays there: what reaches us is another parent. */
async function stopWithParent(stop: AbortController, logger: Logger): Promise<void> {
  const parent = process.ppid;
  while (!stop.signal.aborted && process.ppid === parent) await systemClock.sleep(parentPollMs, stop.signal);
  if (stop.signal.aborted) return;
  logger.info('npm, which started this process, is gone: shutting down');
  stop.abort();
}

/** A process in an unknown state must not go on: its lease runs out, and another worker takes its jobs. */
function endOnUncaughtErrors(logger: Logger): void {
  process.on('uncaughtException', (err) => {
    logger.fatal({ err }, 'an error that nobody caught; the process ends');
    process.exit(1);
  });
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener('abort', () => resolve(), { once: true });
  });
}
