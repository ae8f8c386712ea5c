import pg from 'pg';
import t, { type Test } from 'tap';
import { type WaitOptions, waitUntilReachable } from '../../src/postgres/wait-until-reachable.ts';
import { systemClock } from '../../src/system/clock.ts';
import { createLogger } from '../../src/system/logger.ts';
import { createEmptyDatabase } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';

async function setup(t: Test) {
  const { connectionString } = await createEmptyDatabase(t);
  const proxy = await startTcpProxy(t, connectionString);
  const lines: string[] = [];
  const options = (changed: Partial<WaitOptions> = {}): WaitOptions => ({
    connectionString: proxy.connectionString,
    logger: createLogger('info', { write: (line) => lines.push(line) }),
    clock: systemClock,
    withinMs: 30_000,
    signal: new AbortController().signal,
    ...changed,
  });
  const wait = (address = proxy.connectionString, withinMs = 30_000, signal = new AbortController().signal) =>
    waitUntilReachable(options({ connectionString: address, withinMs, signal }));
  return { proxy, wait, lines, connectionString, options };
}

t.test('a server that is there is not waited for, and nothing is said', async (t) => {
  const { wait, lines } = await setup(t);
  await wait();
  t.same(lines, []);
});

t.test('one that comes later is waited for, and the log says so', async (t) => {
  const { proxy, wait, lines } = await setup(t);
  proxy.refuse();
  const waited = wait();
  await eventually('the line', () => lines.length === 1);
  t.match(lines[0], /waiting for PostgreSQL, for at most 30 s/);
  proxy.heal();
  await waited;
});

t.test('one that does not come in time is an error', async (t) => {
  const { proxy, wait } = await setup(t);
  proxy.refuse();
  await t.rejects(wait(undefined, 0), { name: 'DatabaseUnavailableError' });
});

t.test('the wait can be given up', async (t) => {
  const { proxy, wait, lines } = await setup(t);
  proxy.refuse();
  const stop = new AbortController();
  const waited = wait(undefined, 30_000, stop.signal);
  await eventually('it to wait', () => lines.length === 1);
  stop.abort();
  await waited;
});

t.test('what does not get better by waiting is told at once', async (t) => {
  const { proxy, wait, lines } = await setup(t);
  const wrongPassword = new URL(proxy.connectionString);
  wrongPassword.password = 'wrong';
  await t.rejects(wait(wrongPassword.href), { code: '28P01' });
  const noDatabase = new URL(proxy.connectionString);
  noDatabase.pathname = '/nothing_of_this_name';
  await t.rejects(wait(noDatabase.href), { code: '3D000' });
  t.same(lines, []);
});

t.test('what is done next is done again where PostgreSQL goes away in its midst', async (t) => {
  const { proxy, lines, connectionString, options } = await setup(t);
  let tries = 0;
  const step = async () => {
    tries += 1;
    const client = new pg.Client({ connectionString: proxy.connectionString });
    client.on('error', () => undefined);
    await client.connect();
    if (tries === 1) proxy.refuse();
    const answer = client.query('select 7 as seven');
    try {
      return (await answer).rows[0].seven as number;
    } finally {
      await client.end().catch(() => undefined);
    }
  };
  const taken = waitUntilReachable(options(), step);
  await eventually('the line', () => lines.length === 1);
  t.match(lines[0], /waiting for PostgreSQL, for at most 30 s/);
  proxy.heal();
  t.equal(await taken, 7);
  t.equal(tries, 2);

  const broken = async () => {
    tries += 1;
    const client = new pg.Client({ connectionString });
    await client.connect();
    await client.query('select no_such_thing').finally(() => client.end());
  };
  await t.rejects(waitUntilReachable(options(), broken), { code: '42703' });
  t.equal(tries, 3, 'what waiting does not mend is told at once');

  const stop = new AbortController();
  stop.abort();
  t.equal(await waitUntilReachable(options({ signal: stop.signal }), step), undefined);
  t.equal(tries, 3);
});
