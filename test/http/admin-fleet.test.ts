/** Workers and figures over HTTP, against a store whose jobs are known. */
import t, { type Test } from 'tap';
import { createTestApp } from '../support/app.ts';
import { type Claims, newWorker, throttledFor, useClaims } from '../support/claims.ts';

// biome-ignore lint/suspicious/noExplicitAny: JSON of any shape, compared by the tests.
type Json = any;

const instant = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

async function setup(t: Test): Promise<{ store: Claims; get(path: string): Promise<Json> }> {
  const store = await useClaims(t);
  await store.putUpstream('api');
  const { app } = await createTestApp(t, store.database);
  return {
    store,
    async get(path) {
      const answer = await app.inject(path);
      if (answer.statusCode !== 200) throw new Error(`answered ${answer.statusCode}: ${answer.body}`);
      return answer.json();
    },
  };
}

t.test('live workers are listed with what they run; one whose lease is over is not', async (t) => {
  const { store, get } = await setup(t);
  await store.addJobs({ count: 2, partitionKey: 'acct' });
  const { jobs } = await store.claim(2);
  const idle = await newWorker(store.database);
  const gone = await newWorker(store.database);
  await store.database.query(`update sluice.workers set lease_expires_at = clock_timestamp() where id = $1`, [gone]);
  const { items, next_cursor } = await get('/admin/workers');
  t.equal(next_cursor, null);
  t.same(
    items.map((worker: Json) => [worker.worker_id, worker.running]),
    [
      [store.workerId, 2],
      [idle, 0],
    ],
  );
  const [first] = items;
  t.match(first, { host: 'test', pid: process.pid, concurrency: 32, started_at: instant, lease_expires_at: instant });
  t.same(
    first.jobs.map(({ admitted_at, ...job }: Json) => job),
    jobs
      .map(({ jobId }) => jobId)
      .sort()
      .map((jobId) => ({
        job_id: jobId,
        queue: 'default',
        upstream: 'api',
        partition_key: 'acct',
        attempt: 1,
        epoch: 1,
      })),
  );
  t.match(first.jobs[0].admitted_at, instant);
  const page = await get('/admin/workers?limit=1');
  const rest = await get(`/admin/workers?limit=1&cursor=${page.next_cursor}`);
  t.same(
    [page, rest].map(({ items: [worker] }) => worker.worker_id),
    [store.workerId, idle],
  );
  t.equal(rest.next_cursor, null);
});

t.test('an empty service: noughts, and no ages', async (t) => {
  const { get } = await setup(t);
  const stats = await get('/admin/stats');
  t.match(stats.at, instant);
  t.match(stats, {
    jobs: { scheduled: 0, ready: 0, running: 0, succeeded: 0, failed: 0, held: 0, cancelled: 0, expired: 0 },
    succeeded_is_estimate: false,
    rates: { seconds: 60, attempts_per_second: 0, ended_per_second: 0 },
    oldest_eligible_age_seconds: null,
    queues: [],
    workers: { live: 1, slots: 32, running: 0 },
  });
});

t.test('jobs by state, what has happened in the last minute, and who runs', async (t) => {
  const { store, get } = await setup(t);
  await store.addJobs({ count: 6 });
  await store.addJobs({ count: 1, runAt: `clock_timestamp() + interval '1 hour'` });
  const { jobs } = await store.claim(4);
  await store.settle(jobs.slice(0, 1));
  await store.settle(jobs.slice(1, 2), {
    next: { kind: 'done', state: 'failed', reason: 'attempts_exhausted', evidence: null },
    outcome: 'error',
    status: 500,
  });
  await store.settle(jobs.slice(2, 3), { next: { kind: 'held', reason: 'outcome_unknown' }, outcome: 'unknown' });
  t.match(await get('/admin/stats'), {
    jobs: { scheduled: 1, ready: 2, running: 1, succeeded: 1, failed: 1, held: 1, cancelled: 0, expired: 0 },
    rates: {
      attempts: { success: 1, error: 1, unknown: 1, throttled: 0 },
      attempts_per_second: 3 / 60,
      ended: { succeeded: 1, failed: 1, cancelled: 0, expired: 0 },
      ended_per_second: 2 / 60,
    },
    workers: { live: 1, slots: 32, running: 1 },
  });
});

t.test(
  'only what could run now counts as eligible; what is throttled is told apart, what is paused is neither',
  async (t) => {
    const { store, get } = await setup(t);
    await store.putUpstream('cool');
    await store.putQueue('off', { paused: true });
    const since = (queue: string, upstream: string, seconds: number) =>
      store.database.query(
        `update sluice.ready_jobs r set eligible_at = clock_timestamp() - make_interval(secs => $3::float8)
           from sluice.lanes l join sluice.lane_groups g on g.id = l.group_id
          where l.id = r.lane_id and g.queue = $1 and g.upstream = $2`,
        [queue, upstream, seconds],
      );
    await store.addJobs({ count: 1, upstream: 'cool' });
    await store.settle((await store.claim(1)).jobs, throttledFor(60_000));
    await store.addJobs({ count: 1 });
    await store.addJobs({ count: 1, queue: 'off' });
    await since('default', 'cool', 200);
    await since('default', 'api', 50);
    await since('off', 'api', 300);
    const stats = await get('/admin/stats');
    t.same(
      stats.queues.map(({ queue, ready }: Json) => [queue, ready]),
      [
        ['default', 2],
        ['off', 1],
      ],
    );
    const [open, off] = stats.queues;
    t.ok(
      open.oldest_eligible_age_seconds >= 50 && open.oldest_eligible_age_seconds < 100,
      open.oldest_eligible_age_seconds,
    );
    t.ok(open.oldest_throttled_age_seconds >= 200, open.oldest_throttled_age_seconds);
    t.match(off, { oldest_eligible_age_seconds: null, oldest_throttled_age_seconds: null });
    t.equal(stats.oldest_eligible_age_seconds, open.oldest_eligible_age_seconds);
  },
);
