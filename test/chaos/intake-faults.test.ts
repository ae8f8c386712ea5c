/** Intake whose transactions fail, again and again, or lose their connection in the middle: nothing stays open or locked. */
import t from 'tap';
import { systemClock } from '../../src/system/clock.ts';
import { numberedItems } from '../support/client.ts';
import { createTestDatabase } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { assertOneEffectEach } from '../support/fleet.ts';
import { openStage } from '../support/outage.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';

t.setTimeout(120_000);

const defaults = { upstream: 'api', path: '/charges' };

// brianc/node-postgres#1488, #2512: a client that goes back too early takes the next borrower into a foreign transaction.
t.test(
  '200 batches of which three in ten fail, through 2 connections: no session is left in a transaction',
  async (t) => {
    const { database, connectionString } = await createTestDatabase(t);
    // A connection that is cut, an error of a statement, and a conflict that is repeated.
    const tenOfThem = 'pass*2,57P01,pass*2,22000,pass*3,40001';
    const { services, upstream } = await openStage(t, connectionString, {
      replicas: 1,
      env: {
        NODE_ENV: 'test',
        SLUICE_POOL_MAX: '2',
        SLUICE_FAULT_POINTS: `intake.before_commit=${Array.from({ length: 20 }, () => tenOfThem).join(',')}`,
      },
    });
    const { client } = services[0]!;
    const items = numberedItems('order', 200);
    const left = [...items];
    const statuses: Record<number, number> = {};
    const post = async () => {
      for (let item = left.shift(); item !== undefined; item = left.shift()) {
        const { status } = await client.send('POST', '/v1/batches', { body: { defaults, items: [item] } });
        statuses[status] = (statuses[status] ?? 0) + 1;
      }
    };
    await Promise.all(Array.from({ length: 8 }, post));
    t.comment(`answers: ${JSON.stringify(statuses)}`);
    t.ok((statuses[503] ?? 0) >= 10 && (statuses[500] ?? 0) >= 10, 'the errors were met');

    const open = await database.query(
      `select state, query from pg_stat_activity
      where datname = current_database() and application_name = 'sluice' and state like 'idle in transaction%'`,
    );
    t.same(open, []);
    const { counts, batch_id } = await client.submit('api', items);
    t.equal(counts.accepted, 200 - (statuses[202] ?? 0), 'what was answered 202 is there, and nothing else');
    await client.waitForBatch(batch_id, 20_000);
    assertOneEffectEach(
      t,
      await upstream.log(),
      items.map((item) => item.idempotency_key),
    );
  },
);

t.test('a connection that falls silent in mid-transaction holds its keys for seconds only', async (t) => {
  const { database, connectionString } = await createTestDatabase(t);
  const proxy = await startTcpProxy(t, connectionString);
  const { services, upstream } = await openStage(t, proxy.connectionString, {
    replicas: 1,
    env: { NODE_ENV: 'test', SLUICE_FAULT_POINTS: 'intake.before_commit=pause:1000' },
  });
  const { client } = services[0]!;
  const items = numberedItems('silent', 5);
  const given = new AbortController();
  const first = client
    .send('POST', '/v1/batches', { body: { defaults, items }, signal: given.signal })
    .then(({ status }) => status)
    .catch(() => null);
  await eventually('the batch to be written, and not committed', async () => {
    const rows = await database.query(
      `select 1 from pg_stat_activity where datname = current_database() and state = 'idle in transaction'`,
    );
    return rows.length === 1;
  });
  proxy.forget();
  const silentMs = systemClock.monotonicMs();
  const { batch_id, counts } = await eventually(
    'the batch to be accepted at another try',
    () => client.submit('api', items),
    40_000,
  );
  t.comment(`accepted ${Math.round(systemClock.monotonicMs() - silentMs)} ms after the silence`);
  t.equal(counts.accepted, 5, 'the first was never committed');
  given.abort();
  t.not(await first, 202);
  await client.waitForBatch(batch_id, 20_000);
  assertOneEffectEach(
    t,
    await upstream.log(),
    items.map((item) => item.idempotency_key),
  );
});
