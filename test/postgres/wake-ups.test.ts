import t, { type Test } from 'tap';
import { openDatabase } from '../../src/postgres/database.ts';
import { intakePayload, WakeUps } from '../../src/postgres/wake-ups.ts';
import { systemClock } from '../../src/system/clock.ts';
import { createLogger } from '../../src/system/logger.ts';
import { createTestDatabase } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';

/** Wake-ups that count, beside a connection that notifies. `address`: where they connect, if not straight to the database. */
async function setup(t: Test, options: { heartbeatMs?: number; address?: (direct: string) => Promise<string> } = {}) {
  const { database, connectionString } = await createTestDatabase(t);
  const { heartbeatMs, address = async (direct: string) => direct } = options;
  const wakeUps = new WakeUps({
    connectionString: await address(connectionString),
    logger: createLogger('silent'),
    clock: systemClock,
    ...(heartbeatMs === undefined ? {} : { heartbeatMs }),
  });
  t.teardown(() => wakeUps.stop());
  const seen = { work: 0, definitions: 0 };
  wakeUps.onWork(() => {
    seen.work += 1;
  });
  wakeUps.onDefinitions(() => {
    seen.definitions += 1;
  });
  const listeners = () =>
    database.query<{ pid: number }>(
      `SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'sluice listen'`,
    );
  const notify = (channel: string) => database.query('SELECT pg_notify($1, $2)', [channel, '']);
  return { database, wakeUps, seen, listeners, notify };
}

t.test('each channel calls its own, and both are called once at the start', async (t) => {
  const { wakeUps, seen, notify } = await setup(t);
  await wakeUps.start();
  t.same(seen, { work: 1, definitions: 1 });
  await notify('sluice_work');
  await eventually('the notification', () => seen.work === 2);
  t.same(seen, { work: 2, definitions: 1 });
  await notify('sluice_definitions');
  await eventually('the notification', () => seen.definitions === 2);
  t.same(seen, { work: 2, definitions: 2 });
});

t.test('an intake of a session that has told of it already calls nobody; anything else of it does', async (t) => {
  const { database, connectionString } = await createTestDatabase(t);
  const rival = openDatabase({ connectionString, max: 1, logger: createLogger('silent') });
  t.teardown(() => rival.close());
  const wakeUps = new WakeUps({
    connectionString,
    logger: createLogger('silent'),
    clock: systemClock,
    isTold: (session) => database.ownsSession(session),
  });
  t.teardown(() => wakeUps.stop());
  const work: string[] = [];
  let by = 'the start';
  wakeUps.onWork(() => work.push(by));
  await wakeUps.start();
  const notify = (from: typeof database, payload: string) =>
    from.query(`SELECT pg_notify('sluice_work', $1)`, [payload]);
  // Notifications come in the order of the commits: what is not told of is passed by when the next one is.
  by = 'ours';
  await notify(database, intakePayload);
  by = 'another of ours';
  await notify(database, '');
  await eventually('the notification', () => work.length === 2);
  by = "another process's";
  await notify(rival, intakePayload);
  await eventually('the notification', () => work.length === 3);
  t.same(work, ['the start', 'another of ours', "another process's"]);
  const [session] = await database.query<{ pid: number }>('SELECT pg_backend_pid() AS pid');
  t.equal(database.ownsSession(session!.pid), true);
  await rival.query('SELECT pg_terminate_backend($1, 5000)', [session!.pid]);
  await eventually('its end to be known', () => !database.ownsSession(session!.pid));
});

t.test('a session that is ended is replaced, and notifications come again', async (t) => {
  const { database, wakeUps, seen, listeners, notify } = await setup(t);
  await wakeUps.start();
  const [before] = await listeners();
  await database.query('SELECT pg_terminate_backend($1, 5000)', [before?.pid]);
  await eventually('both to be called, for what may have been missed', () => seen.work === 2 && seen.definitions === 2);
  const [after] = await listeners();
  t.not(after?.pid, before?.pid);
  await notify('sluice_work');
  await eventually('the notification', () => seen.work === 3);
});

t.test('a connection that fell silent without an error is found out and replaced', async (t) => {
  const proxies: Array<Awaited<ReturnType<typeof startTcpProxy>>> = [];
  const { wakeUps, seen, notify } = await setup(t, {
    heartbeatMs: 500,
    address: async (direct) => {
      const proxy = await startTcpProxy(t, direct);
      proxies.push(proxy);
      return proxy.connectionString;
    },
  });
  await wakeUps.start();
  const [proxy] = proxies;
  proxy?.silence();
  await notify('sluice_work');
  proxy?.heal();
  await eventually('the heartbeat to find out', () => seen.work === 2);
  await notify('sluice_work');
  await eventually('the notification', () => seen.work === 3);
});

t.test('where PostgreSQL is away it does not throw, and listens as soon as it is back', async (t) => {
  let proxy: Awaited<ReturnType<typeof startTcpProxy>> | undefined;
  const { wakeUps, seen } = await setup(t, {
    address: async (direct) => {
      proxy = await startTcpProxy(t, direct);
      proxy.refuse();
      return proxy.connectionString;
    },
  });
  await wakeUps.start();
  t.same(seen, { work: 0, definitions: 0 });
  proxy?.heal();
  await eventually('it to listen', () => seen.work === 1);
});

t.test('stopped, it leaves no session, also while it waits for its next try', async (t) => {
  const { wakeUps, listeners } = await setup(t);
  await wakeUps.start();
  t.equal((await listeners()).length, 1);
  await wakeUps.stop();
  await eventually('the session to be gone', async () => (await listeners()).length === 0);

  const away = new WakeUps({
    connectionString: 'postgresql://u:p@127.0.0.1:1/x',
    logger: createLogger('silent'),
    clock: systemClock,
  });
  await away.start();
  await away.stop();
});
