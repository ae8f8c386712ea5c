/** Rate windows over HTTP: what they show, that a read changes nothing, the audit, and the operator's levers. */
import t, { type Test } from 'tap';
import { createTestApp } from '../support/app.ts';
import { type Claims, throttledFor, useClaims } from '../support/claims.ts';

const instant = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

interface Answer {
  readonly status: number;
  // biome-ignore lint/suspicious/noExplicitAny: JSON of any shape, compared by the tests.
  readonly body: any;
}

async function setup(
  t: Test,
): Promise<{ store: Claims; call(method: 'GET' | 'POST', path: string, body?: object): Promise<Answer> }> {
  const store = await useClaims(t);
  await store.putUpstream('api');
  const { app } = await createTestApp(t, store.database);
  return {
    store,
    async call(method, path, body) {
      const response = await app.inject({
        method,
        url: `/admin/rate-windows${path}`,
        ...(body === undefined ? {} : { payload: body }),
      });
      return { status: response.statusCode, body: response.json() };
    },
  };
}

t.test(
  'taskforcesh/bullmq#2628 fresh: all of it remains; after 1 of 3: 2; after 3: exhausted, with a time; a read changes nothing',
  async (t) => {
    const { store, call } = await setup(t);
    await store.putLimit('three', { limit: 3, per: 60, upstreams: ['api'] });
    await store.addJobs({ count: 5 });
    const fresh = await call('GET', '/three');
    t.same(fresh, {
      status: 200,
      body: {
        limit: 'three',
        partition_key: null,
        state: 'open',
        algorithm: 'sliding_window',
        capacity: 3,
        per: 60,
        used: 0,
        remaining: 3,
        window_started_at: null,
        resets_at: null,
        in_flight: 0,
        cooldown_until: null,
        cooldown: null,
        waiting_jobs: 5,
        permit_ms: 40,
      },
    });
    t.same(await store.database.query('select 1 from sluice.rate_windows'), [], 'the read made no row');
    const { jobs } = await store.claim(1);
    t.match((await call('GET', '/three')).body, {
      state: 'open',
      used: 1,
      remaining: 2,
      in_flight: 1,
      waiting_jobs: 4,
      resets_at: instant,
    });
    await store.settle(jobs);
    await store.claimAll(5);
    for (let i = 0; i < 3; i += 1) {
      const { body } = await call('GET', '/three');
      t.match(body, { state: 'exhausted', used: 3, remaining: 0, in_flight: 2, waiting_jobs: 2, resets_at: instant });
      t.ok(Date.parse(body.resets_at) > Date.now() + 50_000);
    }
  },
);

t.test('each algorithm shows its own: a fixed window when it opened, a bucket its size', async (t) => {
  const { store, call } = await setup(t);
  await store.putUpstream('b');
  await store.putLimit('fixed', { limit: 3, per: 60, algorithm: 'fixed_window', upstreams: ['api'] });
  await store.putLimit('bucket', { limit: 60, per: 60, algorithm: 'token_bucket', burst: 7, upstreams: ['b'] });
  t.match((await call('GET', '/fixed')).body, { window_started_at: null, capacity: 3 });
  await store.addJobs({ count: 1 });
  await store.addJobs({ count: 2, upstream: 'b' });
  await store.claimAll(5);
  t.match((await call('GET', '/fixed')).body, {
    window_started_at: instant,
    used: 1,
    remaining: 2,
    resets_at: instant,
  });
  t.match((await call('GET', '/bucket')).body, {
    window_started_at: null,
    capacity: 7,
    used: 2,
    remaining: 5,
    resets_at: instant,
  });
});

t.test('lowered under what is used: 0 remain, never less', async (t) => {
  const { store, call } = await setup(t);
  await store.putLimit('all', { limit: 40, per: 60, upstreams: ['api'] });
  await store.addJobs({ count: 50 });
  await store.claimAll(50);
  await store.putLimit('all', { limit: 5, per: 60, upstreams: ['api'] });
  t.match((await call('GET', '/all')).body, { capacity: 5, used: 40, remaining: 0, state: 'exhausted' });
});

t.test(
  'a limit by partition: a list with a cursor, one window by its key, and the same for one never used',
  async (t) => {
    const { store, call } = await setup(t);
    await store.putLimit('account', { limit: 2, per: 60, by_partition: true, upstreams: ['api'] });
    await store.putLimit('all', { limit: 100, per: 60, upstreams: ['api'] });
    for (const partitionKey of ['a', 'b', 'c']) await store.addJobs({ count: 3, partitionKey });
    await store.claimAll(10);
    const keys: string[] = [];
    for (let cursor = ''; ; ) {
      const { body } = await call('GET', `/account?limit=2${cursor}`);
      keys.push(...body.items.map((window: { partition_key: string }) => window.partition_key));
      if (body.next_cursor === null) break;
      cursor = `&cursor=${body.next_cursor}`;
    }
    t.same(keys, ['a', 'b', 'c']);
    t.match((await call('GET', '/account?partition_key=b')).body, {
      partition_key: 'b',
      used: 2,
      remaining: 0,
      waiting_jobs: 1,
    });
    t.match((await call('GET', '/account?partition_key=new')).body, {
      partition_key: 'new',
      used: 0,
      remaining: 2,
      state: 'open',
    });
    const { body } = await call('GET', '');
    t.same(
      body.items.map((window: { limit: string; partition_key: string | null }) => [window.limit, window.partition_key]),
      [
        ['account', 'a'],
        ['account', 'b'],
        ['account', 'c'],
        ['all', null],
      ],
    );
    t.equal((await call('GET', '/none')).status, 404);
    t.equal((await call('GET', '/account?since=1')).status, 400, 'unknown parameters are errors');
  },
);

t.test('a 429 shows as cooling with its evidence, then as probing, then open', async (t) => {
  const { store, call } = await setup(t);
  await store.putLimit('all', { limit: 100, per: 60, upstreams: ['api'] });
  await store.addJobs({ count: 5 });
  const { jobs } = await store.claim(1);
  await store.settle(jobs, throttledFor(60_000));
  const { body } = await call('GET', '/all');
  t.match(body, {
    state: 'cooling',
    cooldown_until: instant,
    cooldown: { until: instant, reason: 'throttled', status: 429, header: '60', job_id: jobs[0]!.jobId, at: instant },
  });
  await store.database.query(
    `with over as (update sluice.cooldowns set until = clock_timestamp() - interval '1 millisecond')
     update sluice.lane_groups set next_at = clock_timestamp() - interval '1 millisecond' where closed_by = 'cooldown'`,
  );
  t.match((await call('GET', '/all')).body, { state: 'probing', cooldown_until: null });
  await store.database.query('update sluice.cooldowns set ramp = null');
  t.match((await call('GET', '/all')).body, { state: 'open', cooldown: null });
});

t.test('where the limit and its upstream both cool down, the one that ends last is shown', async (t) => {
  const { store, call } = await setup(t);
  await store.putLimit('all', { limit: 100, per: 60, upstreams: ['api'] });
  await store.addJobs({ count: 2 });
  await store.settle((await store.claim(1)).jobs, throttledFor(60_000));
  await call('POST', '/all/cooldown', { seconds: 3, reason: 'by hand' });
  t.match((await call('GET', '/all')).body, { state: 'cooling', cooldown: { reason: 'throttled' } });
  await call('POST', '/all/cooldown', { seconds: 300, reason: 'for longer' });
  t.match((await call('GET', '/all')).body, { state: 'cooling', cooldown: { reason: 'for longer' } });
});

t.test('pause holds, resume goes on at once; limit 0 shows as paused', async (t) => {
  const { store, call } = await setup(t);
  await store.putLimit('all', { limit: 100, per: 60, upstreams: ['api'] });
  await store.addJobs({ count: 5 });
  t.match((await call('POST', '/all/pause')).body, { state: 'paused' });
  t.equal((await store.claim(1)).jobs.length, 0);
  t.match((await call('POST', '/all/resume')).body, { state: 'open' });
  t.equal((await store.claim(1)).jobs.length, 1);
  await store.putLimit('all', { limit: 0, per: 60, upstreams: ['api'] });
  t.match((await call('GET', '/all')).body, { state: 'paused', capacity: 0, remaining: 0 });
  t.equal((await call('POST', '/all/pause', { partition_key: 'x' })).status, 400, 'it has no partitions');
});

t.test('one partition is paused and resumed; which one must be said', async (t) => {
  const { store, call } = await setup(t);
  await store.putLimit('account', { limit: 100, per: 60, by_partition: true, upstreams: ['api'] });
  for (const partitionKey of ['a', 'b']) await store.addJobs({ count: 2, partitionKey });
  t.match(await call('POST', '/account/pause'), { status: 400, body: { errors: [{ pointer: '/partition_key' }] } });
  t.match((await call('POST', '/account/pause', { partition_key: 'a' })).body, { state: 'paused', partition_key: 'a' });
  t.same(
    (await store.claimAll(5)).map((job) => job.partitionKey),
    ['b', 'b'],
  );
  await call('POST', '/account/resume', { partition_key: 'a' });
  t.same(
    (await store.claimAll(5)).map((job) => job.partitionKey),
    ['a', 'a'],
  );
});

t.test('animir/node-rate-limiter-flexible#208 reset forgets the count once; the limit stays as it is', async (t) => {
  const { store, call } = await setup(t);
  await store.putLimit('all', { limit: 3, per: 60, upstreams: ['api'] });
  await store.addJobs({ count: 10 });
  t.equal((await store.claimAll(5)).length, 3);
  t.match((await call('POST', '/all/reset')).body, { used: 0, remaining: 3, capacity: 3 });
  t.equal((await store.claimAll(5)).length, 3);
  t.equal((await store.claimAll(5)).length, 0, 'once, not for good');
  t.match((await call('GET', '/all')).body, { used: 3, capacity: 3 });
});

t.test('cooldown closes until a time, says why, and only extends', async (t) => {
  const { store, call } = await setup(t);
  await store.putLimit('all', { limit: 100, per: 60, upstreams: ['api'] });
  await store.addJobs({ count: 3 });
  const { body } = await call('POST', '/all/cooldown', { seconds: 60, reason: 'they are migrating' });
  t.match(body, { state: 'cooling', cooldown: { reason: 'they are migrating', status: null, job_id: null } });
  const until = Date.parse(body.cooldown_until);
  t.ok(until > Date.now() + 55_000 && until <= Date.now() + 60_000);
  t.equal((await store.claim(3)).jobs.length, 0);
  const shorter = await call('POST', '/all/cooldown', { seconds: 1, reason: 'no' });
  t.equal(Date.parse(shorter.body.cooldown_until), until);
  t.equal((await call('POST', '/all/cooldown', { seconds: -1 })).status, 400);
  t.equal((await call('POST', '/none/cooldown', { seconds: 1 })).status, 404);
});

t.test('the audit counts what was sent, by the attempts, in the fullest interval', async (t) => {
  const { store, call } = await setup(t);
  await store.putLimit('all', { limit: 100, per: 1, upstreams: ['api'] });
  await store.addJobs({ count: 12 });
  const { jobs } = await store.claim(12);
  // Seven of one second, five of another; one of the twelve never left.
  for (const [i, job] of jobs.entries()) {
    const sentAfterMs = i < 7 ? i * 100 : 5_000 + i;
    await store.settle([job], i === 11 ? { outcome: 'not_sent', sentAfterMs: null, status: null } : { sentAfterMs });
  }
  const audit = await call('GET', '/all/audit');
  t.match(audit, {
    status: 200,
    body: { limit: 'all', partition_key: null, per: 1, max_starts: 7, bound: 100, at: instant, since: instant },
  });
  await store.database.query('delete from sluice.rate_windows');
  t.equal((await call('GET', '/all/audit')).body.max_starts, 7, 'not from the counter');
  const later = await call(
    'GET',
    `/all/audit?since=${encodeURIComponent(new Date(Date.parse(audit.body.at) + 2_000).toISOString())}`,
  );
  t.equal(later.body.max_starts, 4);
  t.equal((await call('GET', '/all/audit?since=yesterday')).status, 400);
  const none = await call('GET', `/all/audit?since=${new Date(Date.now() + 60_000).toISOString()}`);
  t.match(none.body, { max_starts: 0, at: null });
});

t.test('the audit counts questions about lost calls too, but for those that never left', async (t) => {
  const { store, call } = await setup(t);
  await store.putLimit('all', { limit: 100, per: 60, upstreams: ['api'] });
  await store.addJobs({ count: 3 });
  const { jobs } = await store.claim(3);
  const asked = { next: { kind: 'ready' }, outcome: null, charge: 'none', reconciliation: 'unclear' } as const;
  await store.settle(jobs.slice(0, 1));
  await store.settle(jobs.slice(1, 2), asked);
  await store.settle(jobs.slice(2), { ...asked, sentAfterMs: null, status: null });
  t.equal((await call('GET', '/all/audit')).body.max_starts, 2);
});

t.test('the audit leaves out what was let through before the limit was as it is', async (t) => {
  const { store, call } = await setup(t);
  await store.addJobs({ count: 12 });
  const start = async (count: number) => {
    const { jobs } = await store.claim(count);
    t.equal(jobs.length, count);
    return jobs;
  };
  const early = await start(4);
  await store.settle(early.slice(0, 3));
  await store.putLimit('all', { limit: 2, per: 60, upstreams: ['api'] });
  const [limit] = await store.database.query<{ updated_at: Date }>('select updated_at from sluice.rate_limits');
  const since = limit!.updated_at.toISOString();
  // Admitted before there was a limit, and on its way long after.
  await store.settle(early.slice(3), { sentAfterMs: 90_000 });
  t.match((await call('GET', '/all/audit')).body, { max_starts: 0, at: null, bound: 2, since });
  await store.settle(await start(2));
  t.match((await call('GET', '/all/audit')).body, { max_starts: 2, bound: 2, since });

  await store.putLimit('all', { limit: 4, per: 60, upstreams: ['api'] });
  await store.settle(await start(2));
  await store.putLimit('all', { limit: 1, per: 60, upstreams: ['api'] });
  t.match((await call('GET', '/all/audit')).body, { max_starts: 0, bound: 1 }, 'lowered');

  const anHourAgo = new Date(Date.now() - 3_600_000).toISOString();
  t.match(
    (await call('GET', `/all/audit?since=${anHourAgo}`)).body,
    { max_starts: 7, bound: 1, since: anHourAgo },
    'as asked for',
  );
  await store.database.query(`update sluice.rate_limits set updated_at = updated_at - interval '1 day'`);
  const { body } = await call('GET', '/all/audit');
  t.match(body, { max_starts: 7 });
  t.ok(Math.abs(Date.parse(body.since) - Date.parse(anHourAgo)) < 60_000, 'an hour, and no longer');
});
