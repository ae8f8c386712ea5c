/**
 * Real service processes for tests: the program itself, with a port of its own, on a database of the test's choice. What
 * still runs at the end of the test is stopped then, and killed if it does not stop. Waits for the process's own ready line,
 * never for a time.
 */

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Test } from 'tap';
import { type Exit, type Replica, startReplica } from '../../src/cli/demo/replica.ts';
import { systemClock } from '../../src/system/clock.ts';
import { TestClient } from './client.ts';

/** A line of a log: JSON, or text from somewhere below it. */
export interface LogLine {
  readonly msg?: string;
  readonly level?: number;
  readonly [field: string]: unknown;
}

export interface Service extends Replica {
  readonly client: TestClient;
  /** Everything it has logged so far. */
  readonly lines: readonly LogLine[];
  /** Resolves with the first line, logged already or later, that fulfils the condition; rejects after `timeoutMs`. */
  waitForLine(condition: (line: LogLine) => boolean, timeoutMs?: number): Promise<LogLine>;
}

export interface ServiceOptions {
  readonly databaseUrl: string;
  /** Beside the defaults of the program and those that the tests need. */
  readonly env?: Readonly<Record<string, string>>;
}

/** Short, so that a killed worker's jobs come back while a test waits. */
export const testLeaseSeconds = 3;

/** Five processes that compile the sources at once, on two processors that others use as well. */
const readyWithinMs = 60_000;

export async function startService(t: Test, options: ServiceOptions): Promise<Service> {
  const folder = await mkdtemp(join(tmpdir(), 'sluice-service-'));
  const lines: LogLine[] = [];
  const watchers = new Set<() => void>();
  t.teardown(() => rm(folder, { recursive: true, force: true }));
  const replica = await startReplica({
    environment: {
      ...inherited(),
      DATABASE_URL: options.databaseUrl,
      HOST: '127.0.0.1',
      PORT: '0',
      SLUICE_LEASE_SECONDS: String(testLeaseSeconds),
      ...options.env,
    },
    cwd: folder,
    // From the sources, so that no test passes on yesterday's build.
    nodeFlags: ['--import', import.meta.resolve('tsx')],
    readyWithinMs,
    onLine(line) {
      lines.push(parseLine(line));
      for (const watch of watchers) watch();
    },
  });
  t.teardown(async () => {
    // In order, where it still runs: only then does it leave its measures for the coverage.
    await replica.stop();
    if (!t.passing()) t.comment(`service ${replica.url}\n${errorsOf(lines)}`);
  });
  return {
    ...replica,
    client: new TestClient(replica.url, options.env?.SLUICE_ADMIN_KEY),
    lines,
    async waitForLine(condition, timeoutMs = 10_000) {
      const found = new AbortController();
      const watch = () => {
        if (lines.some(condition)) found.abort();
      };
      watchers.add(watch);
      watch();
      await systemClock.sleep(timeoutMs, found.signal);
      watchers.delete(watch);
      const line = lines.find(condition);
      if (line === undefined) throw new Error(`no such line in ${timeoutMs} ms; the last: ${lastLines(lines)}`);
      return line;
    },
  };
}

/** All at once on one database, as a deployment would. */
export function startReplicas(t: Test, count: number, options: ServiceOptions): Promise<Service[]> {
  return Promise.all(Array.from({ length: count }, () => startService(t, options)));
}

/** Kills as a crash would, and waits until it is gone. */
export async function crash(service: Service): Promise<Exit> {
  service.kill('SIGKILL');
  return service.exited;
}

/** What a process needs to run and to be measured; nothing that would configure the service. */
export function inherited(): Record<string, string | undefined> {
  const names = ['PATH', 'HOME', 'TMPDIR', 'NODE_V8_COVERAGE'];
  return Object.fromEntries(names.map((name) => [name, process.env[name]]));
}

function parseLine(line: string): LogLine {
  try {
    return JSON.parse(line) as LogLine;
  } catch {
    return { msg: line };
  }
}

/** What it logged as errors, for whoever reads a failed test. */
function errorsOf(lines: readonly LogLine[]): string {
  const errors = lines.filter(({ level }) => level === undefined || level >= 50);
  return lastLines(errors) || 'logged no error';
}

function lastLines(lines: readonly LogLine[]): string {
  return lines
    .slice(-5)
    .map((line) => JSON.stringify(line))
    .join('\n');
}
