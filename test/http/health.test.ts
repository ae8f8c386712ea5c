import t, { type Test } from 'tap';
import type { Fault } from '../../src/domain/errors.ts';
import { openDatabase } from '../../src/postgres/database.ts';
import { systemClock } from '../../src/system/clock.ts';
import { createLogger } from '../../src/system/logger.ts';
import { createTestApp, unreachableDatabase } from '../support/app.ts';
import { createTestDatabase } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';

/** The bounds that are promised: 503 within 5 s of a loss, back within 10 s. Half a second for the test itself. */
const lossShownWithinMs = 5_500;
const backWithinMs = 10_500;

async function setup(t: Test, { readiness = () => [] as Fault[] } = {}) {
  const { connectionString } = await createTestDatabase(t);
  const proxy = await startTcpProxy(t, connectionString);
  const database = openDatabase({ connectionString: proxy.connectionString, max: 2, logger: createLogger('silent') });
  t.teardown(() => database.close());
  const { app } = await createTestApp(t, database, { readiness });
  return { app, proxy, database, connectionString, ask: () => app.inject({ url: '/readyz' }) };
}

t.test('alive whatever happens, ready only with PostgreSQL', async (t) => {
  const { app, ask } = await setup(t);
  t.equal((await app.inject({ url: '/livez' })).statusCode, 200);
  const ready = await ask();
  t.equal(ready.statusCode, 200);
  t.same(ready.json(), { status: 'ready' });

  const { app: lonely } = await createTestApp(t, unreachableDatabase(t));
  t.equal((await lonely.inject({ url: '/livez' })).statusCode, 200);
  const response = await lonely.inject({ url: '/readyz' });
  t.equal(response.statusCode, 503);
  t.match(response.json(), { code: 'not_ready', errors: [{ code: 'database_unavailable' }] });
  t.ok(response.headers['retry-after']);
});

t.test('claims that have stopped are a reason of their own', async (t) => {
  let faults: Fault[] = [];
  const { ask } = await setup(t, { readiness: () => faults });
  t.equal((await ask()).statusCode, 200);
  faults = [{ code: 'claims_stopped', message: 'no claim has succeeded for 30 s' }];
  const response = await ask();
  t.equal(response.statusCode, 503);
  t.match(response.json(), { detail: 'no claim has succeeded for 30 s', errors: faults });
  faults = [];
  t.equal((await ask()).statusCode, 200);
});

// brianc/node-postgres#2386: every connection is cut at once.
t.test('a PostgreSQL that cuts its connections is ready again by itself', async (t) => {
  const { ask, database } = await setup(t);
  t.equal((await ask()).statusCode, 200);
  await database
    .query('select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()')
    .catch(() => undefined);
  await eventually('ready', async () => (await ask()).statusCode === 200, backWithinMs);
});

t.test('a network that swallows everything shows in time, and heals in time', async (t) => {
  const { ask, proxy } = await setup(t);
  t.equal((await ask()).statusCode, 200);
  proxy.silence();
  await eventually('503', async () => (await ask()).statusCode === 503, lossShownWithinMs);
  proxy.heal();
  await eventually('ready', async () => (await ask()).statusCode === 200, backWithinMs);
});

// HikariCP#1802 and kin: after a fail-over the pool is left with a server that only reads.
t.test('a server that has turned read-only is not ready, and is left behind when it has turned back', async (t) => {
  const { ask, connectionString } = await setup(t);
  t.equal((await ask()).statusCode, 200);
  // A session of its own, which neither the fail-over nor the check touches.
  const admin = openDatabase({ connectionString, max: 1, logger: createLogger('silent'), applicationName: 'admin' });
  t.teardown(() => admin.close());
  const name = "format('alter database %I set default_transaction_read_only = ', current_database())";
  const set = async (value: string) => {
    const [row] = await admin.query<{ sql: string }>(`select ${name} || '${value}' as sql`);
    await admin.query('set default_transaction_read_only = off');
    await admin.query(row!.sql);
  };
  await set('on');
  await admin
    .query(
      "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'sluice'",
    )
    .catch(() => undefined);
  await eventually('503', async () => (await ask()).statusCode === 503, lossShownWithinMs);
  await set('off');
  await eventually('ready', async () => (await ask()).statusCode === 200, backWithinMs);
});

t.test('however many ask, PostgreSQL is asked once a second at most', async (t) => {
  const { database } = await createTestDatabase(t);
  let queries = 0;
  database.pool.on('acquire', () => {
    queries += 1;
  });
  let nowMs = 0;
  const clock = { ...systemClock, monotonicMs: () => nowMs };
  const { app } = await createTestApp(t, database, { clock });
  const ask = () => app.inject({ url: '/readyz' });
  await Promise.all(Array.from({ length: 50 }, ask));
  t.equal(queries, 1);
  nowMs = 999;
  await ask();
  t.equal(queries, 1);
  nowMs = 1000;
  await Promise.all([ask(), ask()]);
  t.equal(queries, 2);
});

t.test('the check writes nothing', async (t) => {
  const { database } = await createTestDatabase(t);
  const { app } = await createTestApp(t, database);
  const version = () => database.query('select xmin, ctid, version from sluice.definition_version');
  const before = await version();
  t.equal((await app.inject({ url: '/readyz' })).statusCode, 200);
  t.same(await version(), before);
});
