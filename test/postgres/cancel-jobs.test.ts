/** Calling off: only what waits ends, whatever moves meanwhile; what waited behind it goes on. */
import t, { type Test } from 'tap';
import { cancelBatchJobs, cancelJobs, markBatchCancelled } from '../../src/postgres/cancel-jobs.ts';
import { settleJobs } from '../../src/postgres/settle-jobs.ts';
import { inTransaction } from '../../src/postgres/transaction.ts';
import { type Claims, jobIds, settleRow, throttledFor, useClaims, waitsForALock } from '../support/claims.ts';

async function setup(t: Test, options: { max?: number } = {}): Promise<Claims> {
  const store = await useClaims(t, options);
  await store.putUpstream('api');
  return store;
}

/** All jobs in order of acceptance. */
async function states({ database }: Claims): Promise<Record<string, string>> {
  const rows = await database.query<{ id: string; state: string }>(
    `select job_id as id, 'ready' as state from sluice.ready_jobs union all select job_id, 'running' from sluice.running_jobs
     union all select job_id, state from sluice.parked_jobs union all select job_id, state from sluice.done_jobs`,
  );
  return Object.fromEntries(rows.map(({ id, state }) => [id, state]));
}

async function batchOf({ database }: Claims, jobId: string): Promise<string> {
  const [row] = await database.query<{ id: string }>('select batch_id as id from sluice.jobs where id = $1', [jobId]);
  return row!.id;
}

t.test(
  'what waits is cancelled, under a new epoch and with what it has spent; what runs or has ended is not',
  async (t) => {
    const store = await setup(t);
    await store.addJobs({ count: 5 });
    const [ended, running, scheduled, held, ready] = (await jobIds(store)) as [string, string, string, string, string];
    const { jobs } = await store.claim(4);
    const job = (id: string) => jobs.filter(({ jobId }) => jobId === id);
    await store.settle(job(ended));
    await store.settle(job(scheduled), {
      next: { kind: 'scheduled', delayMs: 60_000, reason: null },
      outcome: 'error',
      status: 500,
    });
    await store.settle(job(held), {
      next: { kind: 'held', reason: 'outcome_unknown' },
      outcome: 'unknown',
      status: null,
      outcomeUnknown: true,
    });
    const cancelled = await cancelJobs(store.database, [ended, running, scheduled, held, ready]);
    t.same(cancelled.sort(), [scheduled, held, ready].sort());
    t.same(await states(store), {
      [ended]: 'succeeded',
      [running]: 'running',
      [scheduled]: 'cancelled',
      [held]: 'cancelled',
      [ready]: 'cancelled',
    });
    t.same(
      await store.database.query(
        'select reason, epoch, calls, attempts_used, outcome_unknown from sluice.done_jobs where job_id = any ($1) order by job_id = $2',
        [[scheduled, held], held],
      ),
      [
        { reason: 'cancelled', epoch: 2, calls: 1, attempts_used: 1, outcome_unknown: false },
        { reason: 'cancelled', epoch: 2, calls: 1, attempts_used: 1, outcome_unknown: true },
      ],
    );
    t.same(await cancelJobs(store.database, [ended, running, scheduled, held, ready]), [], 'once');
  },
);

t.test('a claim that has the job is waited for, and keeps it', async (t) => {
  const store = await setup(t);
  await store.addJobs({ count: 1 });
  const [id] = (await jobIds(store)) as [string];
  let cancelling: Promise<string[]> | undefined;
  await inTransaction(store.database, async (client) => {
    await client.query('select * from sluice.claim_jobs($1, 1)', [store.workerId]);
    cancelling = cancelJobs(store.database, [id]);
    await waitsForALock(store);
  });
  t.same(await cancelling, []);
  t.same(await states(store), { [id]: 'running' });
});

t.test('a scheduled job that falls due while it is cancelled is cancelled', async (t) => {
  const store = await setup(t);
  await store.addJobs({ count: 1, runAt: `clock_timestamp() - interval '1 second'` });
  const [id] = (await jobIds(store)) as [string];
  let cancelling: Promise<string[]> | undefined;
  await inTransaction(store.database, async (client) => {
    await client.query('select sluice.promote_due_jobs(clock_timestamp(), 10)');
    cancelling = cancelJobs(store.database, [id]);
    await waitsForALock(store);
  });
  t.same(await cancelling, [id]);
  t.same(await states(store), { [id]: 'cancelled' });
});

t.test('the head of a fifo lane that is cancelled while it waits for its time lets the next one go', async (t) => {
  const store = await setup(t);
  await store.putQueue('line', { ordering: 'fifo' });
  await store.addJobs({ count: 2, queue: 'line' });
  const [head, next] = (await jobIds(store)) as [string, string];
  await store.settle((await store.claim(1)).jobs, {
    next: { kind: 'scheduled', delayMs: 3_600_000, reason: null },
    outcome: 'error',
    status: 500,
  });
  const blocked = await store.claim(1);
  t.same(blocked.jobs, [], 'the head holds the lane');
  t.same(await cancelJobs(store.database, [head]), [head]);
  t.same(
    (await store.claim(1)).jobs.map(({ jobId }) => jobId),
    [next],
  );
});

t.test('a dear head that its lane saved up for, once cancelled, is not saved up for any longer', async (t) => {
  const store = await setup(t, { max: 1 });
  await store.putLimit('ten', { limit: 10, per: 60, upstreams: ['api'] });
  await store.addJobs({ count: 5 });
  await store.addJobs({ count: 1, cost: 8 });
  await store.addJobs({ count: 1 });
  const ids = await jobIds(store);
  t.equal((await store.claimAll(10)).length, 5);
  t.same((await store.claim(10)).jobs, [], 'the window is kept for the dear one');
  await cancelJobs(store.database, [ids[5]!]);
  t.same(
    (await store.claim(10)).jobs.map(({ jobId }) => jobId),
    [ids[6]],
  );
});

t.test('a batch is cancelled in steps, and touches no other', async (t) => {
  const store = await setup(t);
  await store.addJobs({ count: 7 });
  await store.addJobs({ count: 2 });
  const ids = await jobIds(store);
  const batch = await batchOf(store, ids[0]!);
  t.equal(await markBatchCancelled(store.database, 'other', batch), false, 'only by its tenant');
  t.equal(await markBatchCancelled(store.database, 'default', batch), true);
  let steps = 0;
  for (let after: string | null = null; steps === 0 || after !== null; steps += 1) {
    after = await cancelBatchJobs(store.database, batch, after, 3);
  }
  t.equal(steps, 3);
  const now = await states(store);
  t.same(
    ids.map((id) => now[id]),
    [...Array<string>(7).fill('cancelled'), 'ready', 'ready'],
  );
});

t.test('what runs when its batch is cancelled ends by itself, or is cancelled where it would go on', async (t) => {
  const store = await setup(t);
  await store.addJobs({ count: 5 });
  await store.addJobs({ count: 1 });
  const ids = (await jobIds(store)) as [string, string, string, string, string, string];
  const { jobs } = await store.claim(6);
  const job = (id: string) => jobs.find(({ jobId }) => jobId === id)!;
  await markBatchCancelled(store.database, 'default', await batchOf(store, ids[0]));
  const again = { next: { kind: 'scheduled', delayMs: 1_000, reason: null }, outcome: 'error', status: 500 } as const;
  await store.settle([job(ids[0])]);
  await store.settle([job(ids[1])], again);
  await store.settle([job(ids[2])], throttledFor(1_000));
  await store.settle([job(ids[3])], { next: { kind: 'held', reason: 'outcome_unknown' }, outcomeUnknown: true });
  await store.settle([job(ids[5])], again);
  const now = await states(store);
  t.same(
    ids.map((id) => now[id]),
    ['succeeded', 'cancelled', 'cancelled', 'held', 'running', 'scheduled'],
    'the last one is of another batch',
  );
  t.same(
    await store.database.query('select number, outcome from sluice.attempts where job_id = $1', [ids[1]]),
    [{ number: 1, outcome: 'error' }],
    'its call is on record',
  );
});

t.test(
  'what comes back days after its batch was cancelled is cancelled: its worker was away, and so were all others',
  async (t) => {
    const store = await setup(t);
    await store.addJobs({ count: 2 });
    const [id] = (await jobIds(store)) as [string];
    const { jobs } = await store.claim(2);
    await markBatchCancelled(store.database, 'default', await batchOf(store, id));
    await store.database.query(`update sluice.batches set cancelled_at = cancelled_at - interval '9 days'`);
    await store.database.query(`update sluice.running_jobs set admitted_at = admitted_at - interval '9 days'`);
    await store.settle(jobs, { next: { kind: 'ready' }, outcome: 'unknown', status: null, outcomeUnknown: true });
    t.same(Object.values(await states(store)), ['cancelled', 'cancelled']);
  },
);

t.test('a settle in progress is waited for by who marks its batch', async (t) => {
  const store = await setup(t);
  await store.addJobs({ count: 1 });
  const [id] = (await jobIds(store)) as [string];
  const batch = await batchOf(store, id);
  const { jobs } = await store.claim(1);
  let marking: Promise<boolean> | undefined;
  let isOver = false;
  await inTransaction(store.database, async (client) => {
    const row = settleRow(jobs[0]!, { next: { kind: 'ready' }, outcome: null, permitUnused: true });
    await settleJobs({ ...store.database, query: client.query }, store.workerId, [row]);
    marking = markBatchCancelled(store.database, 'default', batch).finally(() => {
      isOver = true;
    });
    await waitsForALock(store);
    t.equal(isOver, false);
  });
  t.equal(await marking, true);
  t.same(await states(store), { [id]: 'ready' });
  await cancelBatchJobs(store.database, batch, null, 10);
  t.same(await states(store), { [id]: 'cancelled' }, 'and its job found by the steps after it');
});
