/**
 * A real PostgreSQL for tests: one server per test run, shared by all test processes, and a fresh migrated database for
 * whoever asks. The first to ask starts the server (see `postgres-keeper.ts`), which goes when the runner does.
 */
import { spawn } from 'node:child_process';
import { chmod, mkdir, open, readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import type { Test } from 'tap';
import { type Database, openDatabase } from '../../src/postgres/database.ts';
import { systemClock } from '../../src/system/clock.ts';
import { type FaultPoints, noFaultPoints } from '../../src/system/fault-points.ts';
import { createLogger } from '../../src/system/logger.ts';
import { assertInvariants, type Invariant } from './invariants.ts';

export interface TestDatabase {
  readonly connectionString: string;
  readonly database: Database;
}

/** tap starts each file in a child of its own; a file run by node alone is its own run. */
const runnerPid = process.env.TAP_CHILD_ID === undefined ? process.pid : process.ppid;
const stateFolder = join(tmpdir(), `sluice-tests-${runnerPid}`);
const pollMs = 20;
const startTimeoutMs = 120_000;

let databases = 0;

export interface TestDatabaseOptions {
  /** The size of the pool of `database`. */
  readonly max?: number;
  /** Invariants that the test breaks on purpose, or that do not apply to what it makes; `all`: none is looked at. */
  readonly breaks?: readonly Invariant[] | 'all';
  readonly faultPoints?: FaultPoints;
}

/**
 * A fresh database with all migrations. When `t` ends, the pool of `database` is closed, the test fails if the store is left
 * in a state that must not be (`invariants.ts`), and the database is dropped (whatever is still connected is cut then).
 */
export async function createTestDatabase(t: Test, options: TestDatabaseOptions = {}): Promise<TestDatabase> {
  const { max = 10, breaks = [], faultPoints = noFaultPoints } = options;
  const { connectionString, drop } = await copyTemplate('sluice_template');
  const logger = createLogger('silent');
  const database = openDatabase({ connectionString, max, logger, applicationName: 'test', faultPoints });
  t.teardown(async () => {
    await database.close();
    try {
      if (breaks !== 'all' && t.passing()) await assertInvariants(connectionString, breaks);
    } finally {
      await drop();
    }
  });
  return { connectionString, database };
}

/** A fresh database with nothing in it, dropped when `t` ends. */
export async function createEmptyDatabase(t: Test): Promise<{ connectionString: string }> {
  const { connectionString, drop } = await copyTemplate('template0');
  t.teardown(drop);
  return { connectionString };
}

async function copyTemplate(template: string): Promise<{ connectionString: string; drop(): Promise<void> }> {
  const server = await serverOfThisRun();
  databases += 1;
  const name = `test_${process.pid}_${databases}`;
  await asAdmin(server, (admin) => admin.query(`CREATE DATABASE ${name} TEMPLATE ${template}`));
  const url = new URL(server);
  url.pathname = `/${name}`;
  return { connectionString: url.href, drop: () => dropDatabase(server, name) };
}

/** The address of the run's server as its superuser, for what a test must do to it from outside. */
export async function serverOfThisRun(): Promise<string> {
  if (await claimStart()) await startKeeper();
  const end = systemClock.monotonicMs() + startTimeoutMs;
  while (systemClock.monotonicMs() < end) {
    const ready = await readFile(join(stateFolder, 'ready'), 'utf8').catch(() => undefined);
    if (ready !== undefined) return ready;
    const failed = await readFile(join(stateFolder, 'failed'), 'utf8').catch(() => undefined);
    if (failed !== undefined) throw new Error(`the PostgreSQL for tests did not start: ${failed}`);
    await systemClock.sleep(pollMs);
  }
  throw new Error(`the PostgreSQL for tests did not start in time; ${stateFolder}/log says why. Remove that folder`);
}

/** True for the one process of this run that shall start the server. */
async function claimStart(): Promise<boolean> {
  try {
    await mkdir(stateFolder);
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'EEXIST') return false;
    throw error;
  }
  // As root the server runs as another user, which must pass through here.
  await chmod(stateFolder, 0o755);
  return true;
}

async function startKeeper(): Promise<void> {
  const log = await open(join(stateFolder, 'log'), 'a', 0o600);
  const keeper = fileURLToPath(new URL('postgres-keeper.ts', import.meta.url));
  const child = spawn(
    process.execPath,
    ['--import', import.meta.resolve('tsx'), keeper, stateFolder, String(runnerPid)],
    // A clean environment: tap's settings for coverage are for tests alone.
    { env: { PATH: process.env.PATH, TMPDIR: tmpdir() }, cwd: '/', detached: true, stdio: ['ignore', log.fd, log.fd] },
  );
  child.unref();
  await log.close();
}

/** How long sessions that are just closing get; one that is open cannot be waited for. */
const closingMs = 50;

async function dropDatabase(server: string, name: string): Promise<void> {
  await asAdmin(server, async (admin) => {
    // A session that closes takes some milliseconds; DROP would look again only after 100.
    const end = systemClock.monotonicMs() + closingMs;
    const isUsed = async () =>
      (await admin.query('SELECT FROM pg_stat_activity WHERE datname = $1 LIMIT 1', [name])).rowCount === 1;
    while (systemClock.monotonicMs() < end && (await isUsed())) await systemClock.sleep(2);
    await admin.query(`DROP DATABASE ${name} WITH (FORCE)`);
  });
}

async function asAdmin(server: string, work: (admin: pg.Client) => Promise<unknown>): Promise<void> {
  const admin = new pg.Client({ connectionString: server });
  admin.on('error', () => undefined);
  await admin.connect();
  try {
    await work(admin);
  } finally {
    await admin.end();
  }
}
