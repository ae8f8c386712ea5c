/**
 * One PostgreSQL server on one folder: made, started, found running, stopped. Who may use it is up to `embedded.ts`.
 *
 * The folder holds `data` (PostgreSQL's own), `password` (ours, mode 600) and `server.log`. It appears whole or not at all.
 * The server is a process group of its own, so that a Ctrl-C reaches only us and we can stop it last; it therefore outlives
 * a kill -9 of ours, and the next start finds it by `postmaster.pid`. It listens on loopback only, with a random password.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { chmod, chown, mkdir, open, readdir, readFile, rename, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { basename, dirname, join } from 'node:path';
import pg from 'pg';
import type { Clock } from '../system/clock.ts';
import { type Account, spawnOptions } from './embedded-account.ts';
import type { Binaries } from './embedded-binaries.ts';
import { EmbeddedError } from './embedded-error.ts';

/** The server's superuser and only user. */
const userName = 'sluice';
const databaseName = 'postgres';
/** The server writes warnings and errors only; past this size its log starts anew with the next start. */
const maxLogBytes = 10 * 1024 * 1024;
const pollMs = 25;
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
 * Makes the server's folder at `path`. If `elsewhere` is given it is made there, and `path` becomes a link to it.
 * Of several processes that do so at once one wins, and the others find its folder.
 */
export async function createServerFolder(
  path: string,
  { account, binaries }: Pick<ServerPlace, 'account' | 'binaries'>,
  elsewhere?: string,
): Promise<void> {
  await removeAbandonedDrafts(path);
  const draft = elsewhere ?? `${path}.new-${process.pid}`;
  await rm(draft, { recursive: true, force: true });
  await mkdir(draft, { recursive: true });
  try {
    await chmod(draft, 0o755);
    await initialise(draft, account, binaries);
    await (elsewhere === undefined ? rename(draft, path) : symlink(draft, path));
  } catch (error) {
    await rm(draft, { recursive: true, force: true });
    if (!['ENOTEMPTY', 'EEXIST'].includes(codeOf(error))) throw error;
  }
}

/** A process that was killed in the middle left its draft behind. */
async function removeAbandonedDrafts(path: string): Promise<void> {
  const start = `${basename(path)}.new-`;
  for (const name of await readdir(dirname(path))) {
    if (name.startsWith(start) && !isAlive(Number(name.slice(start.length)))) {
      await rm(join(dirname(path), name), { recursive: true, force: true });
    }
  }
}

async function initialise(folder: string, account: Account, binaries: Binaries): Promise<void> {
  const data = join(folder, 'data');
  await mkdir(data, { mode: 0o700 });
  const password = randomBytes(24).toString('base64url');
  // initdb reads it as the account, so it starts as a file of the account's; afterwards it is ours alone.
  const passwordFile = join(folder, 'password');
  await writeFile(passwordFile, password, { mode: 0o600 });
  if (account.ids !== undefined) {
    await chown(data, account.ids.uid, account.ids.gid);
    await chown(passwordFile, account.ids.uid, account.ids.gid);
  }
  const child = spawn(
    binaries.initdb,
    [
      `--pgdata=${data}`,
      `--username=${userName}`,
      `--pwfile=${passwordFile}`,
      '--auth=scram-sha-256',
      '--encoding=UTF8',
      // The same order of text on every machine, whatever locales it has.
      '--locale=C',
      '--locale-provider=builtin',
      '--builtin-locale=C.UTF-8',
    ],
    { ...spawnOptions(account), stdio: ['ignore', 'ignore', 'pipe'] },
  );
  let said = '';
  child.stderr?.on('data', (chunk: Buffer) => {
    said += chunk.toString();
  });
  const code = await ended(child);
  if (code !== 0) throw new EmbeddedError(`initdb ended with ${code}: ${said.trim()}`);
  if (account.ids !== undefined) await chown(passwordFile, process.getuid?.() ?? 0, process.getgid?.() ?? 0);
}

/**
 * Gives the server of this folder, ready for connections: the one that runs, or a new one on a free port (on `port`, if that
 * is given). Throws with the last lines of the server's log where it does not start.
 */
export async function startServer(place: ServerPlace, port?: number): Promise<RunningServer> {
  const { folder, clock } = place;
  const password = await readPassword(folder);
  const end = clock.monotonicMs() + startTimeoutMs;
  let reason = 'it is busy';
  let emptySinceMs: number | undefined;
  while (clock.monotonicMs() < end) {
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
      if (clock.monotonicMs() - emptySinceMs > emptyPidFileMs)
        await rm(join(folder, 'data', 'postmaster.pid'), { force: true });
      await clock.sleep(pollMs);
      continue;
    }
    const started = await spawnServer(place, port ?? (await freePort()), password, end);
    if (typeof started === 'object') return started;
    reason = started;
    await clock.sleep(pollMs);
  }
  throw new EmbeddedError(`PostgreSQL in ${folder} did not become ready: ${reason}`);
}

/** Log lines that mean "try again": somebody else starts it, took the port, or its killed predecessor is still ending. */
const passingFaults =
  /lock file "postmaster\.pid"|could not bind|pre-existing shared memory block|is another postmaster/;

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
    ...place.settings,
  };
  const child = spawn(
    binaries.postgres,
    ['-D', join(folder, 'data'), ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])],
    { ...spawnOptions(account), stdio: ['ignore', log.fd, log.fd], detached: true },
  );
  child.unref();
  await log.close();
  const end = ended(child);
  let exited = false;
  end.then(
    () => {
      exited = true;
    },
    () => {
      exited = true;
    },
  );
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

/** The server that runs on this folder by its pid file; undefined: none, or the file is a dead one's. */
async function readPostmaster(folder: string): Promise<{ pid: number; port: number } | undefined> {
  const text = await readFile(join(folder, 'data', 'postmaster.pid'), 'utf8').catch(() => '');
  const lines = text.split('\n');
  const pid = Number(lines[0]);
  const port = Number(lines[3]);
  if (!Number.isInteger(pid) || pid <= 0 || !Number.isInteger(port) || port <= 0) return undefined;
  return isAlive(pid) && (await isServerOf(pid, folder)) ? { pid, port } : undefined;
}

async function hasEmptyPidFile(folder: string): Promise<boolean> {
  const found = await stat(join(folder, 'data', 'postmaster.pid')).catch(() => undefined);
  return found?.size === 0;
}

/**
 * PostgreSQL refuses to start while the pid in its file is alive, whoever that is by now: in a container the same small
 * numbers come back. It does not mind its parent's, so the line becomes ours. The rest of the file stays: by it PostgreSQL
 * finds out whether sessions of the dead server still write to the data.
 */
async function disownReusedPid(folder: string): Promise<void> {
  const file = join(folder, 'data', 'postmaster.pid');
  const text = await readFile(file, 'utf8').catch(() => '');
  const [first = '', ...rest] = text.split('\n');
  const pid = Number(first);
  if (!Number.isInteger(pid) || pid <= 0 || !isAlive(pid) || (await isServerOf(pid, folder))) return;
  await writeFile(file, [process.pid, ...rest].join('\n'));
}

/** Whether the live process `pid` is a PostgreSQL on this folder, and not somebody who got a dead one's number. */
async function isServerOf(pid: number, folder: string): Promise<boolean> {
  const commandLine = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => undefined);
  // Not Linux: believe the file, as PostgreSQL itself does.
  if (commandLine === undefined) return process.platform !== 'linux';
  return commandLine.split('\0').includes(join(folder, 'data'));
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return codeOf(error) === 'EPERM';
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
    const probe = createServer();
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

function ended(child: ChildProcess): Promise<number | NodeJS.Signals | null> {
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code, signal) => resolve(code ?? signal));
  });
}

function codeOf(error: unknown): string {
  return error instanceof Error && 'code' in error ? String(error.code) : '';
}
