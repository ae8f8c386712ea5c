/**
 * Keeps the PostgreSQL of one test run: `node postgres-keeper.ts STATE_FOLDER RUNNER_PID`. Started by `database.ts`.
 *
 * Makes a server and a migrated template database, writes their address to `ready` (or what went wrong to `failed`), and
 * stops and removes it all as soon as the test runner's process is gone, however that ended.
 */
import { rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import pg from 'pg';
import { findAccount } from '../../src/postgres/embedded-account.ts';
import { prepareBinaries } from '../../src/postgres/embedded-binaries.ts';
import { createServerFolder } from '../../src/postgres/embedded-folder.ts';
import { startServer, stopServer } from '../../src/postgres/embedded-server.ts';
import { migrate } from '../../src/postgres/migrate.ts';
import { systemClock } from '../../src/system/clock.ts';
import { createLogger } from '../../src/system/logger.ts';
import { makeServerHome } from './server-home.ts';

const [stateFolder = '', runner = ''] = process.argv.slice(2);
const runnerPid = Number(runner);
const logger = createLogger('info');
const runnerPollMs = 100;

const told = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => told.abort());

const account = await findAccount(join(stateFolder, 'postgres', 'data'));
const home = await makeServerHome(account);
try {
  const binaries = await prepareBinaries(account, home, logger);
  await createServerFolder(join(home, 'postgres'), { account, binaries });
  const place = {
    folder: join(home, 'postgres'),
    account,
    binaries,
    clock: systemClock,
    // The data is thrown away: durability would only cost time. Many test files have a pool each.
    settings: { fsync: 'off', full_page_writes: 'off', max_connections: '300', max_wal_size: '256MB' },
  };
  const server = await startServer(place);
  try {
    await makeTemplate(server.connectionString);
    await publish('ready', server.connectionString);
    while (runnerIsAlive() && !told.signal.aborted) await systemClock.sleep(runnerPollMs, told.signal);
  } finally {
    await stopServer(server, place);
  }
} catch (error) {
  await publish('failed', error instanceof Error ? (error.stack ?? error.message) : String(error));
  while (runnerIsAlive() && !told.signal.aborted) await systemClock.sleep(runnerPollMs, told.signal);
} finally {
  await rm(home, { recursive: true, force: true });
  await rm(stateFolder, { recursive: true, force: true });
}

async function makeTemplate(connectionString: string): Promise<void> {
  const admin = new pg.Client({ connectionString });
  await admin.connect();
  try {
    await admin.query('CREATE DATABASE sluice_template');
    const url = new URL(connectionString);
    url.pathname = '/sluice_template';
    await migrate(url.href, logger);
    await admin.query('ALTER DATABASE sluice_template WITH ALLOW_CONNECTIONS false IS_TEMPLATE true');
  } finally {
    // Left open, its end with the server would hide what went wrong.
    await admin.end();
  }
}

/** Appears whole or not at all. */
async function publish(name: string, text: string): Promise<void> {
  await writeFile(join(stateFolder, `${name}.new`), text, { mode: 0o600 });
  await rename(join(stateFolder, `${name}.new`), join(stateFolder, name));
}

function runnerIsAlive(): boolean {
  try {
    process.kill(runnerPid, 0);
    return true;
  } catch {
    return false;
  }
}
