/**
 * A PostgreSQL server of the test's own, for tests that do to a server what would hurt everybody else's: stopped, started,
 * frozen, made read-only. Empty at first: a service migrates it at its start. Gone when the test ends.
 */
import { execFile } from 'node:child_process';
import { rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import pg from 'pg';
import { findAccount } from '../../src/postgres/embedded-account.ts';
import { prepareBinaries } from '../../src/postgres/embedded-binaries.ts';
import { createServerFolder } from '../../src/postgres/embedded-folder.ts';
import { type RunningServer, type ServerPlace, startServer, stopServer } from '../../src/postgres/embedded-server.ts';
import { systemClock } from '../../src/system/clock.ts';
import { createLogger } from '../../src/system/logger.ts';
import { eventually } from './eventually.ts';
import type { Scope } from './scope.ts';
import { makeServerHome } from './server-home.ts';

export interface OwnPostgres {
  /** The same after each start. */
  readonly connectionString: string;
  readonly place: ServerPlace;
  /** Waits until it takes connections; after a crash it recovers first. */
  start(): Promise<void>;
  /**
   * `immediate`: as a crash of the server, every session is cut and nothing is written any more. `killed`: kill -9 to all of
   * its processes. Waits until it is gone.
   */
  stop(how: 'fast' | 'immediate' | 'killed'): Promise<void>;
  /** SIGSTOP to all of its processes: connections stay open, and nothing answers. Gives a function that lets them go on. */
  freeze(): Promise<() => void>;
  /** One statement on a session of its own, which may write whatever the database's settings say. */
  admin<R extends pg.QueryResultRow>(text: string, values?: readonly unknown[]): Promise<R[]>;
  /** Ends all sessions but the asking one. Gives how many. */
  terminateSessions(): Promise<number>;
  /** Makes a primary of a standby; waits until it takes writes. */
  promote(): Promise<void>;
}

/** Throw-away data: durability against a crash of the machine would only cost time. */
export const fastSettings = { fsync: 'off', full_page_writes: 'off', max_wal_size: '256MB' } as const;

export async function useOwnPostgres(t: Scope, settings: Readonly<Record<string, string>> = {}): Promise<OwnPostgres> {
  const account = await findAccount('/nowhere');
  const home = await makeServerHome(account);
  t.teardown(() => rm(home, { recursive: true, force: true }));
  const binaries = await prepareBinaries(account, home, createLogger('silent'));
  const folder = join(home, 'postgres');
  await createServerFolder(folder, { account, binaries });
  const place = { folder, account, binaries, clock: systemClock, settings: { ...fastSettings, ...settings } };
  return startOwnPostgres(t, place);
}

/** Starts the server of a folder that is there; `port`: where it must listen. Stopped when the test ends. */
export async function startOwnPostgres(t: Scope, place: ServerPlace, port?: number): Promise<OwnPostgres> {
  let server: RunningServer | undefined = await startServer(place, port);
  const { connectionString, port: itsPort } = server;
  let frozen: readonly number[] = [];
  const thaw = () => {
    // The postmaster first: nobody can be found missing then.
    for (const pid of frozen) signal(pid, 'SIGCONT');
    frozen = [];
  };
  const withAdmin = async <T>(work: (client: pg.Client) => Promise<T>): Promise<T> => {
    const client = new pg.Client({
      connectionString,
      application_name: 'test admin',
      options: '-c default_transaction_read_only=off',
    });
    client.on('error', () => undefined);
    await client.connect();
    try {
      return await work(client);
    } finally {
      await client.end();
    }
  };
  const freeze = () =>
    withAdmin(async (client) => {
      const { pid } = server!;
      // No new session can come up from here on, so the list is complete.
      signal(pid, 'SIGSTOP');
      frozen = [pid];
      const { rows } = await client.query<{ pid: number }>(
        'SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()',
      );
      frozen = [pid, ...rows.map((row) => row.pid)];
      for (const each of frozen) signal(each, 'SIGSTOP');
    });
  // A test that runs out of time does not get to its teardown.
  const atExit = () => {
    thaw();
    if (server !== undefined) signal(server.pid, 'SIGQUIT');
  };
  process.once('exit', atExit);
  t.teardown(async () => {
    process.off('exit', atExit);
    thaw();
    if (server !== undefined) await stopServer(server, place);
  });
  return {
    connectionString,
    place,
    async start() {
      server = await startServer(place, itsPort);
    },
    async stop(how) {
      const { pid } = server!;
      if (how === 'killed') {
        await freeze();
        for (const each of frozen) signal(each, 'SIGKILL');
        frozen = [];
      } else {
        signal(pid, how === 'immediate' ? 'SIGQUIT' : 'SIGINT');
      }
      server = undefined;
      await eventually('the server to be gone', () => !isAlive(pid));
    },
    async freeze() {
      await freeze();
      return thaw;
    },
    admin: (text, values = []) => withAdmin(async (client) => (await client.query(text, [...values])).rows),
    async terminateSessions() {
      return withAdmin(async (client) => {
        const { rowCount } = await client.query(
          `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`,
        );
        return rowCount ?? 0;
      });
    },
    async promote() {
      await withAdmin((client) => client.query('SELECT pg_promote(true)'));
    },
  };
}

/**
 * A standby of this server, streaming from it, made from a copy of its data (it is stopped for that). Where `synchronous`, no
 * commit is acknowledged from then on before the standby has it on its disk.
 */
export async function useStandby(
  t: Scope,
  primary: OwnPostgres,
  { synchronous }: { readonly synchronous: boolean },
): Promise<OwnPostgres> {
  const { place } = primary;
  await primary.stop('fast');
  const home = await makeServerHome(place.account);
  t.teardown(() => rm(home, { recursive: true, force: true }));
  const folder = join(home, 'postgres');
  // Owners too: the data is its user's alone.
  await promisify(execFile)('cp', ['-a', place.folder, folder]);
  await writeFile(join(folder, 'data', 'standby.signal'), '');
  await primary.start();
  const { hostname, port, username, password } = new URL(primary.connectionString);
  const standby = await startOwnPostgres(t, {
    ...place,
    folder,
    settings: {
      ...place.settings,
      primary_conninfo: `host=${hostname} port=${port} user=${username} password=${password} application_name=standby`,
    },
  });
  if (synchronous) {
    await primary.admin(`alter system set synchronous_standby_names = 'standby'`);
    await primary.admin('select pg_reload_conf()');
  }
  const state = synchronous ? 'sync' : 'async';
  await eventually(`the standby to stream (${state})`, async () => {
    const rows = await primary.admin(
      `select 1 from pg_stat_replication where application_name = 'standby' and state = 'streaming' and sync_state = $1`,
      [state],
    );
    return rows.length === 1;
  });
  return standby;
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch {
    // A session that has ended by itself.
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
