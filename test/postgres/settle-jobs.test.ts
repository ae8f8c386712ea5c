/** The settle: fences, places, cooldowns for the fleet, probe and ramp; on a real store with the clock given. */
import t from 'tap';
import { claimJobs } from '../../src/postgres/claim-jobs.ts';
import { findOrphanedJobs } from '../../src/postgres/leases.ts';
import { closeWindow } from '../../src/postgres/steer-rate-windows.ts';
import { inTransaction } from '../../src/postgres/transaction.ts';
import { type Claims, neverLeft, newWorker, throttledFor, useClaims } from '../support/claims.ts';

const second = 1_000_000;

interface StoredCooldown {
  readonly kind: string;
  readonly name: string;
  readonly partition_key: string;
  readonly left_s: number;
  readonly ramp: number | null;
  readonly in_row: number;
  readonly header: string | null;
}

function cooldowns({ database }: Claims): Promise<StoredCooldown[]> {
  return database.query<StoredCooldown>(
    `select kind, name, partition_key, round((extract(epoch from until) - sluice.clock_us() / 1000000.0)::numeric, 3)::float8 as left_s,
            ramp, in_row, header from sluice.cooldowns order by kind, name, partition_key`,
  );
}

async function stateTables({ database }: Claims): Promise<Record<string, number>> {
  const rows = await database.query<{ name: string; n: number }>(
    `select 'ready' as name, count(*)::int as n from sluice.ready_jobs union all
     select 'running', count(*)::int from sluice.running_jobs union all
     select 'parked', count(*)::int from sluice.parked_jobs union all
     select 'done', count(*)::int from sluice.done_jobs`,
  );
  return Object.fromEntries(rows.map((row) => [row.name, row.n]));
}

t.test('every outcome moves its job to exactly one place, with what it spent on record', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.addJobs({ count: 5 });
  const { jobs } = await store.claim(5);
  await store.settle(jobs.slice(0, 1));
  await store.settle(jobs.slice(1, 2), {
    next: { kind: 'scheduled', delayMs: 60_000, reason: null },
    outcome: 'error',
    status: 500,
  });
  await store.settle(jobs.slice(2, 3), {
    next: { kind: 'held', reason: 'outcome_unknown' },
    outcome: 'unknown',
    status: null,
    outcomeUnknown: true,
  });
  await store.settle(jobs.slice(3, 4), {
    next: { kind: 'ready' },
    outcome: null,
    charge: 'none',
    mayHaveHadEffect: false,
  });
  t.same(await stateTables(store), { ready: 1, running: 1, parked: 2, done: 1 });
  const attempts = await store.database.query(
    'select number, outcome, charged, status from sluice.attempts order by job_id = $1 desc, outcome',
    [jobs[0]!.jobId],
  );
  t.same(attempts, [
    { number: 1, outcome: 'success', charged: 'attempt', status: 200 },
    { number: 1, outcome: 'error', charged: 'attempt', status: 500 },
    { number: 1, outcome: 'unknown', charged: 'attempt', status: null },
  ]);
  const again = (await store.claim(5)).jobs;
  t.same(
    again.map(({ jobId, calls, attemptsUsed, epoch }) => ({ jobId, calls, attemptsUsed, epoch })),
    [{ jobId: jobs[3]!.jobId, calls: 0, attemptsUsed: 0, epoch: 2 }],
    'handed back with nothing spent, under a new epoch',
  );
});

t.test(
  'a result is written only by the worker and epoch that hold the job; a late one is kept as evidence',
  async (t) => {
    const store = await useClaims(t);
    await store.putUpstream('api');
    await store.addJobs({ count: 1 });
    const [stalled] = (await store.claim(1)).jobs;
    const other = await newWorker(store.database);
    t.same(await store.settle([stalled!], {}, other), new Set(), 'not by another worker');
    await store.database.query(
      `update sluice.workers set lease_expires_at = clock_timestamp() - interval '1 second' where id = $1`,
      [store.workerId],
    );
    const orphans = await findOrphanedJobs(store.database, 10);
    t.same(
      orphans.map((orphan) => orphan.jobId),
      [stalled!.jobId],
    );
    await store.settle([stalled!], { next: { kind: 'ready' }, outcome: 'unknown', status: null, outcomeUnknown: true });
    const [again] = (await claimJobs(store.database, other, 1)).jobs;
    t.equal(again?.outcomeUnknown, true);
    t.equal(again?.calls, 1);
    t.same(await store.settle([stalled!]), new Set(), 'not with the epoch of before');
    t.same(await store.settle([again!], {}, other), new Set([again!.jobId]));
    const attempts = await store.database.query(
      'select number, outcome, late_outcome, late_status from sluice.attempts order by number',
    );
    t.same(attempts, [
      { number: 1, outcome: 'unknown', late_outcome: 'success', late_status: 200 },
      { number: 2, outcome: 'success', late_outcome: null, late_status: null },
    ]);
    t.same(await stateTables(store), { ready: 0, running: 0, parked: 0, done: 1 });
  },
);

t.test('the reaper writes nothing while the lease holds', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.addJobs({ count: 1 });
  const { jobs } = await store.claim(1);
  const { settleJobs } = await import('../../src/postgres/settle-jobs.ts');
  const { settleRow } = await import('../support/claims.ts');
  const row = settleRow(jobs[0]!, { next: { kind: 'ready' }, outcome: 'unknown' });
  t.same(await settleJobs(store.database, store.workerId, [row], { onlyExpired: true }), new Set());
  await store.database.query(`update sluice.workers set lease_expires_at = clock_timestamp() - interval '1 second'`);
  t.same(await settleJobs(store.database, store.workerId, [row], { onlyExpired: true }), new Set([jobs[0]!.jobId]));
});

t.test(
  '429: the upstream is closed for the fleet, with or without a limit; then a probe, then 2, then 8',
  async (t) => {
    for (const limited of [false, true]) {
      const store = await useClaims(t, { max: 1 });
      await store.putUpstream('api');
      await store.putUpstream('other');
      if (limited) await store.putLimit('all', { limit: 1000, per: 1, upstreams: ['api'] });
      await store.addJobs({ count: 100 });
      await store.addJobs({ count: 1, upstream: 'other' });
      const now = await store.clockUs();
      await store.setClock(now);
      const [first] = (await store.claim(1)).jobs;
      t.equal(first!.upstream, 'api');
      await store.settle([first!], throttledFor(2000));
      t.same(await cooldowns(store), [
        { kind: 'upstream', name: 'api', partition_key: '', left_s: 2, ramp: 1, in_row: 1, header: '2' },
      ]);
      const rival = await newWorker(store.database);
      t.same(
        (await store.claim(50, rival)).jobs.map((job) => job.upstream),
        ['other'],
        'another upstream goes on',
      );
      await store.setClock(now + 1.999 * second);
      t.equal((await store.claim(50, rival)).jobs.length, 0, 'closed to the last millisecond');
      await store.setClock(now + 2 * second);
      const probe = (await store.claim(50)).jobs;
      t.same(
        probe.map((job) => job.idempotencyKey),
        ['k1'],
        'one probe, and the throttled job kept its place',
      );
      t.equal(probe[0]!.attemptsUsed, 0, 'a throttle spends no attempt');
      t.equal(probe[0]!.throttles, 1);
      t.equal((await store.claim(50, rival)).jobs.length, 0);
      await store.settle(probe);
      const two = (await store.claim(50, rival)).jobs;
      t.equal(two.length, 2);
      await store.settle(two, {}, rival);
      t.equal((await store.claim(50)).jobs.length, 8);
    }
  },
);

t.test('a probe that ends without an answer frees its place; a 429 closes again', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.addJobs({ count: 10 });
  const now = await store.clockUs();
  await store.setClock(now);
  await store.settle((await store.claim(1)).jobs, throttledFor(1000));
  await store.setClock(now + 1.1 * second);
  const probe = (await store.claim(10)).jobs;
  t.equal(probe.length, 1);
  const lost = {
    next: { kind: 'ready' },
    outcome: 'unknown',
    status: null,
    outcomeUnknown: true,
    answeredWithoutThrottle: false,
  } as const;
  await store.settle(probe, lost);
  const next = (await store.claim(10)).jobs;
  t.equal(next.length, 1, 'one again, not none and not two');
  await store.settle(next, throttledFor(5000));
  t.match(await cooldowns(store), [{ left_s: 5, ramp: 1 }]);
  t.equal((await store.claim(10)).jobs.length, 0);
});

t.test('a cooldown only extends: 60 s and an older answer of 1 s stay 60 s, in both orders', async (t) => {
  for (const delays of [
    [60_000, 1_000],
    [1_000, 60_000],
  ]) {
    const store = await useClaims(t, { max: 1 });
    await store.putUpstream('api');
    await store.addJobs({ count: 2 });
    const now = await store.clockUs();
    await store.setClock(now);
    const { jobs } = await store.claim(2);
    await store.settle([jobs[0]!], throttledFor(delays[0]!));
    await store.settle([jobs[1]!], throttledFor(delays[1]!));
    t.match(await cooldowns(store), [{ left_s: 60, header: '60' }]);
  }
});

t.test(
  '429 without a time: 250 ms doubled by each throttle in a row up to 60 s, at most a half more, forgotten at an answer',
  async (t) => {
    const store = await useClaims(t, { max: 1 });
    await store.putUpstream('api');
    await store.addJobs({ count: 10 });
    let now = await store.clockUs();
    for (let i = 0; i < 11; i += 1) {
      await store.setClock(now);
      const { jobs } = await store.claim(1);
      t.equal(jobs.length, 1, `throttle ${i + 1}`);
      await store.settle(jobs, throttledFor(null));
      const [cooldown] = await cooldowns(store);
      const base = Math.min(60, 0.25 * 2 ** i);
      t.ok(cooldown!.left_s >= base && cooldown!.left_s <= base * 1.5, `${cooldown!.left_s} s for a base of ${base} s`);
      now += Math.ceil(cooldown!.left_s * second) + 1_000;
    }
    await store.setClock(now);
    await store.settle((await store.claim(1)).jobs);
    t.match(await cooldowns(store), [{ in_row: 0 }]);
    await store.settle((await store.claim(1)).jobs, throttledFor(null));
    const [cooldown] = await cooldowns(store);
    t.ok(cooldown!.left_s <= 0.375, 'back to the first step');
  },
);

t.test('calls that were under way when it closed do not lengthen the streak', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.addJobs({ count: 20 });
  await store.setClock(await store.clockUs());
  const { jobs } = await store.claim(20);
  await store.settle(jobs, throttledFor(null));
  t.match(await cooldowns(store), [{ in_row: 1 }]);
});

t.test(
  'under a limit by partition only that partition cools down; with shares_cooldown everything under the limit',
  async (t) => {
    const store = await useClaims(t, { max: 1 });
    await store.putUpstream('api');
    await store.putUpstream('twin');
    await store.putLimit('account', { limit: 100, per: 1, by_partition: true, upstreams: ['api'] });
    await store.addJobs({ count: 3, partitionKey: 'a' });
    await store.addJobs({ count: 3, partitionKey: 'b' });
    await store.addJobs({ count: 1, upstream: 'twin' });
    const now = await store.clockUs();
    await store.setClock(now);
    const { jobs } = await store.claim(3);
    const ofA = jobs.find((job) => job.partitionKey === 'a')!;
    await store.settle([ofA], throttledFor(30_000));
    await store.settle(jobs.filter((job) => job !== ofA));
    const rest = await store.claimAll(10);
    t.ok(rest.length > 0 && rest.every((job) => job.partitionKey === 'b'), 'b goes on');
    t.match(await cooldowns(store), [{ kind: 'upstream', name: 'api', partition_key: 'a' }]);

    await store.putLimit('both', { limit: 100, per: 1, shares_cooldown: true, upstreams: ['api', 'twin'] });
    await store.addJobs({ count: 3, upstream: 'twin' });
    await store.addJobs({ count: 3, partitionKey: 'b' });
    await store.setClock(now + second);
    const more = await store.claim(1);
    await store.settle(more.jobs, throttledFor(10_000));
    t.ok((await cooldowns(store)).some((each) => each.kind === 'limit' && each.name === 'both' && each.left_s === 10));
    t.equal((await store.claimAll(10)).length, 0, 'everything under the shared limit is closed');
    await store.setClock(now + 12 * second);
    t.equal((await store.claim(10)).jobs.length, 1, 'then one probe for all of it');
  },
);

t.test('a cooldown that has committed admits nothing: settles and claims of a fleet at the same time', async (t) => {
  const store = await useClaims(t, { max: 8 });
  await store.putUpstream('api');
  await store.addJobs({ count: 400 });
  const workers = await Promise.all(Array.from({ length: 4 }, () => newWorker(store.database)));
  let closed = false;
  let admittedAfter = 0;
  const [first] = (await store.claim(1)).jobs;
  const claimers = workers.map(async (worker) => {
    for (let i = 0; i < 40; i += 1) {
      const closedBefore = closed;
      const claim = await store.claim(1, worker);
      if (closedBefore) admittedAfter += claim.jobs.length;
    }
  });
  await store.claim(1);
  await store.settle([first!], throttledFor(60_000));
  closed = true;
  await Promise.all(claimers);
  t.equal(admittedAfter, 0);
});

t.test('an operator closes a limit, or one partition of it, until a time', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.putLimit('account', { limit: 100, per: 1, by_partition: true, upstreams: ['api'] });
  await store.addJobs({ count: 2, partitionKey: 'a' });
  await store.addJobs({ count: 2, partitionKey: 'b' });
  const now = await store.clockUs();
  await store.setClock(now);
  await inTransaction(store.database, (client) =>
    closeWindow(client, { limit: 'account', partitionKey: 'a' }, 30, 'by hand'),
  );
  t.same(
    (await store.claimAll(1)).map((job) => job.partitionKey),
    ['b', 'b'],
  );
  await inTransaction(store.database, (client) =>
    closeWindow(client, { limit: 'account', partitionKey: '' }, 60, 'all of it'),
  );
  await store.setClock(now + 31 * second);
  t.equal((await store.claimAll(10)).length, 0);
  await store.setClock(now + 61 * second);
  t.equal((await store.claim(1)).jobs.length, 1);
});

t.test('a permit that was not used goes back to its windows, and is admitted again at once', async (t) => {
  for (const algorithm of ['sliding_window', 'fixed_window', 'token_bucket']) {
    const store = await useClaims(t, { max: 1 });
    await store.putUpstream('api');
    await store.putLimit('slow', { limit: 1, per: 60, algorithm, burst: 1, upstreams: ['api'] });
    await store.putLimit('account', { limit: 1, per: 60, algorithm, burst: 1, by_partition: true, upstreams: ['api'] });
    await store.addJobs({ count: 2, partitionKey: 'a' });
    // A moment ahead of what was written by the real clock, and standing still.
    await store.setClock((await store.clockUs()) + second);
    const { jobs } = await store.claim(5);
    t.equal(jobs.length, 1);
    t.equal((await store.claim(5)).jobs.length, 0, 'used up');
    await store.settle(jobs, neverLeft);
    const again = (await store.claim(5)).jobs;
    t.same(
      again.map((job) => job.jobId),
      [jobs[0]!.jobId],
      `${algorithm}: the same job, at once`,
    );
    t.equal(again[0]!.calls, 0, 'no call, no attempt');
    t.equal((await store.claim(5)).jobs.length, 0, 'given back once, not twice');
    await store.settle(again);
    t.equal((await store.claim(5)).jobs.length, 0, 'a call that was made still counts');
  }
});

t.test('a write whose answer was lost comes again: it is told as written, and changes nothing', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.addJobs({ count: 3 });
  const jobs = await store.claimAll(3);
  const settles = [
    {},
    { next: { kind: 'held', reason: 'outcome_unknown' }, outcome: 'unknown', outcomeUnknown: true, status: null },
    throttledFor(1_000),
  ] as const;
  const settleAll = async () => {
    const settled: string[] = [];
    for (const [n, fields] of settles.entries()) settled.push(...(await store.settle([jobs[n]!], fields)));
    return settled;
  };
  const everything = async () => [
    await store.database.query('select * from sluice.attempts order by job_id, number'),
    await store.database.query('select * from sluice.cooldowns'),
    await stateTables(store),
  ];
  const ids = jobs.map((job) => job.jobId);
  t.same(await settleAll(), ids);
  const after = await everything();
  t.same(await settleAll(), ids);
  t.same(await everything(), after);
  t.same(
    [...(await store.settle([jobs[0]!], { outcome: 'error', status: 500 }))],
    [],
    'another outcome is not what was written',
  );
});

t.test('a permit comes back too late to count: nothing is given back to a window that has moved on', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.putLimit('all', { limit: 2, per: 1, upstreams: ['api'] });
  await store.addJobs({ count: 6 });
  const now = (await store.clockUs()) + second;
  await store.setClock(now);
  const { jobs } = await store.claim(2);
  await store.setClock(now + 2 * second);
  const next = (await store.claim(2)).jobs;
  t.equal(next.length, 2);
  await store.settle(jobs, {
    next: { kind: 'ready' },
    outcome: null,
    charge: 'none',
    permitUnused: true,
    mayHaveHadEffect: false,
  });
  t.equal((await store.claim(2)).jobs.length, 0, 'the two of now still count');
});

t.test(
  'a job that was running while its upstream moved is held instead of being sent again; a success stays one',
  async (t) => {
    const store = await useClaims(t);
    await store.putUpstream('api');
    await store.addJobs({ count: 4 });
    const { jobs } = await store.claim(3);
    await store.putUpstream('api', { base_url: 'https://elsewhere.example.test' });
    const retry = { next: { kind: 'scheduled', delayMs: 10, reason: null }, outcome: 'error', status: 500 } as const;
    await store.settle(jobs.slice(0, 1), retry);
    await store.settle(jobs.slice(1, 2));
    await store.settle(jobs.slice(2, 3), throttledFor(null));
    const later = (await store.claim(1)).jobs;
    t.equal(later.length, 0, 'throttled: closed');
    t.same(await store.database.query('select state, reason from sluice.parked_jobs'), [
      { state: 'held', reason: 'upstream_changed' },
    ]);
    t.same(
      await stateTables(store),
      { ready: 2, running: 0, parked: 1, done: 1 },
      'throttles apart, the others follow',
    );
  },
);

t.test('a job that waited for longer than an int of milliseconds is settled like any other', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.addJobs({ count: 1 });
  await store.database.query(`update sluice.ready_jobs set eligible_at = clock_timestamp() - interval '30 days'`);
  t.equal((await store.settle((await store.claim(1)).jobs)).size, 1);
  t.same(await store.database.query('select slot_wait_ms from sluice.attempts'), [{ slot_wait_ms: 2_147_483_647 }]);
});

t.test('after a cooldown of a partition one probe goes out, whichever tenant has it', async (t) => {
  const store = await useClaims(t);
  const { database } = store;
  await store.putUpstream('api');
  await store.putLimit('account', { limit: 100, by_partition: true, upstreams: ['api'] });
  await store.addJobs({ count: 5, partitionKey: 'shared' });
  await store.settle((await store.claim(1)).jobs, throttledFor(1));
  await database.query(`update sluice.cooldowns set until = clock_timestamp() - interval '1 millisecond'`);
  await database.query(
    `with lane as (
       insert into sluice.lanes (group_id, tenant, partition_key) select group_id, 'other', partition_key from sluice.lanes
       returning id),
     job as (
       update sluice.jobs j set tenant = 'other', lane_id = lane.id from lane
        where j.seq in (select max(o.seq) from sluice.jobs o) returning j.id, j.lane_id),
     key as (update sluice.idempotency_keys k set tenant = 'other' from job where k.job_id = job.id)
     update sluice.ready_jobs r set lane_id = job.lane_id from job where r.job_id = job.id`,
  );
  await database.query('update sluice.lanes set next_at = clock_timestamp(), closed_by = null');
  t.equal((await store.claimAll(10)).length, 1);
});
