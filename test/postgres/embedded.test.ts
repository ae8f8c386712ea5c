import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, lstatSync, readFileSync, readlinkSync, statSync } from 'node:fs';
import { appendFile, chmod, mkdir, mkdtemp, realpath, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import t, { type Test } from 'tap';
import { type EmbeddedPostgres, startEmbedded } from '../../src/postgres/embedded.ts';
import { linkLibraries } from '../../src/postgres/embedded-binaries.ts';
import { createLogger } from '../../src/system/logger.ts';
import { eventually } from '../support/eventually.ts';

// A dozen starts, each with an initdb: slow on a machine that does other things too.
t.setTimeout(300_000);

const isRoot = process.getuid?.() === 0;
const logger = createLogger('silent');

/** A data folder, and ways to own it; whatever still runs on it is stopped, and all of it removed, when `t` ends. */
async function setup(t: Test, mode = 0o755) {
  const base = await mkdtemp(join(tmpdir(), 'sluice-embedded-'));
  await chmod(base, mode);
  const dataDir = join(base, 'data');
  t.teardown(async () => {
    const pid = serverPid(dataDir);
    if (pid !== undefined) {
      signal(pid, 'SIGQUIT');
      await eventually('the server to be gone', () => !isAlive(pid));
    }
    const moved = await realpath(join(dataDir, 'postgres')).catch(() => undefined);
    if (moved !== undefined) await rm(moved, { recursive: true, force: true });
    await rm(base, { recursive: true, force: true });
  });
  return { base, dataDir };
}

/** Owns the folder in this process. */
async function start(t: Test, dataDir: string, log = logger): Promise<EmbeddedPostgres> {
  const embedded = await startEmbedded({ dataDir, logger: log });
  t.teardown(() => embedded.stop());
  return embedded;
}

/** Owns the folder in a process of its own; gives its first line. */
async function startOwner(t: Test, dataDir: string, ...args: string[]) {
  const script = fileURLToPath(new URL('../support/embedded-owner.ts', import.meta.url));
  const child = spawn(process.execPath, ['--import', 'tsx', script, dataDir, ...args], {
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  t.teardown(() => end(child, 'SIGKILL'));
  const [line] = (await once(createInterface(child.stdout), 'line')) as [string];
  return { child, ...(JSON.parse(line) as { connectionString: string; error?: string }) };
}

async function end(child: ChildProcess, signalName: NodeJS.Signals): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill(signalName);
  await once(child, 'exit');
}

function serverPid(dataDir: string): number | undefined {
  const file = join(dataDir, 'postgres', 'data', 'postmaster.pid');
  const pid = existsSync(file) ? Number(readFileSync(file, 'utf8').split('\n')[0]) : 0;
  // 0 is what an empty file reads as, and to a signal it means our whole group.
  return pid > 0 && pid !== process.pid ? pid : undefined;
}

function isAlive(pid: number): boolean {
  // A process that has ended and waits to be reaped is a zombie, state Z.
  try {
    return readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.[0] !== 'Z';
  } catch {
    return signal(pid, 0);
  }
}

function signal(pid: number, name: NodeJS.Signals | 0): boolean {
  if (pid <= 0) throw new Error(`there is no process ${pid}`);
  try {
    return process.kill(pid, name);
  } catch {
    return false;
  }
}

async function query<R extends pg.QueryResultRow>(connectionString: string, text: string): Promise<R[]> {
  const client = new pg.Client({ connectionString });
  client.on('error', () => undefined);
  await client.connect();
  try {
    return (await client.query<R>(text)).rows;
  } finally {
    await client.end();
  }
}

t.test('one start after the other on the same folder', async (t) => {
  const { dataDir } = await setup(t);
  const first = await startEmbedded({ dataDir, logger });

  t.test('it is durable, reachable from this machine only, and needs its password', async (t) => {
    const [settings] = await query(
      first.connectionString,
      `SELECT current_setting('fsync') AS fsync, current_setting('full_page_writes') AS pages,
              current_setting('listen_addresses') AS addresses, current_setting('unix_socket_directories') AS sockets,
              current_setting('synchronous_commit') AS commit, current_setting('server_encoding') AS encoding`,
    );
    t.same(settings, {
      fsync: 'on',
      pages: 'on',
      addresses: '127.0.0.1',
      sockets: '',
      commit: 'on',
      encoding: 'UTF8',
    });
    const wrong = new URL(first.connectionString);
    wrong.password = 'password';
    await t.rejects(query(wrong.href, 'SELECT 1'), { code: '28P01' });
    const { mode } = statSync(join(dataDir, 'postgres', 'password'));
    t.equal(mode & 0o777, 0o600);
  });

  t.test('a Ctrl-C in the terminal does not reach it before us: it is in a process group of its own', async (t) => {
    const pid = serverPid(dataDir) ?? 0;
    const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ');
    t.equal(Number(fields?.[2]), pid);
  });

  t.test('what was written is there at the next start, and nothing runs in between', async (t) => {
    await query(first.connectionString, 'CREATE TABLE kept AS SELECT 42 AS n');
    const pid = serverPid(dataDir) ?? 0;
    await first.stop();
    await eventually('the server to be gone', () => !isAlive(pid));
    t.equal(serverPid(dataDir), undefined);
    const second = await start(t, dataDir);
    t.same(await query(second.connectionString, 'SELECT n FROM kept'), [{ n: 42 }]);
    await second.stop();
    await second.stop();
    t.pass('stopping twice is no fault');
  });

  t.test('an empty postmaster.pid, as a power cut leaves it, is no obstacle', async (t) => {
    await writeFile(join(dataDir, 'postgres', 'data', 'postmaster.pid'), '');
    const third = await start(t, dataDir);
    t.same(await query(third.connectionString, 'SELECT n FROM kept'), [{ n: 42 }]);
  });
});

t.test('a server whose process was killed with -9', async (t) => {
  const { dataDir } = await setup(t);
  const owner = await startOwner(t, dataDir);
  await query(owner.connectionString, 'CREATE TABLE kept AS SELECT 42 AS n');
  const pid = serverPid(dataDir) ?? 0;
  await end(owner.child, 'SIGKILL');
  t.ok(isAlive(pid), 'the server outlives it');

  t.test('is taken over by the next start as it runs, and stopped by it', async (t) => {
    const next = await start(t, dataDir);
    t.equal(serverPid(dataDir), pid);
    t.equal(next.connectionString, owner.connectionString);
    t.same(await query(next.connectionString, 'SELECT n FROM kept'), [{ n: 42 }]);
    await next.stop();
    await eventually('the server to be gone', () => !isAlive(pid));
  });

  t.test('and was killed itself leaves a stale postmaster.pid, which is no obstacle', async (t) => {
    const again = await startOwner(t, dataDir);
    const stale = serverPid(dataDir) ?? 0;
    await query(again.connectionString, 'INSERT INTO kept VALUES (43)');
    signal(again.child.pid ?? 0, 'SIGSTOP');
    signal(stale, 'SIGKILL');
    signal(again.child.pid ?? 0, 'SIGKILL');
    await eventually('the server to be gone', () => !isAlive(stale));
    t.equal(serverPid(dataDir), stale);
    const next = await start(t, dataDir);
    t.not(serverPid(dataDir), stale);
    t.same(await query(next.connectionString, 'SELECT n FROM kept ORDER BY n'), [{ n: 42 }, { n: 43 }]);
    await next.stop();
  });

  t.test('nor is one whose number belongs to somebody else by now', async (t) => {
    const stranger = spawn(process.execPath, ['-e', 'setInterval(() => {}, 1000)'], { stdio: 'ignore' });
    t.teardown(() => end(stranger, 'SIGKILL'));
    const file = join(dataDir, 'postgres', 'data', 'postmaster.pid');
    await writeFile(file, `${stranger.pid}\n${join(dataDir, 'postgres', 'data')}\n1700000000\n5432\n\n127.0.0.1\n`);
    const next = await start(t, dataDir);
    t.not(serverPid(dataDir), stranger.pid);
    t.same(await query(next.connectionString, 'SELECT count(*)::int AS n FROM kept'), [{ n: 2 }]);
    t.equal(stranger.exitCode, null, 'who is left alone');
  });
});

t.test('a second process on the same folder', async (t) => {
  const { dataDir } = await setup(t);
  const owner = await startOwner(t, dataDir, 'http://127.0.0.1:3999');

  t.test('is refused with the address of the first, which notices nothing', async (t) => {
    const second = await startOwner(t, dataDir);
    t.match(second.error, /another Sluice process runs on .* at http:\/\/127\.0\.0\.1:3999/);
    t.match(second.error, dataDir);
    await once(second.child, 'exit');
    t.equal(second.child.exitCode, 1);
    t.same(await query(owner.connectionString, 'SELECT 1 AS n'), [{ n: 1 }]);
  });

  t.test('is let in once the first was told to stop', async (t) => {
    const pid = serverPid(dataDir) ?? 0;
    await end(owner.child, 'SIGTERM');
    t.equal(owner.child.exitCode, 0);
    t.notOk(isAlive(pid));
    const next = await startOwner(t, dataDir);
    t.equal(next.error, undefined);

    t.test('and refused without an address while that one is just starting', async (t) => {
      await t.rejects(startEmbedded({ dataDir, logger }), { name: 'EmbeddedInUseError', message: /just starting/ });
    });
  });
});

t.test('of two that start at once on an empty folder one gets it, and the other is refused', async (t) => {
  const { dataDir } = await setup(t);
  const owners = await Promise.all([startOwner(t, dataDir), startOwner(t, dataDir)]);
  const winners = owners.filter((owner) => owner.error === undefined);
  t.equal(winners.length, 1);
  t.match(owners.find((owner) => owner.error !== undefined)?.error, /another Sluice process/);
  t.same(await query(winners[0]?.connectionString ?? '', 'SELECT 1 AS n'), [{ n: 1 }]);
});

t.test('a process that dies of an uncaught error does not leave the server running', async (t) => {
  const { dataDir } = await setup(t);
  const owner = await startOwner(t, dataDir);
  const pid = serverPid(dataDir) ?? 0;
  await end(owner.child, 'SIGUSR2');
  t.not(owner.child.exitCode, 0);
  await eventually('the server to be gone', () => !isAlive(pid));
});

t.test('a server that is killed under its owner comes back at the same address', async (t) => {
  const { dataDir } = await setup(t);
  const embedded = await start(t, dataDir);
  await query(embedded.connectionString, 'CREATE TABLE kept AS SELECT 42 AS n');
  signal(serverPid(dataDir) ?? 0, 'SIGKILL');
  const rows = await eventually('the server to be back', () => query(embedded.connectionString, 'SELECT n FROM kept'));
  t.same(rows, [{ n: 42 }]);
  await t.rejects(startEmbedded({ dataDir, logger }), { name: 'EmbeddedInUseError' }, 'and is still owned');
});

t.test('in a folder that only its owner may enter it works, and the data is still there the next time', async (t) => {
  const { dataDir } = await setup(t, 0o700);
  const lines: string[] = [];
  const log = createLogger('info', { write: (line) => lines.push(line) });
  const first = await start(t, dataDir, log);
  await query(first.connectionString, 'CREATE TABLE kept AS SELECT 42 AS n');
  await first.stop();
  const second = await start(t, dataDir, log);
  t.same(await query(second.connectionString, 'SELECT n FROM kept'), [{ n: 42 }]);

  const folder = join(dataDir, 'postgres');
  if (isRoot) {
    const goal = readlinkSync(folder);
    t.notOk(goal.startsWith(dataDir), 'the user postgres cannot go there, so root put the data elsewhere');
    t.equal(lines.filter((line) => line.includes(goal) && line.includes('cannot enter')).length, 2, 'and said so');
    t.equal(lines.filter((line) => line.includes('runs as the user postgres')).length, 2);
  } else {
    t.notOk(lstatSync(folder).isSymbolicLink());
    t.notMatch(lines.join(), 'cannot enter');
  }

  t.test('data that somebody removed from there is not missed but started anew', async (t) => {
    await second.stop();
    await rm(await realpath(folder), { recursive: true });
    const third = await start(t, dataDir, log);
    await t.rejects(query(third.connectionString, 'SELECT n FROM kept'), { code: '42P01' });
  });
});

t.test('a start that fails says what PostgreSQL said', async (t) => {
  const { dataDir } = await setup(t);
  const embedded = await start(t, dataDir);
  await embedded.stop();
  await appendFile(join(dataDir, 'postgres', 'data', 'postgresql.conf'), '\nnonsense = on\n');
  await t.rejects(startEmbedded({ dataDir, logger }), { message: /unrecognized configuration parameter "nonsense"/ });
});

t.test('library links that are missing are made', async (t) => {
  const { base } = await setup(t);
  const native = join(base, 'native');
  await mkdir(join(native, 'lib'), { recursive: true });
  await writeFile(join(native, 'lib', 'libx.so.5.18'), 'library');
  const links = ['libx.so', 'libx.so.5'].map((name) => ({
    source: 'native/lib/libx.so.5.18',
    target: `native/lib/${name}`,
  }));
  await writeFile(join(native, 'pg-symlinks.json'), JSON.stringify(links));
  t.equal(await linkLibraries(native), true);
  t.equal(readFileSync(join(native, 'lib', 'libx.so.5'), 'utf8'), 'library');
  t.equal(readlinkSync(join(native, 'lib', 'libx.so')), 'libx.so.5.18', 'relative, so the folder can be moved');
  await truncate(join(native, 'lib', 'libx.so.5.18'));
  t.equal(await linkLibraries(native), true, 'a second time does no harm');
});
