/**
 * One service process, started as a user would start it, and known ready by its own log line. Used by the demo, and by the
 * end-to-end tests, which kill it in every way. What it logs goes to a callback, line by line; nothing reaches the terminal.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { systemClock } from '../../system/clock.ts';

/** Undefined values are left out. */
export type Environment = Readonly<Record<string, string | undefined>>;

export interface ReplicaOptions {
  /** All of the process's environment. */
  readonly environment: Environment;
  readonly cwd: string;
  /** Flags of Node itself, such as a loader; default: those of this process. */
  readonly nodeFlags?: readonly string[];
  /** Every line of stdout and stderr. */
  readonly onLine: (line: string) => void;
  /** Default 30,000. */
  readonly readyWithinMs?: number;
  /** A process group of its own: a Ctrl-C reaches only the parent, which must end it then. Default: false. */
  readonly ownGroup?: boolean;
}

export interface Exit {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

export interface Replica {
  /** `http://…`, without a slash at the end. */
  readonly url: string;
  /** null: it runs no worker. */
  readonly workerId: string | null;
  readonly pid: number;
  readonly exited: Promise<Exit>;
  kill(signal: NodeJS.Signals): void;
  /** SIGTERM, and after `graceMs` (default 5,000) SIGKILL. Resolves when the process has ended, also where it had before. */
  stop(graceMs?: number): Promise<Exit>;
}

/** A process that ended, or did not become ready in time; the message ends with its last lines. */
export class ReplicaError extends Error {
  readonly exit: Exit | null;

  constructor(message: string, lastLines: readonly string[], exit: Exit | null) {
    super([`${message}; its last lines:`, ...lastLines.map(inShort)].join('\n  '));
    this.name = 'ReplicaError';
    this.exit = exit;
  }
}

/** How many of its last lines an error shows. */
const linesInError = 5;

/** Resolves when it is ready; rejects with a `ReplicaError` (the process has ended then) where it does not get there. */
export async function startReplica(options: ReplicaOptions): Promise<Replica> {
  const child = spawn(process.execPath, [...(options.nodeFlags ?? process.execArgv), entryPoint(), 'serve'], {
    cwd: options.cwd,
    env: definedOnly(options.environment),
    detached: options.ownGroup ?? false,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const exited = new Promise<Exit>((resolve) => {
    // 'close', not 'exit': by then every line has been read.
    child.once('close', (code, signal) => resolve({ code, signal }));
  });
  endWithUs(child, exited);
  const lastLines: string[] = [];
  const ready = new Promise<ReadyLine>((resolve) => {
    forEachLine(child, (line) => {
      if (!isOfStack(line)) lastLines.push(line);
      if (lastLines.length > linesInError) lastLines.shift();
      options.onLine(line);
      const found = readyLine(line);
      if (found !== undefined) resolve(found);
    });
  });

  const timeLimit = new AbortController();
  const withinMs = options.readyWithinMs ?? 30_000;
  const first = await Promise.race([
    ready,
    exited,
    systemClock.sleep(withinMs, timeLimit.signal).then(() => 'too late' as const),
  ]);
  timeLimit.abort();
  if (first === 'too late') {
    child.kill('SIGKILL');
    throw new ReplicaError(`a service process was not ready within ${withinMs} ms`, lastLines, await exited);
  }
  if (!('address' in first)) {
    throw new ReplicaError(
      `a service process ended (${first.signal ?? first.code}) before it was ready`,
      lastLines,
      first,
    );
  }
  return {
    url: first.address,
    workerId: first.worker_id,
    pid: child.pid as number,
    exited,
    kill: (signal) => void child.kill(signal),
    stop: (graceMs = 5000) => stop(child, exited, graceMs),
  };
}

const running = new Set<ChildProcess>();

/** However this process ends (but for a kill -9), the child does not outlive it. */
function endWithUs(child: ChildProcess, exited: Promise<Exit>): void {
  if (running.size === 0) process.on('exit', killRunning);
  running.add(child);
  void exited.then(() => {
    running.delete(child);
    if (running.size === 0) process.off('exit', killRunning);
  });
}

function killRunning(): void {
  for (const child of running) child.kill('SIGKILL');
}

async function stop(child: ChildProcess, exited: Promise<Exit>, graceMs: number): Promise<Exit> {
  const gone = new AbortController();
  void exited.then(() => gone.abort());
  child.kill('SIGTERM');
  await systemClock.sleep(graceMs, gone.signal);
  if (!gone.signal.aborted) child.kill('SIGKILL');
  return exited;
}

function isOfStack(line: string): boolean {
  return /^\s+at /.test(line);
}

/** Of a log line in JSON what it says, else the line. */
function inShort(line: string): string {
  if (!line.startsWith('{')) return line;
  const { msg, err } = JSON.parse(line) as { msg?: string; err?: { message?: string } };
  return [msg, err?.message].filter((part) => part !== undefined).join(': ');
}

interface ReadyLine {
  readonly address: string;
  readonly worker_id: string | null;
}

function readyLine(line: string): ReadyLine | undefined {
  if (!line.includes('"ready"')) return undefined;
  const { msg, address, worker_id } = JSON.parse(line) as Record<string, unknown>;
  return msg === 'ready'
    ? { address: String(address), worker_id: worker_id === null ? null : String(worker_id) }
    : undefined;
}

function forEachLine(child: ChildProcess, onLine: (line: string) => void): void {
  for (const stream of [child.stdout, child.stderr]) createInterface({ input: stream as Readable }).on('line', onLine);
}

/** The program's own entry, as this file runs: .ts under a loader, .js when built. */
function entryPoint(): string {
  return fileURLToPath(new URL(`../../main${import.meta.url.slice(-3)}`, import.meta.url));
}

function definedOnly(environment: Environment): Record<string, string> {
  const entries = Object.entries(environment).filter((entry): entry is [string, string] => entry[1] !== undefined);
  return Object.fromEntries(entries);
}
