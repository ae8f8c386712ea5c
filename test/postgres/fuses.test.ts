/** Fuses: once a blow has committed nothing of its batch is admitted, whatever moves meanwhile; a resume brings back all of it. */
import t, { type Test } from 'tap';
import type { ClaimedJob } from '../../src/domain/job.ts';
import { cancelBatchJobs, markBatchCancelled } from '../../src/postgres/cancel-jobs.ts';
import { findFuseMoves, markResumed, moveBehindFuse } from '../../src/postgres/fuses.ts';
import { retryJobs } from '../../src/postgres/retry-jobs.ts';
import { type SettleRow, settleJobs } from '../../src/postgres/settle-jobs.ts';
import { inTransaction } from '../../src/postgres/transaction.ts';
import { moveTarget } from '../../src/postgres/unfinished-jobs.ts';
import { systemClock } from '../../src/system/clock.ts';
import {
  blewFuse,
  type Claims,
  jobIds,
  newWorker,
  settleRow,
  throttledFor,
  useClaims,
  waitsForALock,
} from '../support/claims.ts';
import { eventually } from '../support/eventually.ts';

const retried = {
  next: { kind: 'scheduled', delayMs: 3_600_000, reason: null },
  outcome: 'error',
  status: 500,
} as const satisfies Partial<SettleRow>;

async function setup(t: Test, options: { max?: number } = {}): Promise<Claims> {
  const store = await useClaims(t, options);
  await store.putUpstream('api');
  return store;
}

/** State, and reason of what is held, of all jobs in order of acceptance. */
async function states({ database }: Claims): Promise<string[]> {
  const rows = await database.query<{ state: string }>(
    `select s.state from sluice.jobs j join (
       select job_id, 'ready' as state from sluice.ready_jobs union all select job_id, 'running' from sluice.running_jobs
       union all select job_id, concat_ws(' ', state, reason) from sluice.parked_jobs
       union all select job_id, state from sluice.done_jobs) s on s.job_id = j.id order by j.seq`,
  );
  return rows.map(({ state }) => state);
}

async function batchOf({ database }: Claims, jobId: string): Promise<string> {
  const [row] = await database.query<{ id: string }>('select batch_id as id from sluice.jobs where id = $1', [jobId]);
  return row!.id;
}

async function fuses({ database }: Claims) {
  return database.query<{ state: string; job_id: string; status: number; resumed: boolean }>(
    'select state, job_id, status, resumed_at is not null as resumed from sluice.blown_fuses order by at',
  );
}

/** Moves all that is to be moved; gives how many jobs that were. */
async function moveAll({ database }: Claims, step = 3): Promise<number> {
  let all = 0;
  for (const move of await findFuseMoves(database, null, 10)) {
    for (let after: string | null = null, first = true; first || after !== null; first = false) {
      const made = await moveBehindFuse(database, move, after, step);
      all += made.moved;
      after = made.after;
    }
  }
  return all;
}

async function resume(store: Claims, batchId: string): Promise<number> {
  await markResumed(store.database, batchId);
  return moveAll(store);
}

const idsOf = (jobs: readonly ClaimedJob[]) => jobs.map(({ jobId }) => jobId);

t.test(
  'once a blow is settled no claim takes of the batch, though its jobs are still there; others go on',
  async (t) => {
    const store = await setup(t);
    await store.addJobs({ count: 5 });
    await store.addJobs({ count: 2 });
    const ids = await jobIds(store);
    const { jobs } = await store.claim(2);
    await store.settle(jobs.slice(0, 1), blewFuse);
    t.same(await fuses(store), [{ state: 'holding', job_id: ids[0], status: 401, resumed: false }]);
    t.same(await states(store), ['held fuse', 'running', 'ready', 'ready', 'ready', 'ready', 'ready']);
    t.same((await store.claim(3)).jobs, [], 'the heads of the lane');
    t.equal(await moveAll(store), 3);
    t.equal((await fuses(store))[0]!.state, 'held', 'claims need not look any more');
    t.same(await states(store), ['held fuse', 'running', 'held fuse', 'held fuse', 'held fuse', 'ready', 'ready']);
    await eventually('the lane to be looked at again', async () => (await store.claim(1)).jobs.length === 1);
    t.same((await states(store)).slice(5), ['running', 'ready']);
    await store.settle(jobs.slice(1));
    t.equal((await states(store))[1], 'succeeded', 'what ran has ended');
    t.same(
      await store.database.query('select number, outcome, charged, status from sluice.attempts where job_id = $1', [
        ids[0],
      ]),
      [{ number: 1, outcome: 'rejected', charged: 'none', status: 401 }],
    );
    t.same(
      await store.database.query(
        'select calls, attempts_used, first_sent_at from sluice.parked_jobs where job_id = $1',
        [ids[0]],
      ),
      [{ calls: 1, attempts_used: 0, first_sent_at: null }],
    );
    t.equal(await moveAll(store), 0, 'it is over');
  },
);

t.test('heads behind a fuse take no permits, and those behind them are not taken for them', async (t) => {
  const store = await setup(t, { max: 1 });
  await store.putLimit('ten', { limit: 10, per: 60, upstreams: ['api'] });
  await store.addJobs({ count: 3 });
  await store.addJobs({ count: 3 });
  const ids = await jobIds(store);
  await store.settle((await store.claim(1)).jobs, blewFuse);
  const mixed = await store.claim(4);
  t.same(idsOf(mixed.jobs), ids.slice(3, 5), 'of four heads the two of the other batch');
  t.match(await store.database.query('select used from sluice.rate_windows'), [{ used: 3 }]);
  await moveAll(store);
  await store.database.query('update sluice.lanes set next_at = clock_timestamp()');
  t.same(idsOf((await store.claim(4)).jobs), ids.slice(5));
});

t.test('a claim in progress is over before a blow commits, and later ones see it', async (t) => {
  const store = await setup(t);
  await store.addJobs({ count: 4 });
  const { jobs } = await store.claim(1);
  let settling: Promise<unknown> | undefined;
  let isOver = false;
  await inTransaction(store.database, async (client) => {
    await client.query('select * from sluice.claim_jobs($1, 1)', [store.workerId]);
    settling = store.settle(jobs, blewFuse).finally(() => {
      isOver = true;
    });
    await waitsForALock(store);
    t.equal(isOver, false);
  });
  await settling;
  t.same(await states(store), ['held fuse', 'running', 'ready', 'ready']);
  t.same((await store.claim(4)).jobs, []);
});

t.test('what comes back from a worker is held in its settle; what ended has ended', async (t) => {
  const store = await setup(t);
  await store.addJobs({ count: 6 });
  const { jobs } = await store.claim(6);
  const one = (place: number) => jobs.slice(place, place + 1);
  await store.settle(one(0), blewFuse);
  await moveAll(store);
  await store.settle(one(1), retried);
  await store.settle(one(2), throttledFor(60_000));
  await store.settle(one(3), { next: { kind: 'ready' }, outcome: null, charge: 'none', permitUnused: true });
  await store.settle(one(4), { next: { kind: 'held', reason: 'outcome_unknown' }, outcomeUnknown: true });
  await store.settle(one(5), { ...blewFuse, status: 403 });
  t.same(await states(store), [
    'held fuse',
    'held fuse',
    'held fuse',
    'held fuse',
    'held outcome_unknown',
    'held fuse',
  ]);
  t.same(
    await store.database.query(
      `select p.attempts_used, p.throttles, p.due_at, p.resume_at > clock_timestamp() + interval '50 minutes' as later
         from sluice.parked_jobs p join sluice.jobs j on j.id = p.job_id where p.reason = 'fuse' order by j.seq`,
    ),
    [
      { attempts_used: 0, throttles: 0, due_at: null, later: null },
      { attempts_used: 1, throttles: 0, due_at: null, later: true },
      { attempts_used: 0, throttles: 1, due_at: null, later: null },
      { attempts_used: 0, throttles: 0, due_at: null, later: null },
      { attempts_used: 0, throttles: 0, due_at: null, later: null },
    ],
    'with what they had spent, and the time they were to go on at',
  );
  const [blown] = await fuses(store);
  t.equal(blown!.status, 401, 'calls that were under way when it blew say nothing new');
  t.equal(blown!.state, 'held');
});

t.test('a job whose worker was lost is held when it is taken back', async (t) => {
  const store = await setup(t);
  await store.addJobs({ count: 2 });
  const lost = await newWorker(store.database);
  const orphan = (await store.claim(1, lost)).jobs;
  await store.settle((await store.claim(1)).jobs, blewFuse);
  await store.database.query(
    `update sluice.workers set lease_expires_at = clock_timestamp() - interval '1 s' where id = $1`,
    [lost],
  );
  const row = settleRow(orphan[0]!, {
    next: { kind: 'ready' },
    outcome: 'unknown',
    status: null,
    outcomeUnknown: true,
  });
  t.equal((await settleJobs(store.database, lost, [row], { onlyExpired: true })).size, 1);
  t.same(await states(store), ['held fuse', 'held fuse']);
});

t.test('an answer of a worker that has lost the job blows nothing', async (t) => {
  const store = await setup(t);
  await store.addJobs({ count: 2 });
  const { jobs } = await store.claim(1);
  await store.settle(jobs, { next: { kind: 'ready' }, outcome: null, charge: 'none', permitUnused: true });
  t.equal((await store.settle(jobs, blewFuse)).size, 0);
  t.same(await fuses(store), []);
});

t.test(
  'scheduled ones are held, also one that falls due meanwhile; a resume brings each back to its time and place',
  async (t) => {
    const store = await setup(t);
    await store.addJobs({ count: 2 });
    const ids = await jobIds(store);
    const batch = await batchOf(store, ids[0]!);
    const { jobs } = await store.claim(2);
    await store.settle(jobs.slice(1), { ...retried, next: { kind: 'scheduled', delayMs: 0, reason: null } });
    await store.settle(jobs.slice(0, 1), blewFuse);
    let moving: Promise<number> | undefined;
    await inTransaction(store.database, async (client) => {
      await client.query('select sluice.promote_due_jobs(sluice.at_us(sluice.clock_us()), 10)');
      moving = moveAll(store);
      await waitsForALock(store);
    });
    t.equal(await moving, 1);
    t.same(await states(store), ['held fuse', 'held fuse']);
    await resume(store, batch);
    t.same(idsOf((await store.claim(2)).jobs), ids, 'in their old order');
  },
);

t.test(
  'a resume brings back what was held, with its budgets, its time and its deadline, and nothing else',
  async (t) => {
    const store = await setup(t);
    await store.addJobs({ count: 6, expiresAt: `clock_timestamp() + interval '1 day'` });
    const ids = await jobIds(store);
    const batch = await batchOf(store, ids[0]!);
    const { jobs } = await store.claim(4);
    const one = (place: number) => jobs.slice(place, place + 1);
    await store.settle(one(1), retried);
    await store.settle(one(2), { next: { kind: 'held', reason: 'outcome_unknown' }, outcomeUnknown: true });
    const before = await store.database.query<{ due_at: Date }>(
      'select due_at from sluice.parked_jobs where due_at is not null',
    );
    await store.settle(one(0), blewFuse);
    await moveAll(store);
    t.same(await states(store), [
      'held fuse',
      'held fuse',
      'held outcome_unknown',
      'running',
      'held fuse',
      'held fuse',
    ]);
    t.equal(await resume(store, 'b0000000-0000-4000-8000-000000000000'), 0, 'another batch');
    t.equal(await resume(store, batch), 4);
    t.same(await states(store), ['ready', 'scheduled', 'held outcome_unknown', 'running', 'ready', 'ready']);
    t.same(
      await store.database.query(
        'select due_at, attempts_used, expires_at is not null as ends from sluice.parked_jobs where job_id = $1',
        [ids[1]],
      ),
      [{ ...before[0], attempts_used: 1, ends: true }],
    );
    t.match(await store.database.query('select 1 from sluice.ready_jobs where expires_at is null'), []);
    t.match(await fuses(store), [{ state: 'resumed', resumed: true }]);
    t.equal(await resume(store, batch), 0, 'asked again');
    t.same(idsOf((await store.claim(9)).jobs), [ids[0], ids[4], ids[5]]);
  },
);

t.test('what is past its deadline when it goes on expires', async (t) => {
  const store = await setup(t);
  await store.addJobs({ count: 2, expiresAt: `clock_timestamp() + interval '300 milliseconds'` });
  const batch = await batchOf(store, (await jobIds(store))[0]!);
  await store.settle((await store.claim(1)).jobs, blewFuse);
  await moveAll(store);
  await eventually('the deadline', async () => {
    const [row] = await store.database.query<{ passed: boolean }>(
      'select bool_and(expires_at < clock_timestamp()) as passed from sluice.jobs',
    );
    return row!.passed;
  });
  await store.claim(1);
  t.same(await states(store), ['held fuse', 'held fuse'], 'not while it is held');
  await resume(store, batch);
  t.same((await store.claim(2)).jobs, []);
  t.same(await states(store), ['expired', 'expired']);
});

t.test(
  'after a resume, an answer to a call from before it is old news and its job goes on; a later one blows it anew',
  async (t) => {
    const store = await setup(t);
    await store.addJobs({ count: 5 });
    const ids = await jobIds(store);
    const batch = await batchOf(store, ids[0]!);
    const { jobs } = await store.claim(3);
    await store.settle(jobs.slice(0, 1), blewFuse);
    await moveAll(store);
    await resume(store, batch);
    await store.settle(jobs.slice(1, 2), blewFuse);
    t.match(await fuses(store), [{ state: 'resumed' }]);
    t.same(await states(store), ['ready', 'ready', 'running', 'ready', 'ready']);
    const again = (await store.claim(1)).jobs;
    await store.settle(again, blewFuse);
    t.match(await fuses(store), [{ state: 'holding', job_id: ids[0], resumed: false }]);
    t.same((await store.claim(5)).jobs, []);
    await store.settle(jobs.slice(2), blewFuse);
    await moveAll(store);
    t.same(await states(store), Array(5).fill('held fuse'));
  },
);

t.test('a fuse that blows while a resume is under way stops the resume', async (t) => {
  const store = await setup(t);
  await store.addJobs({ count: 6 });
  const batch = await batchOf(store, (await jobIds(store))[0]!);
  await store.settle((await store.claim(1)).jobs, blewFuse);
  await moveAll(store);
  await markResumed(store.database, batch);
  const [move] = await findFuseMoves(store.database, batch, 1);
  const first = await moveBehindFuse(store.database, move!, null, 2);
  t.match(first, { moved: 2, after: String });
  await store.settle((await store.claim(1)).jobs, blewFuse);
  t.same(
    await moveBehindFuse(store.database, move!, first.after, 2),
    { moved: 0, after: null },
    'another has taken its place',
  );
  t.match(await fuses(store), [{ state: 'holding' }]);
  await moveAll(store);
  t.same(await states(store), Array(6).fill('held fuse'));
});

t.test(
  'a job that a person has sent on its way passes the fuse; where it is blewFuse too, others like it are stopped',
  async (t) => {
    const store = await setup(t);
    await store.addJobs({ count: 4 });
    const ids = await jobIds(store);
    await store.settle((await store.claim(1)).jobs, blewFuse);
    await moveAll(store);
    await retryJobs(store.database, { tenant: 'default', jobIds: ids.slice(1, 3), from: ['held'], freshKey: false });
    t.same(await states(store), ['held fuse', 'ready', 'ready', 'held fuse']);
    const one = (await store.claim(1)).jobs;
    t.same(idsOf(one), [ids[1]]);
    await store.settle(one, retried);
    t.equal((await states(store))[1], 'scheduled', 'and goes on by itself');
    await store.settle((await store.claim(1)).jobs, blewFuse);
    await moveAll(store);
    t.same(await states(store), Array(4).fill('held fuse'));
    t.match(await fuses(store), [{ job_id: ids[2] }], 'the later answer is the evidence');
  },
);

t.test('a fifo lane waits for its head that a fuse holds, and goes on in its order', async (t) => {
  const store = await setup(t);
  await store.putQueue('line', { ordering: 'fifo' });
  await store.addJobs({ count: 2, queue: 'line' });
  await store.addJobs({ count: 1, queue: 'line' });
  const ids = await jobIds(store);
  await store.settle((await store.claim(1)).jobs, blewFuse);
  t.same((await store.claim(3)).jobs, []);
  await moveAll(store);
  t.same((await store.claim(3)).jobs, []);
  await resume(store, await batchOf(store, ids[0]!));
  for (const id of ids) {
    const { jobs } = await store.claim(3);
    t.same(idsOf(jobs), [id]);
    await store.settle(jobs);
  }
});

t.test(
  'a batch that is called off while a fuse holds it, or is about to, or while it resumes, is cancelled',
  async (t) => {
    for (const when of ['held', 'holding', 'resuming'] as const) {
      const store = await setup(t);
      await store.addJobs({ count: 5 });
      const batch = await batchOf(store, (await jobIds(store))[0]!);
      const { jobs } = await store.claim(2);
      await store.settle(jobs.slice(0, 1), blewFuse);
      if (when !== 'holding') await moveAll(store);
      if (when === 'resuming') await markResumed(store.database, batch);
      await markBatchCancelled(store.database, 'default', batch);
      t.equal(await moveAll(store), 0, when);
      await cancelBatchJobs(store.database, batch, null, 100);
      await store.settle(jobs.slice(1), blewFuse);
      t.same((await store.claim(5)).jobs, []);
      t.same(await states(store), Array(5).fill('cancelled'), when);
    }
  },
);

t.test(
  'a change of where calls go takes those that may have had an effect out of what a resume brings back',
  async (t) => {
    const store = await setup(t);
    await store.addJobs({ count: 3 });
    const batch = await batchOf(store, (await jobIds(store))[0]!);
    const { jobs } = await store.claim(2);
    await store.settle(jobs.slice(1), retried);
    await store.settle(jobs.slice(0, 1), blewFuse);
    await moveAll(store);
    await inTransaction(store.database, (client) => moveTarget(client, 'api'));
    t.same(await states(store), ['held fuse', 'held upstream_changed', 'held fuse']);
    await resume(store, batch);
    t.same(await states(store), ['ready', 'held upstream_changed', 'ready']);
  },
);

t.test(
  'blows, claims, returns and moves at once: in the end all that is left of the batch is held, and nothing of another',
  async (t) => {
    const store = await setup(t, { max: 8 });
    const count = 400;
    await store.addJobs({ count });
    await store.addJobs({ count });
    const [first] = await jobIds(store);
    const batch = await batchOf(store, first!);
    const workers = await Promise.all(Array.from({ length: 4 }, () => newWorker(store.database)));
    let calls = 0;
    let blown = false;
    const work = async (worker: string, most: number) => {
      // However long cooldowns and probes hold the calls up, nobody leaves before the fuse has blown.
      for (let idle = 0; idle < most || !blown; ) {
        const { jobs } = await store.claim(5, worker);
        if (jobs.length === 0) {
          idle += 1;
          await systemClock.sleep(1);
        }
        for (const job of jobs) {
          const own = job.batchId === batch;
          calls += own ? 1 : 0;
          const ends =
            own && calls > 20 ? [blewFuse, throttledFor(1), retried, { ...blewFuse }] : [{}, throttledFor(1)];
          const end = ends[Math.floor(Math.random() * ends.length)]!;
          await store.settle([job], end, worker);
          blown ||= end.next === blewFuse.next;
        }
        if (Math.random() < 0.2) await moveAll(store, 50);
      }
    };
    await Promise.all(workers.map((worker) => work(worker, 20)));
    await moveAll(store, 50);
    const own = (await states(store)).slice(0, count);
    t.same([...new Set(own)].sort(), ['held fuse', 'succeeded']);
    t.ok(own.filter((state) => state === 'held fuse').length > count / 2);
    t.notOk((await states(store)).slice(count).includes('held fuse'));
    await resume(store, batch);
    t.same(
      [...new Set((await states(store)).slice(0, count))].sort().filter((state) => state !== 'scheduled'),
      ['ready', 'succeeded'],
    );
  },
);
