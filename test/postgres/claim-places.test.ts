/** A claim that goes on where the last one ended: what it reads, what it may miss, and what it never does. */
import pg from 'pg';
import t from 'tap';
import { claimJobs } from '../../src/postgres/claim-jobs.ts';
import { readReadyBehind } from '../../src/postgres/ready-behind.ts';
import { type Claims, useClaims } from '../support/claims.ts';

async function laneOf({ database }: Claims): Promise<{ closed_by: string | null; next_at: Date | number }> {
  const [lane] = await database.query<{ closed_by: string | null; next_at: Date | number }>(
    'select closed_by, next_at from sluice.lanes',
  );
  return lane!;
}

t.test('it goes on behind the place, and what is before it is found by the next look from the start', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.addJobs({ count: 10 });
  const first = await store.claim(4);
  t.equal(first.places.length, 1);
  const from = first.places;
  await store.settle(first.jobs.slice(0, 1), { next: { kind: 'ready' }, outcome: null, charge: 'none' });
  await store.addJobs({ count: 1, priority: 5 });

  const second = await claimJobs(store.database, store.workerId, 3, { from });
  t.equal(second.jobs.length, 3);
  t.notOk(
    second.jobs.some(({ jobId }) => jobId === first.jobs[0]!.jobId),
    'what went back is before the place',
  );
  const third = await store.claim(2);
  t.equal(third.jobs[1]!.jobId, first.jobs[0]!.jobId, 'after the one of higher priority, the one that went back');
  t.equal((await store.claim(100)).jobs.length, 3, 'the rest');
});

t.test('a lane with nothing behind the place is left open, and closed only by a look from the start', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.addJobs({ count: 3 });
  const { places: from } = await store.claim(2);
  const last = await claimJobs(store.database, store.workerId, 5, { from });
  t.equal(last.jobs.length, 1);
  t.equal(last.lingers, true);
  t.equal(last.more, false);
  t.equal(last.nextInMs, null, 'it does not ask to be looked at again at once');
  t.equal((await laneOf(store)).closed_by, null);
  const whole = await store.claim(5);
  t.equal(whole.lingers, false);
  t.same(await laneOf(store), { closed_by: 'empty', next_at: Number.POSITIVE_INFINITY });
});

t.test('what is behind the places is found apart, and taken first by those who were told of it', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.addJobs({ count: 10 });
  const first = await store.claim(6);
  const { places: from } = first;
  await store.settle(first.jobs.slice(1, 3), { next: { kind: 'ready' }, outcome: null, charge: 'none' });
  await store.addJobs({ count: 1, priority: 5 });
  const { jobs: behind } = await readReadyBehind(store.database, from, 10);
  t.equal(behind.length, 3);
  t.equal((await readReadyBehind(store.database, from, 2)).jobs.length, 2, 'so many of a lane at most');
  t.same((await readReadyBehind(store.database, [], 10)).jobs, []);

  for (const limit of [undefined, 1_000]) {
    // Under a window the heads are gone through one by one.
    if (limit !== undefined) await store.putLimit('quota', { limit, per: 1, upstreams: ['api'] });
    const { jobs, places } = await claimJobs(store.database, store.workerId, 5, { from, behind });
    t.same(
      jobs.slice(1, 3).map(({ jobId }) => jobId),
      first.jobs.slice(1, 3).map(({ jobId }) => jobId),
      'after the one of higher priority, those that went back',
    );
    t.equal(jobs.length, 5, 'and then it goes on at the place');
    t.ok(places[0]!.seq > from[0]!.seq);
    const none = await claimJobs(store.database, store.workerId, 1, { from: places, behind });
    t.equal(none.jobs.length, 1, 'what is taken already is not in the way');
    await store.settle([...jobs, ...none.jobs], { next: { kind: 'ready' }, outcome: null, charge: 'none' });
    const few = await claimJobs(store.database, store.workerId, 2, { from, behind });
    t.same(few.places, from, 'those from behind do not move the place back');
    await store.settle(few.jobs, { next: { kind: 'ready' }, outcome: null, charge: 'none' });
  }
});

t.test('a turn that begins where the last one did misses no lane that opened since', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  for (const partition of ['a', 'b', 'c']) await store.addJobs({ count: 5, partitionKey: partition });
  // Each goes behind the others, since no claim is for all of them.
  const first = await store.claim(1);
  t.equal(first.turns.length, 1);
  for (let i = 0; i < 2; i += 1) await store.claim(1);
  const { turns } = await readReadyBehind(store.database, [], 1);
  t.equal(turns.length, 1);
  t.ok(turns[0]!.us > first.turns[0]!.us, 'all lanes have been served since');
  await store.addJobs({ count: 5, partitionKey: 'd' });
  const next = await claimJobs(store.database, store.workerId, 4, { turns: first.turns });
  t.same(next.jobs.map(({ partitionKey }) => partitionKey).sort(), ['a', 'b', 'c', 'd']);
  const later = turns.map(({ groupId, us }) => ({ groupId, us: us + 3_600_000_000 }));
  t.equal((await claimJobs(store.database, store.workerId, 4, { turns: later })).jobs.length, 0, 'it is gone by');
});

t.test('an order is never left for a place', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.putQueue('ordered', { ordering: 'fifo' });
  await store.addJobs({ count: 3, queue: 'ordered' });
  const [head] = (await store.claim(5)).jobs;
  const lane = (await store.database.query<{ id: number }>('select id from sluice.lanes'))[0]!.id;
  await store.settle([head!], { next: { kind: 'ready' }, outcome: null, charge: 'none' });
  const from = [{ laneId: lane, rank: 0, seq: 1_000 }];
  const { jobs } = await claimJobs(store.database, store.workerId, 5, { from });
  t.same(
    jobs.map(({ jobId }) => jobId),
    [head!.jobId],
  );
});

t.test('ahead of the slots comes only what nobody counts', async (t) => {
  const store = await useClaims(t);
  for (const name of ['free', 'limited', 'counted']) {
    await store.putUpstream(name);
    await store.addJobs({ count: 20, upstream: name });
  }
  await store.putLimit('quota', { limit: 100, per: 1, upstreams: ['limited'] });
  await store.putLimit('slots', { limit: null, per: 1, max_in_flight: 50, upstreams: ['counted'] });
  const mixed = await claimJobs(store.database, store.workerId, 6, { ahead: 10 });
  t.equal(mixed.jobs.length, 6, 'where calls of one upstream are counted, nothing comes ahead');
  await store.putUpstream('counted', { paused: true });
  const { jobs } = await claimJobs(store.database, store.workerId, 2, { ahead: 10 });
  t.equal(jobs.length, 12);
  const none = await claimJobs(store.database, store.workerId, 0, { ahead: 4 });
  t.equal(none.jobs.length, 4, 'also without a free slot');
});

t.test('a window is found where it was, however wrong the place is', async (t) => {
  const store = await useClaims(t, { max: 2 });
  await store.putUpstream('api');
  await store.putUpstream('other');
  await store.putLimit('quota', { limit: 10, per: 60, upstreams: ['api'] });
  await store.putLimit('others', { limit: 10, per: 60, upstreams: ['other'] });
  await store.addJobs({ count: 50 });
  await store.addJobs({ count: 5, upstream: 'other' });
  const first = await store.claim(4);
  t.same(first.windows.map(({ window }) => window).sort(), ['others', 'quota']);
  const used = async () =>
    (
      await store.database.query<{ used: number }>(`select used from sluice.rate_windows where limit_name = 'quota'`)
    )[0]!.used;
  const before = await used();
  let charged = 0;
  const stale = first.windows.find(({ window }) => window === 'quota')!.at;
  const elsewhere = first.windows.find(({ window }) => window === 'others')!.at;
  for (const at of [stale, stale, elsewhere, '(0,99)']) {
    const windows = [{ window: 'quota', at }];
    const claim = await claimJobs(store.database, store.workerId, 1, { windows });
    charged += claim.jobs.filter(({ upstream }) => upstream === 'api').length;
  }
  t.ok(charged > 0);
  t.equal(await used(), before + charged, 'every admission is counted in the one window');
  const rows = await store.database.query('select 1 from sluice.rate_windows');
  t.equal(rows.length, 2);
  let more = charged;
  for (let claims = 0; claims < 12; claims += 1) {
    const windows = [{ window: 'quota', at: stale }];
    const claim = await claimJobs(store.database, store.workerId, 5, { windows });
    more += claim.jobs.filter(({ upstream }) => upstream === 'api').length;
  }
  t.equal(before + more, 10, 'and it lets no more through');
});

t.test('so are the windows of partitions, each by its own place', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.putLimit('account', { limit: 3, per: 3_600, by_partition: true, upstreams: ['api'] });
  for (const partitionKey of ['a', 'b']) await store.addJobs({ count: 10, partitionKey });
  const first = await store.claim(2);
  t.same(first.windows.map(({ window }) => window).sort(), ['account\na', 'account\nb']);
  const [a, b] = first.windows;
  // Right places, old ones, and each other's.
  for (const windows of [
    first.windows,
    first.windows,
    [
      { ...a!, at: b!.at },
      { ...b!, at: a!.at },
    ],
  ]) {
    await claimJobs(store.database, store.workerId, 1, { windows });
  }
  for (let i = 0; i < 4; i += 1) await claimJobs(store.database, store.workerId, 5, { windows: first.windows });
  t.same(
    await store.database.query('select partition_key, used::int from sluice.rate_windows order by 1'),
    [
      { partition_key: 'a', used: 3 },
      { partition_key: 'b', used: 3 },
    ],
    'each let through what it may',
  );
  t.equal((await store.database.query('select 1 from sluice.running_jobs')).length, 6);
});

t.test('with a transaction left open, going on costs what it did before', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.putLimit('quota', { limit: 1_000_000, per: 1, upstreams: ['api'] });
  await store.addJobs({ count: 4_200 });
  const pin = new pg.Client({ connectionString: store.connectionString });
  await pin.connect();
  t.teardown(() => pin.end());
  await pin.query('begin isolation level repeatable read');
  await pin.query('select count(*) from sluice.jobs');

  const buffers = async (from: string, windows: string) => {
    const [row] = await store.database.query<{ 'QUERY PLAN': [{ Plan: Record<string, number> }] }>(
      `explain (analyze, buffers, format json)
       select * from sluice.claim_jobs('${store.workerId}', 20, 0, ${from}, ${windows})`,
    );
    const plan = row!['QUERY PLAN'][0].Plan;
    return plan['Shared Hit Blocks']! + plan['Shared Read Blocks']!;
  };
  const nowhere = `'{}', '{}', '{}'`;
  await store.settle((await store.claim(20)).jobs);
  const atFirst = await buffers(nowhere, `'{}', '{}'`);
  let claim = await store.claim(20);
  for (let turns = 0; turns < 190; turns += 1) {
    const { places: from, windows } = claim;
    claim = await claimJobs(store.database, store.workerId, 20, { from, windows });
    await store.settle(claim.jobs);
  }
  const { laneId, rank, seq } = claim.places[0]!;
  const { window, at } = claim.windows[0]!;
  const goingOn = await buffers(`'{${laneId}}', '{${rank}}', '{${seq}}'`, `'{${window}}', '{"${at}"}'`);
  const fromTheStart = await buffers(nowhere, `'{}', '{}'`);
  t.comment(`buffers: ${atFirst} at first, ${goingOn} going on, ${fromTheStart} from the start`);
  t.ok(goingOn <= atFirst * 1.5, `${goingOn} after 4,000 dead rows, ${atFirst} before`);
  t.ok(fromTheStart >= goingOn * 1.25, 'a look from the start steps over all of them');
});
