/** Connections to the database that die without a word: no error, no end, and nothing passes any more. */
import t, { type Test } from 'tap';
import { systemClock } from '../../src/system/clock.ts';
import { numberedItems } from '../support/client.ts';
import { createTestDatabase } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { assertOneEffectEach } from '../support/fleet.ts';
import { backWithinMs, openStage, type Stage, survive } from '../support/outage.ts';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.ts';

t.setTimeout(180_000);

const poolMax = 4;
/** The longest poll is 6 s; the rest is for a busy machine. */
const pollWithinMs = 8_000;

/** A statement that much waits for is given up after 5 s; a POST may wait for its turn, and meet two connections of those. */
const toldWithinMs = 20_000;

interface Bench {
  readonly stage: Stage;
  readonly proxy: TcpProxy;
  readonly databaseUrl: string;
  /** Server's process ids of the sessions with this name. */
  sessions(applicationName: string): Promise<number[]>;
}

/** One replica that reaches the database through a proxy. */
async function setup(t: Test): Promise<Bench> {
  const { database, connectionString: databaseUrl } = await createTestDatabase(t);
  const proxy = await startTcpProxy(t, databaseUrl);
  const stage = await openStage(t, proxy.connectionString, {
    replicas: 1,
    env: { SLUICE_POOL_MAX: String(poolMax) },
  });
  return {
    stage,
    proxy,
    databaseUrl,
    async sessions(applicationName) {
      const rows = await database.query<{ pid: number }>(
        'select pid from pg_stat_activity where datname = current_database() and application_name = $1',
        [applicationName],
      );
      return rows.map(({ pid }) => pid);
    },
  };
}

t.test('sessions that fall silent', async (t) => {
  const { stage, proxy, databaseUrl, sessions } = await setup(t);
  const { upstream } = stage;
  const { client } = stage.services[0]!;

  // timgit/pg-boss#850, brianc/node-postgres#3003: notifications stop for ever.
  await t.test('the one that listens: jobs start by the poll, and another one listens within 30 seconds', async (t) => {
    const before = await sessions('sluice listen');
    t.equal(before.length, 1);
    t.equal(proxy.forget('sluice listen'), 1);
    const silentMs = systemClock.monotonicMs();
    const items = numberedItems('unheard', 1);
    stage.keys.push('unheard-0001');
    await client.submit('api', items);
    await eventually('the job to start', async () => (await upstream.count()) > 0, pollWithinMs);
    await eventually(
      'another session to listen',
      async () => (await sessions('sluice listen')).some((pid) => !before.includes(pid)),
      30_000,
    );
    t.comment(`listens again after ${Math.round(systemClock.monotonicMs() - silentMs)} ms`);
    assertOneEffectEach(t, await upstream.log(), stage.keys);
  });

  // brianc/node-postgres#3399: after its time limit the client is lent on, and never ready again.
  await t.test('one, in the middle of a statement whose answer is lost', (t) =>
    survive(t, stage, {
      name: 'one-answer',
      databaseUrl,
      shows: false,
      async begin() {
        await proxy.forgetNextAnswer('sluice');
        return () => undefined;
      },
    }),
  );

  await t.test('all of them at once, while new ones pass', (t) =>
    survive(t, stage, {
      name: 'all',
      databaseUrl,
      shows: false,
      async begin() {
        t.ok(proxy.forget() >= 2);
        return () => undefined;
      },
    }),
  );

  // A keyed request asks for its first answer before anything else, and may be the first to meet a silent connection.
  await t.test(
    'with a POST on each of them that carries a request key: told soon, and answered when it comes again',
    async (t) => {
      const items = numberedItems('keyed', poolMax);
      stage.keys.push(...items.map((item) => item.idempotency_key));
      const defaults = { upstream: 'api', path: '/charges' };
      const post = (item: (typeof items)[number]) =>
        client.send('POST', '/v1/batches', {
          headers: { 'idempotency-key': `request-${item.idempotency_key}` },
          body: { defaults, items: [item] },
        });
      t.ok(proxy.forget() >= 1);
      const silentMs = systemClock.monotonicMs();
      const statuses = (await Promise.all(items.map(post))).map(({ status }) => status);
      const tookMs = Math.round(systemClock.monotonicMs() - silentMs);
      t.comment(`answered ${statuses.join(', ')} after ${tookMs} ms`);
      t.ok(
        statuses.every((status) => status === 202 || status === 503),
        'each is taken in or put off',
      );
      t.ok(tookMs < toldWithinMs, `after ${tookMs} ms`);
      for (const item of items) {
        await eventually('it to be taken in', async () => (await post(item)).status === 202, backWithinMs);
        const { batch_id } = (await post(item)).body as { batch_id: string };
        await client.waitForBatch(batch_id, 10_000);
      }
      assertOneEffectEach(t, await upstream.log(), stage.keys);
    },
  );

  // brianc/node-postgres#3543: each handshake that is given up leaks a slot, until the pool is dead.
  await t.test('and no new one comes up for 5 seconds, with 20 requests waiting', async (t) => {
    const old = await sessions('sluice');
    const items = numberedItems('stalled', 20);
    stage.keys.push(...items.map((item) => item.idempotency_key));
    proxy.silence();
    const defaults = { upstream: 'api', path: '/charges' };
    const requests = items.map((item) => client.send('POST', '/v1/batches', { body: { defaults, items: [item] } }));
    await eventually('the loss to show', async () => (await client.send('GET', '/readyz')).status === 503, 5_500);
    await systemClock.sleep(5_000);
    proxy.heal();
    const healedMs = systemClock.monotonicMs();
    await eventually('it to be ready', async () => (await client.send('GET', '/readyz')).status === 200, backWithinMs);
    // Nobody knows what became of those that were refused; asked again, all of them are there once.
    const { batch_id } = await client.submit('api', items);
    await client.waitForBatch(batch_id, 10_000);
    t.comment(`done ${Math.round(systemClock.monotonicMs() - healedMs)} ms after the healing`);
    const statuses = new Set((await Promise.all(requests)).map(({ status }) => status));
    t.ok(
      [...statuses].every((status) => status === 202 || status === 503),
      `answered ${[...statuses].join(', ')}`,
    );
    const young = (await sessions('sluice')).filter((pid) => !old.includes(pid));
    t.ok(young.length <= poolMax, `${young.length} sessions`);
    assertOneEffectEach(t, await upstream.log(), stage.keys);
  });
});
