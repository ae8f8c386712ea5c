/** What a worker does with what it claimed when time, lease, database or process turn against it. */
import t from 'tap';
import type { Sender } from '../../src/outbound/send-request.ts';
import { inTransaction } from '../../src/postgres/transaction.ts';
import type { FaultPoint, FaultPoints } from '../../src/system/fault-points.ts';
import { type Claims, useClaims } from '../support/claims.ts';
import { eventually } from '../support/eventually.ts';
import { useUpstream } from '../support/upstream.ts';
import { behind, Gate, startWorker } from '../support/worker.ts';

async function done({ database }: Claims): Promise<{ state: string; attempts_used: number; calls: number }[]> {
  return database.query('select state, attempts_used, calls from sluice.done_jobs');
}

async function storeWithUpstream(t: Parameters<typeof useClaims>[0], url: string): Promise<Claims> {
  const store = await useClaims(t);
  await store.putUpstream('api', { base_url: url, allow_private_addresses: true, retry: { base_ms: 20, cap_ms: 50 } });
  return store;
}

t.test(
  'a worker stopped between claim and send lets its permits go: the bound holds, nothing is spent, the jobs run later',
  async (t) => {
    const upstream = await useUpstream(t);
    const store = await storeWithUpstream(t, upstream.url);
    // On a busy machine the upstream, in this process, may see a call this much later than it was sent.
    await store.putLimit('all', { limit: 5, per: 1, slack_ms: 250, upstreams: ['api'] });
    await store.addJobs({ count: 15 });
    const gate = new Gate();
    await startWorker(t, { connectionString: store.connectionString, concurrency: 5, around: behind(gate) });
    await eventually('the first five are claimed and stopped', () => gate.waiting === 5);
    // Another worker uses the windows that follow, while the first still holds what it was admitted three windows ago.
    await startWorker(t, { connectionString: store.connectionString });
    await eventually('the other worker has done the other ten', async () => (await done(store)).length === 10);
    gate.open();
    await eventually('all are done', async () => (await done(store)).length === 15);
    t.ok(upstream.log.maxStartsInAny(1_000) <= 5, `at most ${upstream.log.maxStartsInAny(1_000)} in any second`);
    t.ok((await done(store)).every((job) => job.state === 'succeeded' && job.attempts_used === 1 && job.calls === 1));
    t.equal(upstream.log.doubles().length, 0);
  },
);

t.test(
  "a worker that lost its lease in mid-call writes nothing: the result is the other one's, both attempts are on record",
  async (t) => {
    const upstream = await useUpstream(t, { rules: [{ times: 1, answer: { gate: 'slow' } }] });
    const store = await storeWithUpstream(t, upstream.url);
    await store.addJobs({ count: 1 });
    // With its one slot taken it has no reason to ask for jobs, and does not learn that its lease is over.
    const first = await startWorker(t, { connectionString: store.connectionString, concurrency: 1, leaseSeconds: 60 });
    await eventually('the first worker is in mid-call', () => upstream.log.requests.length === 1);
    // As if it had been suspended for longer than its lease: it cannot know.
    await store.database.query(
      `update sluice.workers set lease_expires_at = clock_timestamp() - interval '1 second' where id = $1`,
      [first.workerId],
    );
    const second = await startWorker(t, { connectionString: store.connectionString });
    await eventually('the second worker has finished it', async () => (await done(store)).length === 1);
    upstream.release('slow');
    const attempts = await eventually('the late answer is kept as evidence', async () => {
      const rows = await store.database.query<{ worker_id: string; outcome: string; late_outcome: string | null }>(
        'select worker_id, outcome, late_outcome from sluice.attempts order by number',
      );
      return rows[0]?.late_outcome !== null && rows;
    });
    t.same(attempts, [
      { worker_id: first.workerId, outcome: 'unknown', late_outcome: 'success' },
      { worker_id: second.workerId, outcome: 'success', late_outcome: null },
    ]);
    t.same(await done(store), [{ state: 'succeeded', attempts_used: 2, calls: 2 }]);
    t.equal(upstream.log.doubles().length, 0, 'one effect');
  },
);

t.test('outcomes survive the loss of every connection: a success is never called again, never a failure', async (t) => {
  const upstream = await useUpstream(t, { rules: [{ answer: { gate: 'all' } }] });
  const store = await storeWithUpstream(t, upstream.url);
  await store.addJobs({ count: 6 });
  await startWorker(t, { connectionString: store.connectionString });
  await eventually('six calls are in flight', () => upstream.log.requests.length === 6);
  const cut = () =>
    store.database.query(
      `select pg_terminate_backend(pid) from pg_stat_activity
        where application_name = 'worker' and datname = current_database()`,
    );
  await cut();
  upstream.release('all');
  await cut();
  await eventually('all are done', async () => (await done(store)).length === 6);
  t.ok((await done(store)).every((job) => job.state === 'succeeded' && job.calls === 1));
  t.equal(upstream.log.requests.length, 6);
});

t.test('jobs of a claim whose answer was lost go back untouched and run', async (t) => {
  const upstream = await useUpstream(t);
  const store = await storeWithUpstream(t, upstream.url);
  const worker = await startWorker(t, { connectionString: store.connectionString });
  await store.addJobs({ count: 3, runAt: `clock_timestamp() + interval '1 hour'` });
  // Claimed in its name, and it never hears of it.
  await store.database.query(
    `with gone as (delete from sluice.parked_jobs returning *)
     insert into sluice.running_jobs (job_id, lane_id, group_id, rank, seq, cost, eligible_at, worker_id, admitted_at, epoch)
     select g.job_id, g.lane_id, l.group_id, g.rank, g.seq, g.cost, clock_timestamp(), $1, clock_timestamp(), 1
       from gone g join sluice.lanes l on l.id = g.lane_id`,
    [worker.workerId],
  );
  await inTransaction(store.database, async (client) => {
    // A change of definitions under way: a claim waits for it, and is cut off then.
    await client.query('select pg_advisory_xact_lock(7305001)');
    await eventually('a claim to be cut off', async () => {
      worker.wake();
      // Within a transaction the first look at who is connected is remembered.
      await client.query('select pg_stat_clear_snapshot()');
      const cut = await client.query(
        `select pg_terminate_backend(pid) from pg_stat_activity
          where application_name = 'worker' and datname = current_database() and wait_event = 'advisory'`,
      );
      return cut.length > 0;
    });
  });
  await eventually('all are done', async () => (await done(store)).length === 3);
  t.ok((await done(store)).every((job) => job.attempts_used === 1 && job.calls === 1));
});

t.test(
  'a drain claims nothing more and writes what was in flight; over the grace it hands back as unknown',
  async (t) => {
    const upstream = await useUpstream(t, { rules: [{ times: 4, answer: { gate: 'all' } }] });
    const store = await storeWithUpstream(t, upstream.url);
    await store.addJobs({ count: 10 });
    const first = await startWorker(t, { connectionString: store.connectionString, concurrency: 2 });
    await eventually('two are in flight', () => upstream.log.requests.length === 2);
    const drained = first.drain(60_000);
    upstream.release('all');
    await drained;
    t.same(
      (await done(store)).map((job) => job.state),
      ['succeeded', 'succeeded'],
    );
    t.equal(upstream.log.requests.length, 2, 'no new claims');

    const second = await startWorker(t, { connectionString: store.connectionString, concurrency: 2 });
    upstream.script({ times: 2, answer: { gate: 'more' } });
    await eventually('two more are in flight', () => upstream.log.requests.length === 4);
    await second.drain(0);
    const unknown = await store.database.query('select outcome, charged from sluice.attempts where outcome <> $1', [
      'success',
    ]);
    t.same(unknown, [
      { outcome: 'unknown', charged: 'attempt' },
      { outcome: 'unknown', charged: 'attempt' },
    ]);
    const [left] = await store.database.query<{ n: number }>('select count(*)::int as n from sluice.running_jobs');
    t.equal(left!.n, 0, 'others can take them at once');
    upstream.release('more');
    await startWorker(t, { connectionString: store.connectionString });
    await eventually('all are done', async () => (await done(store)).length === 10);
    t.equal(upstream.log.doubles().length, 0);
  },
);

/** Holds up everything at this point. */
function holdUp(held: FaultPoint, gate: Gate): FaultPoints {
  return { pass: (point) => (point === held ? gate.pass() : undefined) };
}

t.test('a claim that is answered after the end was told starts no call: its jobs go back untouched', async (t) => {
  const upstream = await useUpstream(t);
  const store = await storeWithUpstream(t, upstream.url);
  await store.addJobs({ count: 3 });
  const gate = new Gate();
  const faultPoints = holdUp('claim.after', gate);
  const worker = await startWorker(t, { connectionString: store.connectionString, faultPoints });
  await eventually('jobs are leased', () => gate.waiting === 1);
  const drained = worker.drain(10_000);
  gate.open();
  await drained;
  t.same(await store.database.query('select calls from sluice.ready_jobs'), [{ calls: 0 }, { calls: 0 }, { calls: 0 }]);
  t.equal(upstream.log.requests.length, 0);
});

for (const [what, point] of [
  ['claim', 'claim.after'],
  ['write', 'settle.before'],
  ['renewal', 'renew.before'],
  ['round of maintenance', 'reaper.before_settle'],
] as const) {
  // Before its time is over, 35 s at the most, a connection that has fallen silent looks like one that is slow.
  t.test(`a ${what} that gets no answer does not hold up the end of a worker`, async (t) => {
    const upstream = await useUpstream(t);
    const store = await storeWithUpstream(t, upstream.url);
    await store.addJobs({ count: 1 });
    if (point === 'reaper.before_settle') {
      await store.claim(1);
      await store.database.query(
        `update sluice.workers set lease_expires_at = clock_timestamp() - interval '1 second'`,
      );
    }
    const gate = new Gate();
    const faultPoints = holdUp(point, gate);
    const worker = await startWorker(t, { connectionString: store.connectionString, leaseSeconds: 1, faultPoints });
    await eventually('it waits', () => gate.waiting === 1);
    await worker.drain(0);
    t.ok(gate.waiting >= 1, 'it ends while that is under way');
    gate.open();
  });
}

t.test('a call that breaks the code that makes it ends by max_attempts, and the others go on', async (t) => {
  const upstream = await useUpstream(t);
  const store = await storeWithUpstream(t, upstream.url);
  await store.putUpstream('api', {
    base_url: upstream.url,
    allow_private_addresses: true,
    retry: { max_attempts: 2, base_ms: 20, cap_ms: 50 },
  });
  await store.addJobs({ count: 5 });
  const breaksAt = (sender: Sender): Sender => ({
    async send(request, options) {
      if (request.headers['idempotency-key'] === 'k3') throw new TypeError('nobody thought of this');
      return sender.send(request, options);
    },
    close: () => sender.close(),
  });
  await startWorker(t, { connectionString: store.connectionString, around: breaksAt });
  await eventually('all have ended', async () => (await done(store)).length === 5);
  const states = await store.database.query<{ key: string; state: string }>(
    'select j.idempotency_key as key, d.state from sluice.done_jobs d join sluice.jobs j on j.id = d.job_id order by 1',
  );
  t.same(
    states.map(({ key, state }) => `${key} ${state}`),
    ['k1 succeeded', 'k2 succeeded', 'k3 failed', 'k4 succeeded', 'k5 succeeded'],
  );
  const attempts = await store.database.query(
    `select a.outcome, a.error from sluice.attempts a join sluice.jobs j on j.id = a.job_id where j.idempotency_key = 'k3'`,
  );
  const unknown = { outcome: 'unknown', error: 'an error of the service itself; its log says more' };
  t.same(attempts, [unknown, unknown]);
});

t.test('a poison job, whose worker dies at each call, ends by max_attempts', async (t) => {
  const upstream = await useUpstream(t, { rules: [{ answer: { gate: 'never' } }] });
  const store = await storeWithUpstream(t, upstream.url);
  await store.putUpstream('api', { base_url: upstream.url, allow_private_addresses: true, retry: { max_attempts: 3 } });
  await store.addJobs({ count: 1 });
  const worker = await startWorker(t, { connectionString: store.connectionString });
  for (let call = 1; call <= 3; call += 1) {
    await eventually(`call ${call}`, () => {
      worker.wake();
      return upstream.log.requests.length === call;
    });
    await store.database.query(`update sluice.workers set lease_expires_at = clock_timestamp() - interval '1 second'`);
    await eventually('it was taken back', async () => {
      const rows = await store.database.query('select 1 from sluice.attempts where number = $1', [call]);
      if (rows.length === 0)
        await store.database.query(
          `update sluice.workers set lease_expires_at = clock_timestamp() - interval '1 second'`,
        );
      else
        await store.database.query(
          `update sluice.workers set lease_expires_at = clock_timestamp() + interval '1 hour'`,
        );
      return rows.length > 0;
    });
  }
  const [job] = await eventually('it ended', async () => {
    const rows = await store.database.query<{ state: string; reason: string }>(
      'select state, reason from sluice.done_jobs',
    );
    return rows.length > 0 && rows;
  });
  t.same(job, { state: 'failed', reason: 'attempts_exhausted' });
});
