/** The receiver's evidence ends a job wherever it is: one place, one epoch on, and nobody waits for it any longer. */
import t from 'tap';
import type { Database } from '../../src/postgres/database.ts';
import { putReceipt, type ReceiptEvidence } from '../../src/postgres/put-receipt.ts';
import { archiveReceipts } from '../../src/postgres/receipts.ts';
import { inTransaction } from '../../src/postgres/transaction.ts';
import { type Claims, newWorker, throttledFor, useClaims } from '../support/claims.ts';
import { eventually } from '../support/eventually.ts';

const evidence: ReceiptEvidence = {
  status: 201,
  excerpt: 'done',
  truncated: false,
  sha256: Buffer.alloc(32, 1),
  note: 'seen in the ledger',
};
const put = (database: Database, key: string) => putReceipt(database, 'default', key, evidence);

const held = { next: { kind: 'held', reason: 'outcome_unknown' }, outcome: 'unknown', status: null } as const;
const later = { next: { kind: 'scheduled', delayMs: 60_000, reason: null }, outcome: 'error', status: 500 } as const;

/** Where each job is. */
function places({ database }: Claims): Promise<{ key: string; place: string; epoch: number }[]> {
  return database.query(
    `select j.idempotency_key as key, p.place, p.epoch from (
       select job_id, 'ready' as place, epoch from sluice.ready_jobs
       union all select job_id, 'running', epoch from sluice.running_jobs
       union all select job_id, state, epoch from sluice.parked_jobs
       union all select job_id, state || ' ' || coalesce(evidence, '-'), epoch from sluice.done_jobs) p
       join sluice.jobs j on j.id = p.job_id order by j.seq`,
  );
}

t.test('a job in any unfinished state ends as succeeded, in one place and under a new epoch', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.addJobs({ count: 4 });
  await store.addJobs({ count: 1, runAt: `clock_timestamp() + interval '1 hour'` });
  const { jobs } = await store.claim(3);
  await store.settle(jobs.slice(0, 1), later);
  await store.settle(jobs.slice(1, 2), held);
  t.same(await places(store), [
    { key: 'k1', place: 'scheduled', epoch: 1 },
    { key: 'k2', place: 'held', epoch: 1 },
    { key: 'k3', place: 'running', epoch: 1 },
    { key: 'k4', place: 'ready', epoch: 0 },
    { key: 'k5', place: 'scheduled', epoch: 0 },
  ]);
  for (const key of ['k1', 'k2', 'k3', 'k4', 'k5']) t.same(await put(store.database, key), { kind: 'ended' }, key);
  t.same(await places(store), [
    { key: 'k1', place: 'succeeded receipt', epoch: 2 },
    { key: 'k2', place: 'succeeded receipt', epoch: 2 },
    { key: 'k3', place: 'succeeded receipt', epoch: 2 },
    { key: 'k4', place: 'succeeded receipt', epoch: 1 },
    { key: 'k5', place: 'succeeded receipt', epoch: 1 },
  ]);
  t.same((await store.claim(10)).jobs, [], 'none of them runs any more');
});

t.test('a key that is not known, of another tenant too, and a job that has ended are told apart', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.addJobs({ count: 3 });
  const { jobs } = await store.claim(2);
  await store.settle(jobs.slice(0, 1));
  await store.settle(jobs.slice(1), {
    next: { kind: 'done', state: 'failed', reason: 'rejected_by_upstream', evidence: 'response' },
    status: 422,
  });
  t.same(await put(store.database, 'k0'), { kind: 'unknown_key' });
  t.same(await putReceipt(store.database, 'other', 'k3', evidence), { kind: 'unknown_key' });
  const before = await places(store);
  t.same(await put(store.database, 'k1'), { kind: 'ended_before', jobId: jobs[0]!.jobId, state: 'succeeded' });
  t.same(await put(store.database, 'k2'), { kind: 'ended_before', jobId: jobs[1]!.jobId, state: 'failed' });
  t.same(await places(store), before, 'and nothing has changed');
  t.same(await put(store.database, 'k3'), { kind: 'ended' });
  t.match(await put(store.database, 'k3'), { kind: 'ended_before', state: 'succeeded' }, 'put twice');
});

t.test('a job whose rows are gone has ended', async (t) => {
  const store = await useClaims(t, { breaks: ['batch_counts'] });
  await store.putUpstream('api');
  await store.addJobs({ count: 1 });
  const { jobs } = await store.claim(1);
  await store.settle(jobs);
  await inTransaction(store.database, async (client) => {
    await archiveReceipts(client, [jobs[0]!.jobId]);
    await client.query('delete from sluice.done_jobs');
    await client.query('delete from sluice.jobs');
  });
  t.same(await put(store.database, 'k1'), { kind: 'ended_before', jobId: jobs[0]!.jobId, state: 'succeeded' });
});

t.test('a running job: its worker can write nothing, and what it saw is kept with its attempt', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.addJobs({ count: 2 });
  const { jobs } = await store.claim(2);
  await put(store.database, 'k1');
  t.same(await store.settle(jobs.slice(0, 1), later), new Set(), 'the epoch has moved on');
  const [attempt] = await store.database.query(
    `select number, epoch, worker_id, outcome, charged, status, late_outcome, late_status, late_at is not null as told,
            excerpt, sent_at > started_at as sent
       from sluice.attempts where job_id = $1`,
    [jobs[0]!.jobId],
  );
  t.same(attempt, {
    number: 1,
    epoch: 1,
    worker_id: store.workerId,
    outcome: 'unknown',
    charged: 'none',
    status: null,
    late_outcome: 'error',
    late_status: 500,
    told: true,
    excerpt: 'ok',
    sent: true,
  });
  t.same(await store.settle(jobs), new Set([jobs[1]!.jobId]), 'told again, with another job: the control');
  t.match(await places(store), [{ place: 'succeeded receipt' }, { place: 'succeeded response' }]);
  const [done] = await store.database.query(`select calls, attempts_used, status, outcome_unknown from sluice.done_jobs
    where evidence = 'receipt'`);
  t.same(done, { calls: 1, attempts_used: 0, status: 201, outcome_unknown: false });
});

t.test('a worker that only asked about an earlier call has made no attempt', async (t) => {
  for (const [definition, attempts] of [
    [{ reconcile: { path: '/{key}' } }, 1],
    [{}, 2],
  ] as const) {
    const store = await useClaims(t);
    await store.putUpstream('api', definition);
    await store.addJobs({ count: 1 });
    await store.settle((await store.claim(1)).jobs, { ...held, next: { kind: 'ready' }, outcomeUnknown: true });
    t.equal((await store.claim(1)).jobs[0]?.outcomeUnknown, true);
    await put(store.database, 'k1');
    const rows = await store.database.query('select 1 from sluice.attempts');
    t.equal(rows.length, attempts, JSON.stringify(definition));
  }
});

t.test('a FIFO lane goes on when its head, running or parked, is ended', async (t) => {
  for (const head of ['running', held, later] as const) {
    const store = await useClaims(t);
    await store.putUpstream('api');
    await store.putQueue('line', { ordering: 'fifo' });
    await store.addJobs({ count: 3, queue: 'line' });
    const { jobs } = await store.claim(10);
    t.equal(jobs.length, 1, 'one at a time');
    if (head !== 'running') await store.settle(jobs, head);
    t.equal((await store.claim(10)).jobs.length, 0, 'the head holds the lane');
    await put(store.database, 'k1');
    t.same(
      (await store.claim(10)).jobs.map((job) => job.idempotencyKey),
      ['k2'],
    );
    await put(store.database, 'k3');
    t.equal((await store.claim(10)).jobs.length, 0, 'the end of one that was not the head opens nothing');
  }
});

t.test('a place under max_in_flight is free at once, fleet-wide and of a partition', async (t) => {
  for (const by_partition of [false, true]) {
    const store = await useClaims(t, { max: 1 });
    await store.putUpstream('api');
    await store.putLimit('two', { limit: null, max_in_flight: 2, by_partition, upstreams: ['api'] });
    await store.addJobs({ count: 5, partitionKey: 'a' });
    await store.setClock(await store.clockUs());
    const { jobs } = await store.claim(10);
    t.equal(jobs.length, 2);
    t.equal((await store.claim(10)).jobs.length, 0, 'both places are taken');
    await put(store.database, jobs[0]!.idempotencyKey);
    t.equal((await store.claim(10)).jobs.length, 1, 'one is free');
    t.equal((await store.claim(10)).jobs.length, 0);
  }
});

t.test('a probe that a receipt ends frees its place in the ramp', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.addJobs({ count: 5 });
  const now = await store.clockUs();
  await store.setClock(now);
  await store.settle((await store.claim(1)).jobs, throttledFor(1000));
  await store.setClock(now + 1_100_000);
  const probe = (await store.claim(10)).jobs;
  t.equal(probe.length, 1);
  t.equal((await store.claim(10)).jobs.length, 0);
  await put(store.database, probe[0]!.idempotencyKey);
  t.equal((await store.claim(10)).jobs.length, 1, 'one again: a receipt says nothing about the rate');
});

t.test('a job that is just being moved is waited for, and ended where it went', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.addJobs({ count: 3 });
  const waits = () =>
    store.database.query(
      `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
    );
  /** Puts a receipt between the move and its commit. */
  const putDuring = async (key: string, move: string, values: readonly unknown[]) => {
    let ended: ReturnType<typeof put> | undefined;
    await inTransaction(store.database, async (client) => {
      await client.query(move, values);
      ended = put(store.database, key);
      await eventually('the receipt waits for the mover', async () => (await waits()).length === 1);
    });
    return ended;
  };
  t.same(
    await putDuring('k1', 'select count(*) from sluice.claim_jobs($1::uuid, 1)', [store.workerId]),
    { kind: 'ended' },
    'claimed meanwhile',
  );
  const { jobs } = await store.claim(1);
  t.equal(jobs[0]!.idempotencyKey, 'k2');
  const settle = `
    with gone as (delete from sluice.running_jobs where job_id = $1::uuid returning job_id, epoch)
    insert into sluice.done_jobs (job_id, state, evidence, ended_at, epoch)
    select job_id, 'succeeded', 'response', clock_timestamp(), epoch from gone`;
  t.match(
    await putDuring('k2', settle, [jobs[0]!.jobId]),
    { kind: 'ended_before', state: 'succeeded' },
    'settled meanwhile',
  );
  t.match(await places(store), [
    { key: 'k1', place: 'succeeded receipt', epoch: 2 },
    { key: 'k2', place: 'succeeded response', epoch: 1 },
    { key: 'k3', place: 'ready' },
  ]);
});

t.test('receipts against claims and settles, all at once: each job ends once, none is lost', async (t) => {
  const store = await useClaims(t, { max: 8 });
  await store.putUpstream('api');
  await store.putQueue('line', { ordering: 'fifo' });
  await store.addJobs({ count: 60 });
  await store.addJobs({ count: 20, queue: 'line' });
  // From the other end than the claims, so that they meet.
  const keys = Array.from({ length: 80 }, (_, index) => `k${80 - index}`);
  let settled = 0;
  const work = async () => {
    const worker = await newWorker(store.database);
    for (let idle = 0; idle < 3; ) {
      const { jobs } = await store.claim(3, worker);
      idle = jobs.length === 0 ? idle + 1 : 0;
      const again = jobs.filter((_, index) => index % 3 === 1);
      const ended = jobs.filter((job) => !again.includes(job));
      const { size } = await store.settle(ended, {}, worker);
      settled += size;
      if (again.length > 0)
        await store.settle(again, { next: { kind: 'ready' }, outcome: 'error', status: 500 }, worker);
    }
  };
  const receive = async () => {
    let ended = 0;
    for (const key of keys) if ((await put(store.database, key)).kind === 'ended') ended += 1;
    return ended;
  };
  const [received] = await Promise.all([receive(), work(), work(), work()]);
  for (const { key, place } of await places(store)) t.match(place, /^succeeded/, key);
  t.equal(received + settled, 80, `${received} by receipt, ${settled} by response`);
  t.ok(received > 0);
});
