import { sql } from 'drizzle-orm';
import t, { type Test } from 'tap';
import { checkWritable } from '../../src/postgres/check-writable.ts';
import {
  asUnavailable,
  DatabaseUnavailableError,
  openDatabase,
  promptly,
  ranOutOfTime,
  shareOf,
  withClient,
} from '../../src/postgres/database.ts';
import { inTransaction } from '../../src/postgres/transaction.ts';
import { systemClock } from '../../src/system/clock.ts';
import { createLogger } from '../../src/system/logger.ts';
import { createTestDatabase } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';

const logger = createLogger('silent');

/** A pool of one client beside another connection that can do things to it. */
async function setup(t: Test) {
  const { database: other, connectionString } = await createTestDatabase(t);
  const database = openDatabase({ connectionString, max: 1, logger, applicationName: 'under test' });
  t.teardown(() => database.close());
  const pidOf = async () => (await database.query<{ pid: number }>('SELECT pg_backend_pid() AS pid'))[0]?.pid;
  const terminateAll = () =>
    other.query(
      `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'under test'`,
    );
  return { database, other, pidOf, terminateAll, connectionString };
}

t.test('values', async (t) => {
  const { database } = await setup(t);

  t.test('int8 comes as a number, in arrays too, and one that is not safe is an error and not rounded', async (t) => {
    t.same(await database.query('SELECT 9007199254740991::int8 AS big, ARRAY[1, NULL, -2]::int8[] AS many'), [
      { big: 9007199254740991, many: [1, null, -2] },
    ]);
    await t.rejects(database.query('SELECT 9007199254740992::int8'), {
      name: 'RangeError',
      message: /9007199254740992/,
    });
    t.same(await database.query('SELECT 1 AS n'), [{ n: 1 }], 'the client goes on after that');
  });

  t.test('timestamptz comes as a Date whatever the time zones, and infinity as Infinity', async (t) => {
    const [row] = await database.query<{ at: Date; never: number }>(
      `SELECT '2026-03-01 00:00:00.123+00'::timestamptz AS at, 'infinity'::timestamptz AS never`,
    );
    t.equal(row?.at.toISOString(), '2026-03-01T00:00:00.123Z');
    t.equal(row?.never, Number.POSITIVE_INFINITY);
  });

  t.test('a named statement is prepared once per connection', async (t) => {
    t.same(await database.query('SELECT $1::int + 1 AS n', [1], 'plus-one'), [{ n: 2 }]);
    t.same(await database.query('SELECT $1::int + 1 AS n', [2], 'plus-one'), [{ n: 3 }]);
    t.same(await database.query(`SELECT name FROM pg_prepared_statements WHERE name = 'plus-one'`), [
      { name: 'plus-one' },
    ]);
  });
});

t.test('a query that is wrong is no unavailable database, and the client is kept', async (t) => {
  const { database, pidOf } = await setup(t);
  const before = await pidOf();
  const error = await database.query('SELECT no_such_column').catch((error: unknown) => error);
  t.match(error, { code: '42703' });
  t.equal(asUnavailable(error), undefined);
  t.equal(await pidOf(), before);
});

t.test('a client whose session was ended while it was idle is replaced, and the process lives', async (t) => {
  const { database, pidOf, terminateAll } = await setup(t);
  const before = await pidOf();
  await terminateAll();
  await eventually('the pool to notice', () => database.pool.totalCount === 0);
  t.not(await pidOf(), before);
});

t.test('a session that is ended under a query makes it unavailable, and the next query gets another one', async (t) => {
  const { database, other, pidOf, terminateAll } = await setup(t);
  const sleeping = t.rejects(database.query('SELECT pg_sleep(60)'), DatabaseUnavailableError);
  await eventually('the query to run', async () => {
    const rows = await other.query(`SELECT 1 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)'`);
    return rows.length === 1;
  });
  await terminateAll();
  await sleeping;
  t.ok(await pidOf());
});

t.test('a client that met a read-only server is not used again', async (t) => {
  const { database, other, pidOf, connectionString } = await setup(t);
  const name = new URL(connectionString).pathname.slice(1);
  await database.query('SET default_transaction_read_only = on');
  const before = await pidOf();
  const write = `UPDATE sluice.definition_version SET version = version`;
  const error = await database.query(write).catch((error: unknown) => error);
  t.type(error, DatabaseUnavailableError);
  t.match(error, { cause: { code: '25006' } });
  t.not(await pidOf(), before, 'as after a fail-over: another connection');
  t.same(await database.query(write), []);

  t.test('drizzle wraps the error, and it is still told', async (t) => {
    await other.query(`ALTER DATABASE ${name} SET default_transaction_read_only = on`);
    const readOnly = openDatabase({ connectionString, max: 1, logger });
    t.teardown(() => readOnly.close());
    const error = await readOnly.orm.execute(sql.raw(write)).catch((error: unknown) => error);
    t.type(asUnavailable(error), DatabaseUnavailableError);
  });
});

t.test('a server that is not there is unavailable', async (t) => {
  const database = openDatabase({ connectionString: 'postgresql://u:p@127.0.0.1:1/x', max: 1, logger });
  t.teardown(() => database.close());
  await t.rejects(database.query('SELECT 1'), { name: 'DatabaseUnavailableError', cause: { code: 'ECONNREFUSED' } });
});

t.test('a server that stalls the handshake takes no place of the pool for ever', async (t) => {
  const { other, connectionString } = await setup(t);
  const proxy = await startTcpProxy(t, connectionString);
  const database = openDatabase({
    connectionString: proxy.connectionString,
    max: 3,
    logger,
    applicationName: 'stalled',
    limits: { connectMs: 200, turnMs: 500 },
  });
  t.teardown(() => database.close());
  proxy.silence();
  const ends = await Promise.allSettled(Array.from({ length: 20 }, () => database.query('SELECT 1')));
  t.ok(
    ends.every((end) => end.status === 'rejected' && end.reason instanceof DatabaseUnavailableError),
    'all 20 are told so',
  );
  proxy.heal();
  const healed = await Promise.all(Array.from({ length: 20 }, () => database.query<{ n: number }>('SELECT 1 AS n')));
  t.equal(healed.length, 20);
  t.ok(database.pool.totalCount <= 3);
  const [row] = await other.query<{ n: number }>(
    `SELECT count(*)::int AS n FROM pg_stat_activity WHERE application_name = 'stalled'`,
  );
  t.ok((row?.n ?? 99) <= 3, `${row?.n} sessions`);
});

t.test('a connection that fell silent under a query is given up, and not lent again', async (t) => {
  const { connectionString } = await setup(t);
  const proxy = await startTcpProxy(t, connectionString);
  const database = openDatabase({
    connectionString: proxy.connectionString,
    max: 1,
    logger,
    limits: { queryMs: 300, connectMs: 1_000 },
  });
  t.teardown(() => database.close());
  await database.query('SELECT 1');
  proxy.silence();
  await t.rejects(database.query('SELECT 2'), { name: 'DatabaseUnavailableError', message: /timeout/ });
  proxy.heal();
  t.same(await database.query('SELECT 3 AS n'), [{ n: 3 }]);
});

t.test('a statement that runs into its time limit is unavailable, and ended at the server', async (t) => {
  const { other, connectionString } = await setup(t);
  const database = openDatabase({ connectionString, max: 1, logger, limits: { statementMs: 100 } });
  t.teardown(() => database.close());
  await t.rejects(database.query('SELECT pg_sleep(61)'), {
    name: 'DatabaseUnavailableError',
    cause: { code: '57014' },
  });
  t.same(
    await other.query(`SELECT 1 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(61)' AND state = 'active'`),
    [],
  );
});

t.test('a view in which nothing is waited for longer than it says, not even in a transaction', async (t) => {
  const { database } = await createTestDatabase(t, { max: 2 });
  let withinMs = 200;
  const prompt = promptly(database, () => withinMs);
  const slow = 'select 1 from pg_sleep(1)';
  const outOfTime = (error: unknown) => error instanceof DatabaseUnavailableError && ranOutOfTime(error);
  const errorOf = (work: Promise<unknown>) =>
    work.then(
      () => undefined,
      (error: unknown) => error,
    );
  t.ok(outOfTime(await errorOf(prompt.query(slow))));
  t.ok(outOfTime(await errorOf(inTransaction(prompt, (client) => client.query(slow)))));
  t.equal(
    await errorOf(prompt.query(slow, [], undefined, { withinMs: 5_000 })),
    undefined,
    'a statement may say otherwise',
  );
  withinMs = 5_000;
  t.equal(await errorOf(prompt.query(slow)), undefined, 'asked anew for each');
  withinMs = 200;
  t.equal(await errorOf(database.query(slow)), undefined, 'the other view waits as ever');
});

t.test('those who share connections leave the others free', async (t) => {
  const { database } = await createTestDatabase(t, { max: 3 });
  const share = shareOf(database, 2);
  const release = new AbortController();
  const held = [1, 2].map(() => withClient(share, () => systemClock.sleep(60_000, release.signal)));
  let asked = 0;
  const third = share.query<{ n: number }>('select 3 as n').then(([row]) => {
    asked = row!.n;
  });
  const [direct] = await database.query<{ n: number }>('select 1 as n');
  t.equal(direct?.n, 1, 'a connection is free for who does not share');
  await checkWritable(share, 5_000);
  t.pass('nor does the readiness check stand in that line');
  t.equal(asked, 0, 'the third of two waits');
  release.abort();
  await Promise.all([...held, third]);
  t.equal(asked, 3);
});

t.test('with one connection, one of those who share it is in front of the others at the most', async (t) => {
  const { database } = await createTestDatabase(t, { max: 1 });
  const share = shareOf(database, 1);
  const release = new AbortController();
  const held = withClient(database, () => systemClock.sleep(60_000, release.signal));
  const order: string[] = [];
  const shared = Array.from({ length: 20 }, () => share.query('select 1').then(() => order.push('shared')));
  // They have come first, each as far as it gets.
  await systemClock.sleep(0);
  await new Promise(setImmediate);
  const direct = database.query('select 2').then(() => order.push('direct'));
  release.abort();
  await Promise.all([held, direct, ...shared]);
  t.equal(order.indexOf('direct'), 1);
});
