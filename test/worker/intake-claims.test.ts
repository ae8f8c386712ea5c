/** A worker that has jobs of its own process's intakes in the commit that stores them: when it asks, and what becomes of it. */
import t, { type Test } from 'tap';
import type { ClaimedJob } from '../../src/domain/job.ts';
import { insertBatch } from '../../src/postgres/insert-batch.ts';
import { systemClock } from '../../src/system/clock.ts';
import type { FaultPoints } from '../../src/system/fault-points.ts';
import { createLogger } from '../../src/system/logger.ts';
import { ClaimLoop } from '../../src/worker/claim-loop.ts';
import { IntakeClaims } from '../../src/worker/intake-claims.ts';
import { Slots } from '../../src/worker/slots.ts';
import type { WorkerPool } from '../../src/worker/worker-pool.ts';
import { type Claims, useClaims } from '../support/claims.ts';
import type { TestDatabaseOptions } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { faultPointsOf } from '../support/fault-points.ts';
import { batchOf } from '../support/intake.ts';
import { type Upstream, useUpstream } from '../support/upstream.ts';
import { Gate, startWorker, type WorkerOptions } from '../support/worker.ts';

interface Stage {
  readonly store: Claims;
  readonly upstream: Upstream;
  readonly worker: WorkerPool;
  /** Resolves when it may have jobs of an intake. */
  atRest(): Promise<void>;
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
  const atRest = async () => {
    const slots = await eventually('the worker is at rest', () => worker.intakeClaimer.reserve([]) ?? undefined);
    slots.unused();
  };
  await atRest();
  return {
    store,
    upstream,
    worker,
    atRest,
    async post(...keys) {
      const batch = await batchOf(
        store.database,
        keys.map((key) => ({ idempotency_key: key })),
      );
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

t.test('the call has left when the intake is answered', async (t) => {
  const left: string[] = [];
  const faultPoints: FaultPoints = {
    pass(point) {
      if (point === 'send.after') left.push(point);
      return undefined;
    },
  };
  const { post, ended } = await setTheStage(t, {}, { faultPoints });
  await post('opens the socket');
  await ended(1);
  left.length = 0;
  t.equal(await post('next'), true);
  t.equal(left.length, 1);
  await ended(2);
});

t.test('it takes no more than it has slots, and nothing while others wait', async (t) => {
  const { post, ended, atRest, store, upstream, worker } = await setTheStage(t, {}, { concurrency: 2 });
  upstream.script({ path: '/charges', times: 2, answer: { gate: 'later' } });
  t.equal(worker.intakeClaimer.reserve(['1', '2', '3']), null, 'more than there are slots');
  t.equal(await post('a', 'b'), true);
  t.equal(await post('c'), false, 'no slot');
  upstream.release('later');
  t.same(await ended(3), { fewest: 1, most: 1, epoch: 1 });
  await atRest();
  await store.addJobs({ count: 1 });
  worker.wake();
  t.equal(worker.intakeClaimer.reserve(['d']), null, 'what it was just told of comes first');
  await ended(4);
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
  const other = worker.intakeClaimer.reserve(['01900000-0000-7000-8000-000000000000']);
  t.ok(other, 'it is at rest');
  other?.lost();
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
  // It passes `drain.begin` first.
  await undefined;
  t.equal(worker.intakeClaimer.reserve(['x']), null, 'nothing more is asked for');
  // An end that does not wait for it would be over by then.
  await store.database.query('select pg_sleep(0.2)');
  gate.open();
  await posted;
  await drained;
  t.equal(upstream.log.requests.length, 0);
  const rows = await store.database.query(`select attempts_used, calls from sluice.ready_jobs`);
  t.same(rows, [{ attempts_used: 0, calls: 0 }], 'untouched');
  t.same(await store.database.query('select 1 from sluice.workers where id = $1', [worker.workerId]), []);
});

t.test('whoever reserves slots hears of their end, whatever it is', async (t) => {
  const heard: string[] = [];
  const slots = new Slots<string>({
    clock: systemClock,
    size: 2,
    start: () => undefined,
    goodUntilMs: () => Number.POSITIVE_INFINITY,
    giveBack: () => undefined,
  });
  const intakes = new IntakeClaims({
    clock: systemClock,
    workerId: 'w',
    slots,
    isOpen: () => true,
    onClaim: async ({ jobs }) => {
      heard.push('claimed');
      slots.addReserved(jobs.map(({ jobId }) => jobId));
    },
    onFreed: () => heard.push('freed'),
    onLost: () => heard.push('lost'),
  });
  const ended = () => intakes.ended().then(() => heard.push('ended'));
  const [one, two] = [intakes.reserve(['a']), intakes.reserve(['b'])];
  t.equal(intakes.reserve(['c']), null, 'no slot is left');
  t.same(intakes.jobIds, ['a', 'b']);
  const all = ended();
  one!.unused();
  t.equal(slots.free, 1);
  two!.lost();
  t.equal(slots.free, 2);
  await all;
  t.same(heard, ['freed', 'freed', 'lost', 'ended']);
  heard.length = 0;
  await intakes.reserve(['d'])!.claimed([{ jobId: 'd' } as ClaimedJob], 1);
  await ended();
  t.same(heard, ['claimed', 'ended']);
  t.equal(slots.free, 1, 'it runs in the slot that was kept for it');
  t.same(intakes.jobIds, []);
});

/** A loop whose sleeps end by its signal, or by `tick`. */
async function useLoop(t: Test, store: Claims) {
  const sleeps = new Set<() => void>();
  const state = { slots: 1, passedMs: 0, looks: 0, claimed: 0 };
  const loop = new ClaimLoop({
    database: store.database,
    clock: {
      ...systemClock,
      monotonicMs: () => systemClock.monotonicMs() + state.passedMs,
      sleep: (_ms, signal) =>
        new Promise((resolve) => {
          sleeps.add(resolve);
          signal?.addEventListener('abort', () => resolve());
        }),
    },
    logger: createLogger('silent'),
    workerId: store.workerId,
    demand() {
      state.looks += 1;
      return { slots: state.slots, ahead: 0 };
    },
    onClaim: async ({ jobs }) => {
      state.claimed += jobs.length;
    },
    onLeaseLost: () => t.fail('the lease holds'),
    reconcile: async () => undefined,
  });
  t.equal(loop.atRest, false, 'not before it has looked');
  loop.start();
  t.teardown(() => loop.stop());
  await eventually('it rests', () => loop.atRest);
  const tick = () => {
    for (const end of sleeps) end();
    sleeps.clear();
  };
  return { loop, state, tick };
}

t.test('a poll that finds no slot is owed: the next slot that frees makes it', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  const { loop, state, tick } = await useLoop(t, store);
  state.slots = 0;
  const { looks } = state;
  tick();
  await eventually('it has found no slot', () => state.looks > looks);
  t.equal(loop.atRest, false);
  await store.addJobs({ count: 1 });
  state.slots = 1;
  loop.slotFreed();
  await eventually('it has claimed', () => state.claimed === 1);
});

t.test('it rests until something opens, and for no longer than to the next poll', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  const { loop, state } = await useLoop(t, store);
  state.passedMs = 3_000;
  t.equal(loop.atRest, true);
  state.passedMs = 5_000;
  t.equal(loop.atRest, false);
  state.passedMs = 0;
  await store.addJobs({ count: 1, runAt: `clock_timestamp() + interval '3 seconds'` });
  loop.wake();
  t.equal(loop.atRest, false, 'it has heard of something');
  await eventually('it rests', () => loop.atRest);
  state.passedMs = 3_000;
  t.equal(loop.atRest, false);
});
