import t, { type Test } from 'tap';
import { deleteDefinition, putDefinition, setPaused } from '../../src/application/manage-definitions.ts';
import type { Database } from '../../src/postgres/database.ts';
import { definitionsLock, ensureLaneGroups, type LaneGroupKey } from '../../src/postgres/lane-groups.ts';
import { inTransaction } from '../../src/postgres/transaction.ts';
import { systemClock } from '../../src/system/clock.ts';
import { useClaims } from '../support/claims.ts';
import { createTestDatabase } from '../support/database.ts';
import { definitionDependencies } from '../support/definitions.ts';
import { createLane } from '../support/job-rows.ts';

async function setup(t: Test) {
  const { database } = await createTestDatabase(t);
  const deps = definitionDependencies(database);
  for (const name of ['mail', 'pay'])
    await putDefinition(deps, 'upstreams', name, { base_url: `https://${name}.example.test` });
  for (const name of ['fast', 'slow']) await putDefinition(deps, 'queues', name, {});
  return { database, deps };
}

const ensure = (database: Database, keys: LaneGroupKey[]) =>
  inTransaction(database, (client) => ensureLaneGroups(client, keys));
const payFast = { queue: 'fast', upstream: 'pay' };

async function groupOf(database: Database, { queue, upstream }: LaneGroupKey) {
  const [row] = await database.query<Record<string, unknown>>(
    `select fifo, shared_limits, partition_limits, counted, closed_by, closed_name,
            next_at = 'infinity' as shut, next_at <= clock_timestamp() as open
       from sluice.lane_groups where queue = $1 and upstream = $2`,
    [queue, upstream],
  );
  return row;
}

const plain = {
  fifo: false,
  shared_limits: [],
  partition_limits: [],
  counted: false,
  closed_by: null,
  closed_name: null,
  shut: false,
  open: true,
};

t.test('ids come in the order asked, with repeats, and stay the same', async (t) => {
  const { database } = await setup(t);
  const keys = [payFast, { queue: 'slow', upstream: 'mail' }, payFast, { queue: 'default', upstream: 'pay' }];
  const ids = await ensure(database, keys);
  t.equal(ids[0], ids[2]);
  t.equal(new Set(ids).size, 3);
  t.notOk(ids.includes(null));
  t.same(await ensure(database, keys.toReversed()), ids.toReversed());
  t.same(await ensure(database, []), []);
});

t.test('a group whose queue or upstream is not defined has no id, and is not made', async (t) => {
  const { database } = await setup(t);
  const ids = await ensure(database, [
    { queue: 'fast', upstream: 'gone' },
    payFast,
    { queue: 'gone', upstream: 'pay' },
  ]);
  t.equal(ids[0], null);
  t.type(ids[1], 'number');
  t.equal(ids[2], null);
  const [row] = await database.query<{ n: number }>('select count(*) as n from sluice.lane_groups');
  t.equal(row?.n, 1);
});

t.test('a new group carries what covers it', async (t) => {
  const { database, deps } = await setup(t);
  await putDefinition(deps, 'rate_limits', 'z-pay', { limit: 1, upstreams: ['pay'] });
  await putDefinition(deps, 'rate_limits', 'a-fast', { limit: 1, queues: ['fast'], max_in_flight: 2 });
  await putDefinition(deps, 'rate_limits', 'each', { limit: 1, by_partition: true, upstreams: ['pay', 'mail'] });
  await putDefinition(deps, 'queues', 'slow', { ordering: 'fifo' });
  await setPaused(deps, 'upstreams', 'mail', true);
  await ensure(database, [payFast, { queue: 'slow', upstream: 'mail' }, { queue: 'default', upstream: 'pay' }]);
  t.same(await groupOf(database, payFast), {
    ...plain,
    shared_limits: ['a-fast', 'z-pay'],
    partition_limits: ['each'],
    counted: true,
  });
  t.same(await groupOf(database, { queue: 'slow', upstream: 'mail' }), {
    ...plain,
    fifo: true,
    partition_limits: ['each'],
    closed_by: 'upstream_paused',
    closed_name: 'mail',
    shut: true,
    open: false,
  });
  t.same(await groupOf(database, { queue: 'default', upstream: 'pay' }), {
    ...plain,
    shared_limits: ['z-pay'],
    partition_limits: ['each'],
  });
});

t.test('each kind of change reaches the groups that are there', async (t) => {
  const { database, deps } = await setup(t);
  await ensure(database, [payFast]);
  const isNow = async (expected: object, message: string) =>
    t.same(await groupOf(database, payFast), { ...plain, ...expected }, message);
  await isNow({}, 'at first');

  await putDefinition(deps, 'rate_limits', 'pay', { limit: 1, upstreams: ['pay'] });
  await isNow({ shared_limits: ['pay'] }, 'a limit is put');
  await putDefinition(deps, 'rate_limits', 'pay', {
    limit: 1,
    upstreams: ['pay'],
    by_partition: true,
    max_in_flight: 1,
  });
  await isNow({ partition_limits: ['pay'], counted: true }, 'it changes');
  await putDefinition(deps, 'rate_limits', 'pay', { limit: 1, upstreams: ['mail'] });
  await isNow({}, 'it covers something else');
  await putDefinition(deps, 'rate_limits', 'pay', { limit: 1, queues: ['fast'] });
  await isNow({ shared_limits: ['pay'] }, 'it comes back by the queue');
  await deleteDefinition(deps, 'rate_limits', 'pay');
  await isNow({}, 'it is deleted');

  await putDefinition(deps, 'queues', 'fast', { ordering: 'fifo' });
  await isNow({ fifo: true }, 'the queue turns fifo');
  const shut = { fifo: true, shut: true, open: false };
  await setPaused(deps, 'upstreams', 'pay', true);
  await isNow({ ...shut, closed_by: 'upstream_paused', closed_name: 'pay' }, 'the upstream pauses');
  await setPaused(deps, 'queues', 'fast', true);
  await isNow({ ...shut, closed_by: 'queue_paused', closed_name: 'fast' }, 'the queue pauses too');
  await setPaused(deps, 'upstreams', 'pay', false);
  await isNow({ ...shut, closed_by: 'queue_paused', closed_name: 'fast' }, 'the upstream resumes alone');
  await setPaused(deps, 'queues', 'fast', false);
  await isNow({ fifo: true }, 'both have resumed');
});

// resilience4j#1073 and kin: after a limit is raised, what the old one had closed must not stay closed.
t.test(
  'what a limit has closed opens when the limit changes; what is empty, or under another limit, stays',
  async (t) => {
    const { database, deps } = await setup(t);
    await putDefinition(deps, 'rate_limits', 'pay', { limit: 1, per: 3600, upstreams: ['pay'] });
    await putDefinition(deps, 'rate_limits', 'mail', { limit: 1, per: 3600, upstreams: ['mail'] });
    const closed = await createLane(database, 'fast', 'pay', 'closed');
    const empty = await createLane(database, 'fast', 'pay', 'empty');
    const other = await createLane(database, 'fast', 'mail', 'closed');
    await database.query(
      `update sluice.lanes set next_at = clock_timestamp() + interval '1 hour', closed_by = case id when $1 then 'empty' else 'window' end`,
      [empty.id],
    );
    await database.query(
      `update sluice.lane_groups set next_at = clock_timestamp() + interval '1 hour', closed_by = 'window'`,
    );

    await putDefinition(deps, 'rate_limits', 'pay', { limit: 100, per: 3600, upstreams: ['pay'] });
    const open = await database.query<{ id: number }>(
      'select id from sluice.lanes where next_at <= clock_timestamp() order by id',
    );
    t.same(
      open.map((row) => row.id),
      [closed.id],
    );
    t.match(await groupOf(database, payFast), { open: true, closed_by: null });
    t.match(await groupOf(database, { queue: 'fast', upstream: 'mail' }), { open: false, closed_by: 'window' });
    t.not(other.id, closed.id);
  },
);

t.test('a pause survives changes of other things', async (t) => {
  const { database, deps } = await setup(t);
  await ensure(database, [payFast]);
  await setPaused(deps, 'queues', 'fast', true);
  await putDefinition(deps, 'rate_limits', 'pay', { limit: 1, upstreams: ['pay'] });
  t.match(await groupOf(database, payFast), { shut: true, closed_by: 'queue_paused', shared_limits: ['pay'] });
});

t.test('a change waits for who holds the lock shared, and an intake for a change', async (t) => {
  const { database, deps } = await setup(t);
  const order: string[] = [];
  let release = () => {};
  const held = new Promise<void>((resolve) => {
    release = resolve;
  });
  let begun = () => {};
  const isHeld = new Promise<void>((resolve) => {
    begun = resolve;
  });
  const claim = inTransaction(database, async (client) => {
    await client.query('select pg_advisory_xact_lock_shared($1)', [definitionsLock]);
    begun();
    await held;
    order.push('claim');
  });
  await isHeld;
  // Committed when it waits for the permits of what was claimed before.
  const clock = { ...systemClock, sleep: async () => void order.push('change') };
  const change = setPaused({ ...deps, clock }, 'queues', 'fast', true);
  await untilLockIsWaitedFor(database, 1);
  const intake = ensure(database, [payFast]).then(() => order.push('intake'));
  await untilLockIsWaitedFor(database, 2);
  release();
  await Promise.all([claim, change, intake]);
  t.same(order, ['claim', 'change', 'intake']);
  t.match(await groupOf(database, payFast), { closed_by: 'queue_paused' }, 'the intake saw the change');
});

async function untilLockIsWaitedFor(database: Database, waiters: number): Promise<void> {
  for (;;) {
    const [row] = await database.query<{ n: number }>(
      `select count(*) as n from pg_locks where locktype = 'advisory' and not granted
          and database = (select oid from pg_database where datname = current_database())`,
    );
    if (row!.n >= waiters) return;
  }
}

t.test('many intakes that make the same groups in different orders all get the same ids', async (t) => {
  const { database } = await setup(t);
  const keys = ['fast', 'slow', 'default'].flatMap((queue) => ['pay', 'mail'].map((upstream) => ({ queue, upstream })));
  const results = await Promise.all(
    Array.from({ length: 8 }, (_, i) => ensure(database, i % 2 === 0 ? keys : keys.toReversed())),
  );
  for (const [i, ids] of results.entries()) t.same(i % 2 === 0 ? ids : ids.toReversed(), results[0]);
});

t.test('what runs already counts under a max_in_flight or an order that comes later', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.putQueue('line', {});
  await store.addJobs({ count: 10 });
  await store.addJobs({ count: 10, queue: 'line' });
  const { jobs: running } = await store.claim(4);
  const before = (queue: string) => running.filter((job) => job.queue === queue);
  t.equal(before('default').length, 2);
  await store.putQueue('line', { ordering: 'fifo' });
  await store.putLimit('few', { limit: null, max_in_flight: 3, queues: ['default'] });
  t.same(
    (await store.claimAll(10)).map((job) => job.queue),
    ['default'],
    'room for one more, and not in the line',
  );
  await store.settle(before('line').slice(1));
  t.same(await store.claimAll(10), [], 'one of the line still runs');
  await store.settle(before('line').slice(0, 1));
  t.same(
    (await store.claimAll(10)).map((job) => job.queue),
    ['line'],
  );
});
