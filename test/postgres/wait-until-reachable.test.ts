import t, { type Test } from 'tap';
import { waitUntilReachable } from '../../src/postgres/wait-until-reachable.ts';
import { systemClock } from '../../src/system/clock.ts';
import { createLogger } from '../../src/system/logger.ts';
import { createEmptyDatabase } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';

async function setup(t: Test) {
  const { connectionString } = await createEmptyDatabase(t);
  const proxy = await startTcpProxy(t, connectionString);
  const lines: string[] = [];
  const wait = (address = proxy.connectionString, withinMs = 30_000, signal = new AbortController().signal) =>
    waitUntilReachable({
      connectionString: address,
      logger: createLogger('info', { write: (line) => lines.push(line) }),
      clock: systemClock,
      withinMs,
      signal,
    });
  return { proxy, wait, lines };
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
