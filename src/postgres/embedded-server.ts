/**
 * One PostgreSQL server on one folder: started, found running, stopped. The folder is made by `embedded-folder.ts`, and who
 * may use it is up to `embedded.ts`.
 * The server is a process group of its own, so that a Ctrl-C reaches only us and we can stop it last; it therefore outlives
 * a kill -9 of ours, and the next start finds it by `postmaster.pid`. It listens on loopback only, with a random password.
 */
import { spawn } from 'node:child_process';
import { open, readFile, rm, stat } from 'node:fs/promises';
import { createServer } from 'node:net';
import { totalmem } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import type { Clock } from '../system/clock.ts';
import { type Account, exitOf, spawnOptions } from './embedded-account.ts';
import type { Binaries } from './embedded-binaries.ts';
import { codeOf, EmbeddedError } from './embedded-error.ts';
import { userName } from './embedded-folder.ts';
import { disownReusedPid, hasEmptyPidFile, pidFile, readPostmaster } from './embedded-pid-file.ts';

const databaseName = 'postgres';
/** The server writes warnings and errors only; past this size its log starts anew with the next start. */
const maxLogBytes = 10 * 1024 * 1024;
const pollMs = 25;
/** Between two starts, where the first met something that passes. */
const retryMs = 200;
/** Crash recovery of a busy database takes its time; past this something else is wrong. */
const startTimeoutMs = 300_000;
/** A pid file that is empty for longer is no start of somebody else's, but what a power cut left. */
const emptyPidFileMs = 1_000;
/** A fast shutdown ends with a checkpoint; past this it is told to stop at once, and recovers at its next start. */
const stopTimeoutMs = 20_000;

export interface ServerPlace {
  /** The folder, by its real path: the server knows it by this name. */
  readonly folder: string;
  readonly account: Account;
  readonly binaries: Binaries;
  readonly clock: Clock;
  /** Server settings beside our own. */
  readonly settings?: Readonly<Record<string, string>>;
}

export interface RunningServer {
  readonly pid: number;
  readonly port: number;
  readonly connectionString: string;
  /** It was running already. */
  readonly found: boolean;
}

/**
 * Gives the server of this folder, ready for connections: the one that runs, or a new one on a free port (on `port`, if that
 * is given). Throws with the last lines of the server's log where it does not start, and when `signal` aborts.
 */
export async function startServer(place: ServerPlace, port?: number, signal?: AbortSignal): Promise<RunningServer> {
  const { folder, clock } = place;
  const password = await readPassword(folder);
  const end = clock.monotonicMs() + startTimeoutMs;
  let reason = 'it is busy';
  let emptySinceMs: number | undefined;
  while (clock.monotonicMs() < end && !signal?.aborted) {
    const running = await readPostmaster(folder);
    if (running !== undefined) {
      const connectionString = addressOf(running.port, password);
      if (await accepts(connectionString)) return { ...running, connectionString, found: true };
      // It starts, recovers or stops: its next state tells.
      await clock.sleep(pollMs);
      continue;
    }
    if (await hasEmptyPidFile(folder)) {
      emptySinceMs ??= clock.monotonicMs();
      if (clock.monotonicMs() - emptySinceMs > emptyPidFileMs) await rm(pidFile(folder), { force: true });
      await clock.sleep(pollMs);
      continue;
    }
    const started = await spawnServer(place, port ?? (await freePort()), password, end);
    if (typeof started === 'object') return started;
    reason = started;
    await clock.sleep(retryMs, signal);
  }
  throw new EmbeddedError(`PostgreSQL in ${folder} did not become ready: ${reason}`);
}

/** Log lines that mean "try again": somebody else starts it, took the port, or its killed predecessor is still ending. */
const passingFaults =
  /lock file "postmaster\.pid"|could not bind|pre-existing shared memory block|is another postmaster/;

/** An eighth of the memory there is, from PostgreSQL's default of 128 MB to 512 MB: it shares the machine with whoever calls it. */
function sharedBuffersMb(): number {
  const limited = process.constrainedMemory();
  const bytes = limited > 0 ? Math.min(limited, totalmem()) : totalmem();
  return Math.max(128, Math.min(512, Math.floor(bytes / 8 / 1_048_576)));
}

/** Spawns a server and waits until it is ready; a text says why that may go better at the next try. */
async function spawnServer(
  place: ServerPlace,
  port: number,
  password: string,
  endMs: number,
): Promise<RunningServer | string> {
  const { folder, account, binaries, clock } = place;
  await disownReusedPid(folder);
  const { log, from } = await openLog(folder, account);
  const settings = {
    listen_addresses: '127.0.0.1',
    port: String(port),
    // No socket file: /tmp may not be ours, and a path under a deep folder is too long for one.
    unix_socket_directories: '',
    max_connections: '200',
    timezone: 'UTC',
    log_timezone: 'UTC',
    log_checkpoints: 'off',
    shared_buffers: `${sharedBuffersMb()}MB`,
    // With the default of 1 GB a busy queue has a checkpoint each minute, and after each of them every page goes to the log whole.
    max_wal_size: '2GB',
    ...place.settings,
  };
  const child = spawn(
    binaries.postgres,
    ['-D', join(folder, 'data'), ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])],
    { ...spawnOptions(account), stdio: ['ignore', log.fd, log.fd], detached: true },
  );
  // Before anything is waited for: a server that does not like its settings is gone in milliseconds.
  const end = exitOf(child);
  let exited = false;
  const onExit = () => {
    exited = true;
  };
  end.then(onExit, onExit);
  child.unref();
  await log.close();
  const connectionString = addressOf(port, password);
  while (!exited && clock.monotonicMs() < endMs) {
    if (child.pid !== undefined && (await accepts(connectionString)) && !exited) {
      return { pid: child.pid, port, connectionString, found: false };
    }
    await clock.sleep(pollMs);
  }
  if (!exited) return 'it is still starting';
  const code = await end;
  const said = (await readFile(join(folder, 'server.log'), 'utf8')).slice(from).trim();
  if (passingFaults.test(said)) return said;
  throw new EmbeddedError(`PostgreSQL in ${folder} ended with ${code} as it started: ${said}`);
}

/**
 * Stops the server and waits until it has written everything (a fast shutdown: sessions are cut, a checkpoint is made).
 * Its pid file is the last thing it removes; a process that nobody reaps would seem alive for ever.
 */
export async function stopServer(server: RunningServer, { folder, clock }: ServerPlace): Promise<void> {
  signalServer(server.pid, 'SIGINT');
  const end = clock.monotonicMs() + stopTimeoutMs;
  while ((await readPostmaster(folder))?.pid === server.pid) {
    if (clock.monotonicMs() > end) {
      signalServer(server.pid, 'SIGQUIT');
      return;
    }
    await clock.sleep(pollMs);
  }
}

/** Tells the server to stop, without waiting: what is left to do in an `exit` listener. */
export function signalServer(pid: number, signal: 'SIGINT' | 'SIGQUIT'): void {
  try {
    process.kill(pid, signal);
  } catch {
    // Gone already.
  }
}

async function accepts(connectionString: string): Promise<boolean> {
  const client = new pg.Client({ connectionString, connectionTimeoutMillis: 2_000 });
  client.on('error', () => undefined);
  try {
    await client.connect();
    return true;
  } catch (error) {
    // Too many connections: busy, but there.
    return codeOf(error) === '53300';
  } finally {
    await client.end().catch(() => undefined);
  }
}

async function readPassword(folder: string): Promise<string> {
  try {
    return (await readFile(join(folder, 'password'), 'utf8')).trim();
  } catch (cause) {
    throw new EmbeddedError(`the password of the PostgreSQL in ${folder} cannot be read; run as the user who made it`, {
      cause,
    });
  }
}

async function openLog(folder: string, account: Account) {
  const path = join(folder, 'server.log');
  const { size } = await stat(path).catch(() => ({ size: 0 }));
  const log = await open(path, size > maxLogBytes ? 'w' : 'a', 0o600);
  // So that the account's user can start it too, another time.
  if (account.ids !== undefined) await log.chown(account.ids.uid, account.ids.gid);
  return { log, from: (await log.stat()).size };
}

/** A port that is free now; the server tells, by not starting, when it no longer is. */
function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    // Somebody may try the port just now; the probe must not wait for them.
    const probe = createServer((socket) => socket.destroy());
    probe.once('error', reject);
    probe.listen(0, '127.0.0.1', () => {
      const address = probe.address();
      probe.close(() => resolve(typeof address === 'object' && address !== null ? address.port : 0));
    });
  });
}

function addressOf(port: number, password: string): string {
  return `postgresql://${userName}:${password}@127.0.0.1:${port}/${databaseName}`;
}
