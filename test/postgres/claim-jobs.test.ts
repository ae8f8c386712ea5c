/** The claim: order, turns, limits, costs, leases; on a real store, with the database's clock given where time matters. */
import t from 'tap';
import { deleteDefinition, setPaused } from '../../src/application/manage-definitions.ts';
import { inTransaction } from '../../src/postgres/transaction.ts';
import { systemClock } from '../../src/system/clock.ts';
import { newWorker, useClaims } from '../support/claims.ts';
import { definitionDependencies } from '../support/definitions.ts';
import { listenForWork } from '../support/work-notices.ts';

const second = 1_000_000;

t.test('a lane is served by priority, then in the order of acceptance, and a job goes out once', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.addJobs({ count: 3 });
  await store.addJobs({ count: 1, priority: 5 });
  const { jobs } = await store.claim(10);
  t.equal(jobs.length, 4);
  t.same(
    jobs.map((job) => job.idempotencyKey),
    ['k4', 'k1', 'k2', 'k3'],
  );
  t.equal(jobs[0]!.permitMs, null, 'no window, no permit');
  t.equal((await store.claim(10)).jobs.length, 0);
});

t.test('concurrent claimers share a lane without taking a job twice', async (t) => {
  const store = await useClaims(t, { max: 8 });
  await store.putUpstream('api');
  await store.addJobs({ count: 400 });
  const workers = await Promise.all(Array.from({ length: 6 }, () => newWorker(store.database)));
  const taken: string[] = [];
  await Promise.all(
    workers.map(async (worker) => {
      for (let left = 400; left > 0; left -= 1) {
        const claim = await store.claim(7, worker);
        taken.push(...claim.jobs.map((job) => job.jobId));
        if (claim.jobs.length === 0 && !claim.busy && !claim.more) return;
      }
    }),
  );
  t.equal(taken.length, 400);
  t.equal(new Set(taken).size, 400);
});

t.test('a worker whose lease has run out gets nothing and is told so', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.addJobs({ count: 1 });
  await store.database.query(`update sluice.workers set lease_expires_at = clock_timestamp() - interval '1 second'`);
  const claim = await store.claim(1);
  t.equal(claim.leaseLost, true);
  t.equal(claim.jobs.length, 0);
});

t.test('two limits over one job: both hold, and a refusal of one charges nothing in the other', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.putLimit('account', { limit: 3, per: 1, by_partition: true, upstreams: ['api'] });
  await store.putLimit('all', { limit: 10, per: 1, upstreams: ['api'] });
  for (const partitionKey of ['a', 'b', 'c', 'd', 'e']) await store.addJobs({ count: 10, partitionKey });
  const jobs = await store.claimAll(32);
  t.equal(jobs.length, 10, 'the shared limit holds');
  const byKey = groupBy(jobs, (job) => job.partitionKey);
  t.ok(
    [...byKey.values()].every((each) => each.length <= 3),
    'the limit by partition holds',
  );
  const used = await store.database.query<{ limit_name: string; used: number }>(
    'select limit_name, sum(used)::int as used from sluice.rate_windows group by 1 order by 1',
  );
  t.same(used, [
    { limit_name: 'account', used: 10 },
    { limit_name: 'all', used: 10 },
  ]);
});

t.test(
  'taskforcesh/bullmq#1322 ten partitions at 1 per 10 s each: one call each at once, not one in all',
  async (t) => {
    const store = await useClaims(t);
    await store.putUpstream('api');
    await store.putLimit('account', { limit: 1, per: 10, by_partition: true, upstreams: ['api'] });
    for (let i = 0; i < 10; i += 1) await store.addJobs({ count: 3, partitionKey: `p${i}` });
    const jobs = await store.claimAll(10);
    t.same(new Set(jobs.map((job) => job.partitionKey)).size, 10);
    t.equal(jobs.length, 10);
  },
);

t.test('lanes under one shared window take turns: a long one does not starve a hundred short ones', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.putLimit('all', { limit: 100, per: 1, upstreams: ['api'] });
  await store.addJobs({ count: 2_000, partitionKey: 'big' });
  for (let i = 0; i < 99; i += 1) await store.addJobs({ count: 3, partitionKey: `small${i}` });
  let now = await store.clockUs();
  for (let round = 1; round <= 3; round += 1) {
    await store.setClock(now);
    const jobs = await store.claimAll(32);
    t.equal(jobs.length, 100, 'the window is used up');
    const counts = groupBy(jobs, (job) => job.partitionKey);
    t.equal(counts.size, 100, `every lane has its share of window ${round}`);
    await store.settle(jobs);
    now += 1.2 * second;
  }
});

t.test('a cost above the limit ends the job, a head that must save up is not starved by cheaper lanes', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.putLimit('all', { limit: 10, per: 1, upstreams: ['api'] });
  await store.addJobs({ count: 1, partitionKey: 'dear', cost: 8 });
  await store.addJobs({ count: 1, partitionKey: 'never', cost: 11 });
  await store.addJobs({ count: 30, partitionKey: 'cheap' });
  let now = await store.clockUs();
  await store.setClock(now);
  const costs: number[] = [];
  for (let i = 0; i < 3; i += 1) {
    const jobs = await store.claimAll(32);
    costs.push(jobs.reduce((sum, job) => sum + job.cost, 0));
    if (jobs.some((job) => job.cost === 8)) break;
    now += 1.2 * second;
    await store.setClock(now);
  }
  t.ok(costs.length <= 2, 'the dear job ran in the first or second window');
  t.ok(costs.every((cost) => cost <= 10));
  const [never] = await store.database.query<{ state: string; reason: string }>(
    'select state, reason from sluice.done_jobs',
  );
  t.same(never, { state: 'failed', reason: 'cost_exceeds_limit' });
});

t.test(
  'fifo: one unfinished job of a lane at a time, in order; a waiting or held head holds its lane only',
  async (t) => {
    const store = await useClaims(t);
    await store.putUpstream('api');
    await store.putQueue('sms', { ordering: 'fifo' });
    await store.addJobs({ count: 3, queue: 'sms', partitionKey: 'a' });
    await store.addJobs({ count: 3, queue: 'sms', partitionKey: 'b' });
    const first = await store.claimAll(10);
    t.same(first.map((job) => job.idempotencyKey).sort(), ['k1', 'k4']);
    const [a, b] = [first.find((job) => job.partitionKey === 'a')!, first.find((job) => job.partitionKey === 'b')!];
    await store.settle([a], {
      next: { kind: 'scheduled', delayMs: 3_600_000, reason: null },
      outcome: 'error',
      status: 500,
    });
    await store.settle([b]);
    t.same(
      (await store.claimAll(10)).map((job) => job.idempotencyKey),
      ['k5'],
      'b goes on, a waits for its head',
    );
    await store.database.query(`update sluice.parked_jobs set state = 'held', due_at = null`);
    await store.database.query(
      `update sluice.lanes set next_at = clock_timestamp(), closed_by = null where closed_by = 'fifo'`,
    );
    t.same((await store.claimAll(10)).length, 0, 'a held head holds its lane');
    await store.database.query(`update sluice.parked_jobs set state = 'scheduled', due_at = clock_timestamp()`);
    t.same(
      (await store.claimAll(10)).map((job) => job.idempotencyKey),
      ['k1'],
      'its head first, again',
    );
  },
);

t.test('max_in_flight counts leases fleet-wide, and a place that is free is used at once', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.putUpstream('other');
  await store.putLimit('few', { limit: null, max_in_flight: 3, upstreams: ['api', 'other'] });
  await store.addJobs({ count: 5 });
  await store.addJobs({ count: 5, upstream: 'other' });
  const worker = await newWorker(store.database);
  const first = await store.claim(2);
  const second = await store.claim(10, worker);
  t.equal(first.jobs.length + second.jobs.length, 3);
  t.equal((await store.claim(10)).jobs.length, 0);
  await store.settle(first.jobs.slice(0, 1));
  t.equal((await store.claimAll(10)).length, 1, 'the settle opened what waited for the place');
});

t.test('a paused queue, a paused upstream and limit 0 hold their lanes, and resume at once', async (t) => {
  const store = await useClaims(t);
  const deps = definitionDependencies(store.database);
  await store.putUpstream('api');
  await store.addJobs({ count: 2 });
  for (const [kind, name] of [
    ['queues', 'default'],
    ['upstreams', 'api'],
  ] as const) {
    await setPaused(deps, kind, name, true);
    const paused = await store.claim(1);
    t.equal(paused.jobs.length, 0);
    t.equal(paused.nextInMs, null, 'nothing to wake for');
    await setPaused(deps, kind, name, false);
    const resumed = await store.claim(1);
    t.equal(resumed.jobs.length, 1);
    await store.settle(resumed.jobs, { next: { kind: 'ready' }, outcome: null, charge: 'none' });
  }
  await store.putLimit('all', { limit: 0, per: 1, upstreams: ['api'] });
  t.equal((await store.claim(1)).jobs.length, 0);
  await store.putLimit('all', { limit: 5, per: 1, upstreams: ['api'] });
  t.equal((await store.claim(1)).jobs.length, 1);
});

t.test('redis-cell#54 lowered from 100 to 5 with 40 used: nothing until there is room; raised: at once', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.putLimit('all', { limit: 100, per: 60, upstreams: ['api'] });
  await store.addJobs({ count: 300 });
  const now = await store.clockUs();
  await store.setClock(now);
  t.equal((await store.claim(40)).jobs.length, 40);
  await store.putLimit('all', { limit: 5, per: 60, upstreams: ['api'] });
  t.equal((await store.claimAll(40)).length, 0);
  await store.setClock(now + 30 * second);
  t.equal((await store.claimAll(40)).length, 0);
  await store.putLimit('all', { limit: 60, per: 60, upstreams: ['api'] });
  t.equal((await store.claimAll(40)).length, 20, 'raised: the difference, at once');
  await store.putLimit('all', { limit: 60, per: 1, upstreams: ['api'] });
  await store.setClock(now + 32 * second);
  t.equal((await store.claimAll(100)).length, 60, 'a shorter period takes effect at once');
});

t.test('a limit that is deleted and made again goes on with its count', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.putLimit('all', { limit: 5, per: 60, upstreams: ['api'] });
  await store.addJobs({ count: 20 });
  t.equal((await store.claimAll(32)).length, 5);
  await deleteDefinition(definitionDependencies(store.database), 'rate_limits', 'all');
  t.equal((await store.claim(3)).jobs.length, 3, 'deleted: it covers nothing');
  await store.putLimit('all', { limit: 5, per: 60, upstreams: ['api'] });
  t.equal((await store.claimAll(32)).length, 0, 'back: what it had counted counts');
});

t.test('a job past expires_at does not start; one whose outcome is unknown is held instead', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.addJobs({ count: 2, expiresAt: `clock_timestamp() + interval '100 milliseconds'` });
  await store.database.query(`update sluice.ready_jobs set outcome_unknown = true where seq = 1`);
  await store.database.query('select pg_sleep(0.15)');
  t.equal((await store.claim(10)).jobs.length, 0);
  t.same(await store.database.query('select state from sluice.done_jobs'), [{ state: 'expired' }]);
  t.same(await store.database.query('select state, reason from sluice.parked_jobs'), [
    { state: 'held', reason: 'outcome_unknown' },
  ]);
});

t.test('a scheduled job is due at its time, keeps its place, and the claim says when to come back', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.addJobs({ count: 1, runAt: `clock_timestamp() + interval '300 milliseconds'` });
  await store.addJobs({ count: 1 });
  const before = await store.claimAll(1);
  t.same(
    before.map((job) => job.idempotencyKey),
    ['k2'],
  );
  const { nextInMs } = await store.claim(1);
  t.ok(nextInMs !== null && nextInMs > 0 && nextInMs <= 300, `told to come back in ${nextInMs} ms`);
  await store.addJobs({ count: 1 });
  await store.database.query('select pg_sleep(0.35)');
  t.same(
    (await store.claimAll(1)).map((job) => job.idempotencyKey),
    ['k1', 'k3'],
    'accepted first, served first',
  );
});

t.test('a claim that meets closed lanes goes on to the open one', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.putLimit('account', { limit: 1, per: 3600, by_partition: true, upstreams: ['api'] });
  for (let i = 0; i < 200; i += 1) await store.addJobs({ count: 2, partitionKey: `p${i}` });
  t.equal((await store.claimAll(64)).length, 200);
  // Their windows are used up; nobody has looked at the lanes since.
  await store.database.query(`update sluice.lanes set next_at = clock_timestamp(), closed_by = null`);
  await store.addJobs({ count: 1, partitionKey: 'fresh' });
  const { jobs } = await store.claim(1);
  t.same(
    jobs.map((job) => job.partitionKey),
    ['fresh'],
    'in the same call',
  );
});

t.test('without a rate limit a claim does no window work', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.putUpstream('limited');
  await store.putLimit('other', { limit: 5, per: 1, upstreams: ['limited'] });
  await store.addJobs({ count: 50 });
  const scans = async () => {
    await store.database.query('select pg_stat_force_next_flush()');
    const [row] = await store.database.query<{ touched: number }>(
      `select (coalesce(sum(seq_scan), 0) + coalesce(sum(idx_scan), 0) + coalesce(sum(n_tup_ins), 0) + coalesce(sum(n_tup_upd), 0))::int as touched
         from pg_stat_user_tables where relname in ('rate_windows', 'rate_limits')`,
    );
    return row!.touched;
  };
  const before = await scans();
  t.equal((await store.claim(20)).jobs.length, 20);
  t.equal(await scans(), before);
  await store.addJobs({ count: 1, upstream: 'limited' });
  await store.claim(50);
  t.ok((await scans()) > before, 'control: with a limit it is touched');
});

t.test('a count survives everybody: another worker, another connection, mid-window', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.putLimit('all', { limit: 4, per: 60, upstreams: ['api'] });
  await store.addJobs({ count: 10 });
  t.equal((await store.claimAll(3)).length, 4);
  const worker = await newWorker(store.database);
  const claim = await store.claim(10, worker);
  t.equal(claim.jobs.length, 0);
  t.ok(claim.nextInMs !== null && claim.nextInMs > 55_000, 'told when the window opens');
});

function groupBy<T, K>(items: readonly T[], key: (item: T) => K): Map<K, T[]> {
  const groups = new Map<K, T[]>();
  for (const item of items) groups.set(key(item), [...(groups.get(key(item)) ?? []), item]);
  return groups;
}

t.test('a claim waits for nobody who has changed a window: it goes away busy, and comes back', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.putLimit('all', { limit: 5, per: 60, upstreams: ['api'] });
  await store.addJobs({ count: 3 });
  t.equal((await store.claim(1)).jobs.length, 1, 'the window is there');
  await inTransaction(store.database, async (other) => {
    // As a settle does that gives back a permit; it may go on to a lane that the claim holds.
    await other.query('update sluice.rate_windows set used = used');
    const claim = await Promise.race([store.claim(1), systemClock.sleep(5_000)]);
    t.match(claim, { busy: true, jobs: [] });
    await other.query('select 1 from sluice.lanes for no key update');
  });
  t.equal((await store.claim(5)).jobs.length, 2);
});

t.test(
  'of claimers that meet windows nobody has used yet, one makes each: no second row takes a quota of its own',
  async (t) => {
    const partitions = 20;
    const store = await useClaims(t, { max: 6 });
    await store.putUpstream('api');
    await store.putLimit('account', { limit: 2, per: 3_600, by_partition: true, upstreams: ['api'] });
    for (let i = 0; i < partitions; i += 1) await store.addJobs({ count: 20, partitionKey: `p${i}` });
    const workers = await Promise.all(Array.from({ length: 6 }, () => newWorker(store.database)));
    const taken = await Promise.all(
      workers.map(async (worker) => {
        let jobs = 0;
        for (let idle = 0; idle < 5; ) {
          const claim = await store.claim(2, worker);
          jobs += claim.jobs.length;
          idle = claim.jobs.length === 0 && !claim.busy && !claim.more ? idle + 1 : 0;
        }
        return jobs;
      }),
    );
    t.equal(
      taken.reduce((sum, jobs) => sum + jobs, 0),
      2 * partitions,
    );
    t.same(
      await store.database.query(
        'select count(*)::int as rows, count(distinct partition_key)::int as windows from sluice.rate_windows',
      ),
      [{ rows: partitions, windows: partitions }],
    );
  },
);

t.test(
  'lanes that all have their part in each claim keep their rows, and what does not come out even goes to all alike',
  async (t) => {
    const store = await useClaims(t);
    await store.putUpstream('api');
    await store.putUpstream('other');
    // Two lanes of one group, and one of another.
    const lanes = [
      { upstream: 'api', partitionKey: 'a' },
      { upstream: 'api', partitionKey: 'b' },
      { upstream: 'other', partitionKey: 'c' },
    ];
    for (const lane of lanes) await store.addJobs({ count: 400, ...lane });
    const rows = () => store.database.query('select id, ctid, next_at from sluice.lanes order by id');
    const before = await rows();
    const counts = new Map(lanes.map(({ partitionKey }) => [partitionKey, 0]));
    for (let i = 0; i < 120; i += 1) {
      const { jobs } = await store.claim(4);
      t.equal(jobs.length, 4);
      t.equal(new Set(jobs.map((job) => job.partitionKey)).size, 3, 'each has its part');
      for (const { partitionKey } of jobs) counts.set(partitionKey!, counts.get(partitionKey!)! + 1);
    }
    t.same(await rows(), before);
    // 160 is the mean, 5 the standard deviation.
    for (const [key, count] of counts) t.ok(Math.abs(count - 160) < 40, `${key}: ${count}`);
  },
);

t.test('lanes of which not all can be served take turns: whoever was served goes behind the others', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  for (const partitionKey of ['a', 'b', 'c', 'd', 'e']) await store.addJobs({ count: 20, partitionKey });
  const order: (string | null)[] = [];
  for (let i = 0; i < 10; i += 1) order.push(...(await store.claim(2)).jobs.map((job) => job.partitionKey));
  t.equal(order.length, 20);
  for (let turn = 0; turn < 4; turn += 1) {
    t.equal(new Set(order.slice(turn * 5, turn * 5 + 5)).size, 5, `turn ${turn + 1} has each once`);
  }
});

t.test('upstreams that share a window share it, though one alone could use it up each time', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('a');
  await store.putUpstream('b');
  await store.putLimit('both', { limit: 10, per: 1, upstreams: ['a', 'b'] });
  await store.addJobs({ count: 200, upstream: 'a' });
  await store.addJobs({ count: 200, upstream: 'b' });
  let now = await store.clockUs();
  const taken = { a: 0, b: 0 };
  for (let window = 0; window < 6; window += 1) {
    await store.setClock(now);
    const jobs = await store.claimAll(64);
    for (const { upstream } of jobs) taken[upstream as 'a' | 'b'] += 1;
    await store.settle(jobs);
    now += 1.2 * second;
  }
  t.equal(taken.a + taken.b, 60);
  t.ok(Math.min(taken.a, taken.b) >= 20, `${taken.a} and ${taken.b}`);
});

t.test('lanes under a window of their partition keep their rows', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.putLimit('account', { limit: 50, per: 1, by_partition: true, upstreams: ['api'] });
  for (const partitionKey of ['a', 'b']) await store.addJobs({ count: 50, partitionKey });
  const rows = () => store.database.query('select id, ctid from sluice.lanes order by id');
  const before = await rows();
  for (let i = 0; i < 5; i += 1) t.equal((await store.claim(4)).jobs.length, 4);
  t.same(await rows(), before);
});

t.test('whoever shares the window of a partition has turns in it: tenants, and queues', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.putQueue('first', {});
  await store.putQueue('second', {});
  await store.putLimit('account', { limit: 4, per: 1, by_partition: true, upstreams: ['api'] });
  // Each could use its window up alone.
  for (const tenant of ['one', 'two', 'three']) await store.addJobs({ count: 130, partitionKey: 'tenants', tenant });
  for (const queue of ['first', 'second']) await store.addJobs({ count: 130, partitionKey: 'queues', queue });
  const taken = { one: 0, two: 0, three: 0, first: 0, second: 0 };
  let now = await store.clockUs();
  const windows = 30;
  for (let window = 0; window < windows; window += 1) {
    await store.setClock(now);
    for (const { tenant, queue, partitionKey } of await store.claimAll(64)) {
      taken[(partitionKey === 'tenants' ? tenant : queue) as keyof typeof taken] += 1;
    }
    now += 1.2 * second;
  }
  t.equal(taken.one + taken.two + taken.three, 4 * windows);
  t.equal(taken.first + taken.second, 4 * windows);
  // Who had a window is behind the others in the next; among these it is chance.
  t.ok(Math.min(...Object.values(taken)) >= 8, JSON.stringify(taken));
});

t.test('and with one slot, and more lanes than a claim looks at, none is left out', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.putQueue('second', {});
  await store.putLimit('account', { limit: 1, per: 1, by_partition: true, upstreams: ['api'] });
  const many = Array.from({ length: 10 }, (_, i) => `many${i}`);
  for (const tenant of many) await store.addJobs({ count: 60, partitionKey: 'many', tenant });
  // Three lanes of one group and one of another.
  const few = ['few0', 'few1', 'few2', 'few3'];
  for (const tenant of few) {
    await store.addJobs({ count: 60, partitionKey: 'few', tenant, queue: tenant === 'few3' ? 'second' : 'default' });
  }
  const taken = new Map<string, number>();
  let now = await store.clockUs();
  const windows = 150;
  for (let window = 0; window < windows; window += 1) {
    await store.setClock(now);
    for (const { tenant } of await store.claimAll(1)) taken.set(tenant, (taken.get(tenant) ?? 0) + 1);
    now += 1.2 * second;
  }
  t.equal(
    [...taken.values()].reduce((sum, jobs) => sum + jobs, 0),
    2 * windows,
    'the windows were used up',
  );
  // By chance alone one of many is left out in one of 700,000 runs.
  for (const tenant of [...many, ...few]) t.ok(taken.has(tenant), `${tenant}: ${taken.get(tenant)}`);
});

t.test('a lane whose head waits for more of a window is not passed by for ever by one that wants less', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.putLimit('account', {
    limit: 10,
    per: 1,
    algorithm: 'fixed_window',
    by_partition: true,
    upstreams: ['api'],
  });
  await store.addJobs({ count: 2, cost: 10, partitionKey: 'p', tenant: 'dear' });
  await store.addJobs({ count: 100, partitionKey: 'p', tenant: 'cheap' });
  let now = await store.clockUs();
  let dear = 0;
  for (let window = 0; window < 6; window += 1) {
    await store.setClock(now);
    dear += (await store.claimAll(1)).filter(({ tenant }) => tenant === 'dear').length;
    now += 1.2 * second;
  }
  t.equal(dear, 2);
});

t.test('what a claim has found due and has no slot for is told to the others', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  const notices = await listenForWork(t, store.connectionString);
  for (const [count, expected] of [
    [1, []],
    [3, ['']],
  ] as const) {
    await store.addJobs({ count, runAt: `clock_timestamp() - interval '1 second'` });
    const { jobs } = await store.claim(1);
    t.equal(jobs.length, 1);
    t.same(await notices.take(), expected, `${count} were due`);
  }
});

t.test('tenants, and queues, with one partition share its places in flight', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  for (const queue of ['default', 'other']) await store.putQueue(queue, {});
  await store.putLimit('account', { limit: null, per: 1, max_in_flight: 1, by_partition: true, upstreams: ['api'] });
  const lanes = [
    { tenant: 'a', queue: 'default' },
    { tenant: 'b', queue: 'default' },
    { tenant: 'a', queue: 'other' },
  ];
  for (const lane of lanes) await store.addJobs({ ...lane, count: 60, partitionKey: 'p' });
  const taken = new Map<string, number>();
  for (let round = 0; round < 60; round += 1) {
    const { jobs } = await store.claim(4);
    t.ok(jobs.length <= 1);
    for (const { tenant, queue } of jobs) taken.set(`${tenant} ${queue}`, (taken.get(`${tenant} ${queue}`) ?? 0) + 1);
    await store.settle(jobs);
  }
  const counts = lanes.map(({ tenant, queue }) => taken.get(`${tenant} ${queue}`) ?? 0);
  // By chance alone one has fewer than 5 of 60 in one of 300,000 runs.
  t.ok(Math.min(...counts) >= 5, `each has its part: ${counts.join(', ')}`);
  t.ok(counts.reduce((sum, each) => sum + each) > 50, 'a place that was given back is had at once');
});

t.test('a lane with places left stays open, whatever the slots of who has claimed from it', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.putLimit('account', { limit: null, per: 1, max_in_flight: 10, by_partition: true, upstreams: ['api'] });
  await store.putLimit('wider', { limit: null, per: 1, max_in_flight: 11, by_partition: true, upstreams: ['api'] });
  await store.addJobs({ count: 20, partitionKey: 'p' });
  const had: number[] = [];
  for (let n = 0; n < 3; n += 1) had.push((await store.claim(4)).jobs.length);
  t.same(had, [4, 4, 2]);
  const [lane] = await store.database.query<{ by: string; name: string }>(
    'select closed_by as by, closed_name as name from sluice.lanes',
  );
  t.same(lane, { by: 'in_flight', name: 'account' }, 'with the last of them it is closed');
});
