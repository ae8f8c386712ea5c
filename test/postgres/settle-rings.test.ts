/** Settles that write cooldowns at the same time wait for each other, but never in a ring (PostgreSQL would end one by 40P01). */
import t, { type Test } from 'tap';
import { type Database, openDatabase } from '../../src/postgres/database.ts';
import { createLogger } from '../../src/system/logger.ts';
import { type Claims, throttledFor, useClaims } from '../support/claims.ts';
import { eventually } from '../support/eventually.ts';

/** A session that holds what it is told to, until it is told otherwise. */
function holder(t: Test, { connectionString }: Claims): Database {
  const database = openDatabase({ connectionString, max: 1, logger: createLogger('silent') });
  t.teardown(() => database.close());
  return database;
}

const waiting = ({ database }: Claims, count: number) =>
  eventually(`${count} sessions wait`, async () => {
    const [row] = await database.query<{ count: number }>('select count(*) from pg_locks where not granted');
    return row!.count >= count;
  });

t.test('two upstreams are throttled at once under a limit that shares its cooldown', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('a');
  await store.putUpstream('b');
  await store.putLimit('both', { limit: 100, upstreams: ['a', 'b'], shares_cooldown: true });
  for (const upstream of ['a', 'b']) await store.addJobs({ count: 1, upstream });
  const [one, other] = await store.claimAll(2);
  const session = holder(t, store);
  await session.query(`select pg_advisory_lock(7305003, hashtext('both'))`);
  const first = store.settle([one!], throttledFor(1000));
  await waiting(store, 1);
  const second = store.settle([other!], throttledFor(2000));
  await waiting(store, 2);
  await session.query(`select pg_advisory_unlock(7305003, hashtext('both'))`);
  t.equal((await first).size + (await second).size, 2);
  t.equal((await store.database.query('select 1 from sluice.cooldowns')).length, 3);
});

t.test('a probe succeeds while a call from before the cooldown is throttled', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.addJobs({ count: 10 });
  const { jobs: early } = await store.claim(2);
  await store.settle([early[0]!], throttledFor(1));
  const probe = await eventually('the cooldown is over', async () => {
    const { jobs } = await store.claim(2);
    return jobs.length > 0 && jobs;
  });
  t.equal(probe.length, 1);
  await store.claim(2);
  t.match(await store.database.query('select closed_by from sluice.lane_groups'), [{ closed_by: 'probing' }]);

  const session = holder(t, store);
  await session.query('begin');
  await session.query('select 1 from sluice.cooldowns for update');
  const late = store.settle([early[1]!], throttledFor(2000));
  await waiting(store, 1);
  const good = store.settle(probe);
  await waiting(store, 2);
  await session.query('commit');
  t.equal((await late).size + (await good).size, 2);
});
