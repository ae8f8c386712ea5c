import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdtemp, realpath, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import t, { type Test } from 'tap';
import { createTestDatabase } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { startService } from '../support/service.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';

// Many processes one after the other: slow on a machine that does other things too.
t.setTimeout(300_000);

interface Ended {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** A folder that the `postgres` user may enter, removed when `t` ends with whatever was put elsewhere for it. */
async function makeFolder(t: Test): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'sluice-start-'));
  await chmod(folder, 0o755);
  t.teardown(async () => {
    const moved = await realpath(join(folder, '.sluice', 'postgres')).catch(() => undefined);
    if (moved !== undefined) await rm(moved, { recursive: true, force: true });
    await rm(folder, { recursive: true, force: true });
  });
  return folder;
}

/** The program in a folder of its own; killed when `t` ends. */
function run(t: Test, cwd: string, args: readonly string[], env: Readonly<Record<string, string>> = {}) {
  const main = fileURLToPath(new URL('../../src/main.ts', import.meta.url));
  const { PATH, HOME, TMPDIR, NODE_V8_COVERAGE } = process.env;
  const inherited = Object.entries({ PATH, HOME, TMPDIR, NODE_V8_COVERAGE }).filter(([, value]) => value !== undefined);
  const child = spawn(process.execPath, ['--import', import.meta.resolve('tsx'), main, ...args], {
    cwd,
    env: { ...Object.fromEntries(inherited), ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let stdout = '';
  let stderr = '';
  child.stdout.on('data', (chunk: Buffer) => {
    stdout += chunk;
  });
  child.stderr.on('data', (chunk: Buffer) => {
    stderr += chunk;
  });
  const ended: Promise<Ended> = once(child, 'close').then(([code]) => ({ code, stdout, stderr }));
  t.teardown(async () => {
    child.kill('SIGKILL');
    await ended;
  });
  const ready = () =>
    eventually('the ready line', () => {
      const line = stdout.split('\n').find((each) => each.includes('"msg":"ready"'));
      if (child.exitCode !== null) throw new Error(`it ended: ${stdout}${stderr}`);
      return line !== undefined && (JSON.parse(line) as { address: string; worker_id: string | null });
    });
  return { child, ended, ready, said: () => stdout };
}

const lines = (text: string) => text.split('\n').filter((line) => line !== '');

t.test('faults of the environment stop the start with a line for each, and no stack', async (t) => {
  const folder = await makeFolder(t);
  const { code, stderr, stdout } = await run(t, folder, ['serve'], { PORT: '', SLUICE_ROLES: 'cook' }).ended;
  t.equal(code, 1);
  t.same(lines(stderr), [
    'sluice: PORT: must be an integer from 0 to 65535; it is set, but empty',
    'sluice: SLUICE_ROLES: must be a comma list of api, worker, not "cook"',
  ]);
  t.equal(stdout, '');
});

t.test('without a key it does not start on an address that others reach', async (t) => {
  const folder = await makeFolder(t);
  const { code, stderr } = await run(t, folder, ['serve'], { HOST: '0.0.0.0', PORT: '0' }).ended;
  t.equal(code, 1);
  t.match(stderr, /^sluice: SLUICE_ADMIN_KEY: must be set/);
});

t.test('the config file', async (t) => {
  const folder = await makeFolder(t);
  const { connectionString } = await createTestDatabase(t);
  const env = { DATABASE_URL: connectionString, PORT: '0', SLUICE_SHUTDOWN_SECONDS: '1' };

  t.test('with faults stops the start with a line for each', async (t) => {
    await writeFile(
      join(folder, 'sluice.json'),
      JSON.stringify({ rate_limits: { api: { limit: -1, per: 60, upstreams: ['nobody'] } }, queue: {} }),
    );
    const { code, stderr } = await run(t, folder, ['serve'], env).ended;
    t.equal(code, 1);
    t.equal(lines(stderr).length >= 2, true);
    t.match(stderr, /^sluice: sluice\.json: \/rate_limits\/api\/limit invalid_limit: /m);
    t.match(stderr, /^sluice: sluice\.json: \/queue unknown_field: .*did you mean "queues"/m);
    t.notMatch(stderr, /\n {4}at /);
  });

  t.test('that is no JSON is named', async (t) => {
    await writeFile(join(folder, 'broken.json'), '{"upstreams": ');
    const { code, stderr } = await run(t, folder, ['serve'], { ...env, SLUICE_CONFIG: 'broken.json' }).ended;
    t.equal(code, 1);
    t.match(stderr, /^sluice: broken\.json: is not JSON: /);
  });

  t.test('declares what is missing, and a restart does not undo what was changed since', async (t) => {
    await writeFile(
      join(folder, 'sluice.json'),
      `\uFEFF${JSON.stringify({ upstreams: { api: { base_url: 'https://api.example.test', timeout_ms: 1000 } } })}`,
    );
    const first = run(t, folder, ['serve'], env);
    const { address } = await first.ready();
    const upstream = `${address}/admin/upstreams/api`;
    t.match(await (await fetch(upstream)).json(), { timeout_ms: 1000 });
    await fetch(upstream, {
      method: 'PUT',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ base_url: 'https://api.example.test', timeout_ms: 2000 }),
    });
    first.child.kill('SIGTERM');
    t.equal((await first.ended).code, 0);

    const second = run(t, folder, ['serve'], env);
    const restarted = await second.ready();
    t.match(await (await fetch(`${restarted.address}/admin/upstreams/api`)).json(), { timeout_ms: 2000 });
  });
});

t.test('check tells every fault without a database, and its exit code says whether there are any', async (t) => {
  const folder = await makeFolder(t);
  const definitions = {
    upstreams: {
      api: {
        base_url: 'https://api.example.test',
        headers: { authorization: 'Bearer ${API_KEY}', 'x-id': '${OTHER}' },
      },
    },
  };
  await writeFile(join(folder, 'mine.json'), JSON.stringify(definitions));
  const bad = await run(t, folder, ['check', 'mine.json'], { SLUICE_SECRETS: 'API_KEY' }).ended;
  t.equal(bad.code, 1);
  t.match(bad.stderr, /^sluice: mine\.json: \/upstreams\/api\/headers\/authorization missing_environment_variable: /m);
  t.match(bad.stderr, /^sluice: mine\.json: \/upstreams\/api\/headers\/x-id secret_not_allowed: /m);

  const env = { SLUICE_SECRETS: 'API_KEY,OTHER', API_KEY: 'a-secret-value', OTHER: 'x' };
  const good = await run(t, folder, ['check', 'mine.json'], env).ended;
  t.same(good, { code: 0, stdout: 'mine.json: no faults\n', stderr: '' });

  const absent = await run(t, folder, ['check', 'absent.json']).ended;
  t.same([absent.code, absent.stderr], [1, 'sluice: absent.json: cannot be read (ENOENT)\n']);
});

t.test('every command explains itself', async (t) => {
  const folder = await makeFolder(t);
  for (const command of ['serve', 'migrate', 'check', 'demo']) {
    const { code, stdout } = await run(t, folder, [command, '--help']).ended;
    t.equal(code, 0);
    t.match(stdout, new RegExp(`^Usage: sluice ${command}`));
  }
});

t.test('a port that is taken is named', async (t) => {
  const folder = await makeFolder(t);
  const { connectionString } = await createTestDatabase(t);
  const taken = createServer().listen(0, '127.0.0.1');
  t.teardown(() => taken.close());
  await once(taken, 'listening');
  const { port } = taken.address() as { port: number };
  const env = { DATABASE_URL: connectionString, PORT: String(port) };
  const { code, stderr } = await run(t, folder, ['serve'], env).ended;
  t.equal(code, 1);
  t.match(stderr, new RegExp(`^sluice: PORT: ${port} is taken on 127\\.0\\.0\\.1`));
});

t.test('a PostgreSQL that comes later is waited for; told to stop meanwhile, it stops', async (t) => {
  const folder = await makeFolder(t);
  const { connectionString } = await createTestDatabase(t);
  const proxy = await startTcpProxy(t, connectionString);
  proxy.refuse();
  const env = { DATABASE_URL: proxy.connectionString, PORT: '0' };
  const impatient = run(t, folder, ['serve'], env);
  const patient = run(t, folder, ['serve'], env);
  for (const { said } of [impatient, patient]) {
    await eventually('the line that it waits', () => said().includes('waiting for PostgreSQL, for at most 60 s'));
  }
  impatient.child.kill('SIGTERM');
  const { code, stdout } = await impatient.ended;
  t.equal(code, 0);
  t.notMatch(stdout, '"ready"');
  proxy.heal();
  await patient.ready();
});

t.test('a process runs the parts that its roles name', async (t) => {
  const { connectionString: databaseUrl } = await createTestDatabase(t);
  const worker = await startService(t, { databaseUrl, env: { SLUICE_ROLES: 'worker' } });
  t.equal((await worker.client.send('GET', '/readyz')).status, 200);
  t.equal((await worker.client.send('GET', '/v1/batches')).status, 404, 'no API');
  t.match(worker.workerId, /^[0-9a-f-]{36}$/);
  const api = await startService(t, { databaseUrl, env: { SLUICE_ROLES: 'api' } });
  t.equal((await api.client.send('GET', '/admin/upstreams')).status, 200);
  t.match(
    api.lines.find((line) => line.msg === 'ready'),
    { worker_id: null },
    'no worker',
  );
});

t.test('it survives the loss of all its sessions, and tells by /readyz that PostgreSQL is away and back', async (t) => {
  // brianc/node-postgres#2386: without listeners the end of a session ends the process.
  const { database, connectionString } = await createTestDatabase(t);
  const proxy = await startTcpProxy(t, connectionString);
  const service = await startService(t, { databaseUrl: proxy.connectionString });
  const status = async (path: string) => (await service.client.send('GET', path)).status;
  await database.query(
    `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'sluice%'`,
  );
  await eventually('it to be ready again', async () => (await status('/readyz')) === 200);

  proxy.refuse();
  await eventually('the loss to show', async () => (await status('/readyz')) === 503);
  t.equal(await status('/livez'), 200);
  proxy.heal();
  await eventually('the recovery to show', async () => (await status('/readyz')) === 200);
});

t.test('with nothing set it brings its own PostgreSQL', async (t) => {
  const folder = await makeFolder(t);
  const env = { PORT: '0', SLUICE_SHUTDOWN_SECONDS: '1' };
  const first = run(t, folder, ['serve'], env);
  const { address } = await first.ready();
  t.equal((await fetch(`${address}/readyz`)).status, 200);

  t.test('a second process on the same folder is told where the first is', async (t) => {
    for (const command of ['serve', 'migrate']) {
      const { code, stderr } = await run(t, folder, [command], env).ended;
      t.equal(code, 1);
      t.match(lines(stderr), [`at ${address}: use that one`]);
    }
  });

  t.test('killed, it finds its data again; stopped, it leaves nothing running', async (t) => {
    const queue = { method: 'PUT', headers: { 'content-type': 'application/json' }, body: '{"ordering":"fifo"}' };
    t.equal((await fetch(`${address}/admin/queues/mine`, queue)).status, 201);
    first.child.kill('SIGKILL');
    await first.ended;
    const second = run(t, folder, ['serve'], env);
    const again = await second.ready();
    t.match(await (await fetch(`${again.address}/admin/queues/mine`)).json(), { ordering: 'fifo' });
    second.child.kill('SIGINT');
    const { code, stdout } = await second.ended;
    t.equal(code, 0);
    const order = ['shutting down', 'HTTP is drained', 'PostgreSQL stopped', 'stopped'];
    const found = lines(stdout)
      .map((line) => (JSON.parse(line) as { msg: string }).msg)
      .filter((msg) => order.includes(msg));
    t.same(found, order);
    const migrated = await run(t, folder, ['migrate'], env).ended;
    t.equal(migrated.code, 0, 'so that another command can have it');
  });
});
