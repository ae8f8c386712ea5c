/** A worker that has jobs of its own process's intakes in the commit that stores them: when it asks, and what becomes of it. */
import t, { type Test } from 'tap';
import { insertBatch } from '../../src/postgres/insert-batch.ts';
import { systemClock } from '../../src/system/clock.ts';
import { createLogger } from '../../src/system/logger.ts';
import { ClaimLoop } from '../../src/worker/claim-loop.ts';
import type { WorkerPool } from '../../src/worker/worker-pool.ts';
import { type Claims, useClaims } from '../support/claims.ts';
import type { TestDatabaseOptions } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { faultPointsOf } from '../support/fault-points.ts';
import { submissionOf } from '../support/intake.ts';
import { type Upstream, useUpstream } from '../support/upstream.ts';
import { Gate, startWorker, type WorkerOptions } from '../support/worker.ts';

interface Stage {
  readonly store: Claims;
  readonly upstream: Upstream;
  readonly worker: WorkerPool;
  /** Gives whether the worker has them. */
  post(...keys: string[]): Promise<boolean>;
  /** All jobs have ended as succeeded; gives what they have spent. */
  ended(count: number): Promise<object>;
}

async function setTheStage(
  t: Test,
  options: TestDatabaseOptions = {},
  workerOptions: Partial<WorkerOptions> = {},
): Promise<Stage> {
  const store = await useClaims(t, options);
  const upstream = await useUpstream(t);
  await store.putUpstream('api', { base_url: upstream.url, allow_private_addresses: true });
  const worker = await startWorker(t, { connectionString: store.connectionString, ...workerOptions });
  await eventually('the worker is at rest', () => worker.intakeClaimer.reserve([])?.committed([], 0) !== undefined);
  return {
    store,
    upstream,
    worker,
    async post(...keys) {
      const [row] = await store.database.query<{ version: number }>('select version from sluice.definition_version');
      const items = keys.map((key) => ({ idempotency_key: key }));
      const batch = { tenant: 'default', requestKey: null, definitionsVersion: row!.version, ...submissionOf(items) };
      const posted = await insertBatch(store.database, batch, worker.intakeClaimer);
      if (posted.kind !== 'inserted') throw new Error(posted.kind);
      return posted.claimed;
    },
    async ended(count) {
      await eventually('all have ended', async () => {
        const rows = await store.database.query(`select 1 from sluice.done_jobs where state = 'succeeded'`);
        return rows.length === count;
      });
      const [spent] = await store.database.query<object>(
        `select min(calls)::int as fewest, max(calls)::int as most, max(epoch)::int as epoch from sluice.done_jobs`,
      );
      return spent!;
    },
  };
}

t.test('jobs that come while it rests are called at once, without a claim', async (t) => {
  const { post, ended, upstream } = await setTheStage(t);
  t.equal(await post('a'), true);
  t.equal(await post('b', 'c'), true);
  t.same(await ended(3), { fewest: 1, most: 1, epoch: 1 });
  t.same(upstream.log.requests.map(({ key }) => key).sort(), ['a', 'b', 'c']);
});

t.test('it asks for no more than it has slots, and not while others wait', async (t) => {
  const { post, ended, store, upstream, worker } = await setTheStage(t, {}, { concurrency: 2 });
  upstream.script({ path: '/charges', times: 2, answer: { gate: 'later' } });
  t.equal(await post('a', 'b', 'c'), false, 'more than there are slots');
  worker.wake();
  await eventually('two are called', () => upstream.log.requests.length === 2);
  t.equal(await post('d'), false, 'no slot');
  upstream.release('later');
  t.same(await ended(4), { fewest: 1, most: 1, epoch: 1 });
  await store.addJobs({ count: 1 });
  worker.wake();
  t.equal(worker.intakeClaimer.reserve(['e']), null, 'what it was just told of comes first');
  await ended(5);
});

t.test('what nobody knows to be committed goes back, and is called once', async (t) => {
  const faultPoints = faultPointsOf('intake.after_commit=08006');
  const { post, ended, upstream, worker } = await setTheStage(t, { faultPoints });
  await t.rejects(post('lost'));
  t.same(await ended(1), { fewest: 1, most: 1, epoch: 2 });
  t.equal(upstream.log.requests.length, 1);
  t.equal(await post('next'), false, 'what may have been leased to it unheard is looked for first');
  worker.wake();
  await ended(2);
});

t.test('a look for lost claims leaves alone what is on its way to this worker', async (t) => {
  const gate = new Gate();
  const faultPoints = { pass: (point: string) => (point === 'intake.after_commit' ? gate.pass() : undefined) };
  const { post, ended, store, worker, upstream } = await setTheStage(t, { faultPoints });
  const posted = post('slow');
  await eventually('it is committed', () => gate.waiting === 1);
  worker.intakeClaimer.reserve(['01900000-0000-7000-8000-000000000000'])?.lost();
  t.equal(worker.intakeClaimer.reserve(['x']), null, 'nothing more is asked for while claims are in doubt');
  // Looks come before claims.
  await store.addJobs({ count: 1 });
  worker.wake();
  await ended(1);
  gate.open();
  t.equal(await posted, true);
  t.same(await ended(2), { fewest: 1, most: 1, epoch: 1 }, 'nothing went back');
  t.equal(upstream.log.requests.length, 2);
});

t.test('what is committed after the end was told is handed back by its end', async (t) => {
  const gate = new Gate();
  const faultPoints = { pass: (point: string) => (point === 'intake.after_commit' ? gate.pass() : undefined) };
  const { post, store, worker, upstream } = await setTheStage(t, { faultPoints });
  const posted = post('late');
  await eventually('it is committed', () => gate.waiting === 1);
  const drained = worker.drain(5_000);
  await undefined;
  t.equal(worker.intakeClaimer.reserve(['x']), null, 'nothing more is asked for');
  await store.database.query('select pg_sleep(0.2)');
  gate.open();
  await posted;
  await drained;
  t.equal(upstream.log.requests.length, 0);
  const rows = await store.database.query(`select attempts_used, calls from sluice.ready_jobs`);
  t.same(rows, [{ attempts_used: 0, calls: 0 }], 'untouched');
  t.same(await store.database.query('select 1 from sluice.workers where id = $1', [worker.workerId]), []);
});

t.test('who was told of a job while its slots were kept comes for it when they are free', async (t) => {
  const { store, worker, upstream, ended } = await setTheStage(t, {}, { concurrency: 1 });
  const kept = worker.intakeClaimer.reserve(['01900000-0000-7000-8000-000000000000']);
  await store.addJobs({ count: 1 });
  worker.wake();
  // By then it has found no slot.
  await store.database.query('select pg_sleep(0.05)');
  await kept?.committed([], 0);
  // A poll would come after five.
  await eventually('it is called', () => upstream.log.requests.length === 1, 3_000);
  await ended(1);
});

t.test('it rests for no longer than to the next poll', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  let passedMs = 0;
  const loop = new ClaimLoop({
    database: store.database,
    clock: { ...systemClock, monotonicMs: () => systemClock.monotonicMs() + passedMs },
    logger: createLogger('silent'),
    workerId: store.workerId,
    demand: () => ({ slots: 1, ahead: 0 }),
    onClaim: async () => undefined,
    onLeaseLost: () => t.fail('the lease holds'),
    reconcile: async () => undefined,
  });
  t.equal(loop.atRest, false, 'not before it has looked');
  loop.start();
  t.teardown(() => loop.stop());
  await eventually('it rests', () => loop.atRest);
  passedMs = 5_000;
  t.equal(loop.atRest, false);
});
