/** Explain over HTTP on a real store: the right cause for each thing that can be in a job's way, and nothing changed by asking. */
import t, { type Test } from 'tap';
import { closeWindow, setWindowPaused } from '../../src/postgres/steer-rate-windows.ts';
import { inTransaction } from '../../src/postgres/transaction.ts';
import { createTestApp } from '../support/app.ts';
import { type Claims, throttledFor, useClaims } from '../support/claims.ts';

// biome-ignore lint/suspicious/noExplicitAny: JSON of any shape, compared by the tests.
type Json = any;

const instant = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

interface Setup extends Claims {
  /** What is said of the job of this number (1: the first accepted). */
  explain(number: number): Promise<Json>;
  /** Kind and name of what it waits for. */
  waits(number: number): Promise<string[]>;
  idOf(number: number): Promise<string>;
  status(path: string): Promise<number>;
}

async function setup(t: Test): Promise<Setup> {
  const store = await useClaims(t);
  await store.putUpstream('api');
  const { app } = await createTestApp(t, store.database);
  const idOf = async (number: number) => {
    const rows = await store.database.query<{ id: string }>('select id from sluice.jobs order by seq limit $1', [
      number,
    ]);
    return rows.at(-1)!.id;
  };
  const explain = async (number: number) => {
    const answer = await app.inject(`/v1/jobs/${await idOf(number)}/explain`);
    if (answer.statusCode !== 200) throw new Error(`answered ${answer.statusCode}: ${answer.body}`);
    return answer.json();
  };
  return {
    ...store,
    idOf,
    explain,
    waits: async (number) => (await explain(number)).waiting_on.map(({ kind, name }: Json) => `${kind} ${name}`),
    status: async (path) => (await app.inject(path)).statusCode,
  };
}

/** Between now and so many seconds from now, with a second to spare on both sides. */
function within(t: Test, until: string, seconds: number): void {
  t.match(until, instant);
  const left = (Date.parse(until) - Date.now()) / 1000;
  t.ok(left > -1 && left < seconds + 1, `${left} s from now, ${seconds} s at most`);
}

t.test('nothing is in its way: the next claim takes it', async (t) => {
  const { addJobs, explain, idOf } = await setup(t);
  await addJobs({ count: 3 });
  t.same(await explain(3), { job_id: await idOf(3), state: 'ready', runnable: true, position: 3, waiting_on: [] });
});

t.test(
  'a window that is exhausted, until it has room; one of its partition; one that is paused; more than it has now',
  async (t) => {
    const { addJobs, claim, claimAll, explain, waits, putLimit, putUpstream, database } = await setup(t);
    await putLimit('two', { limit: 2, per: 60, upstreams: ['api'] });
    await addJobs({ count: 3 });
    t.same(await waits(3), ['window two'], 'those before it take all there is');
    await claimAll(10);
    const { runnable, position, waiting_on } = await explain(3);
    t.same([runnable, position], [false, 1]);
    t.match(waiting_on, [{ kind: 'window', name: 'two', partition_key: null, detail: /^0 of 2 per 60 s/ }]);
    within(t, waiting_on[0].until, 62);

    await putUpstream('bank');
    await putLimit('account', { limit: 1, per: 60, by_partition: true, upstreams: ['bank'] });
    await addJobs({ count: 2, upstream: 'bank', partitionKey: 'acct_1' });
    await addJobs({ count: 1, upstream: 'bank', partitionKey: 'acct_2' });
    await claim(1);
    const mine = (await explain(5)).waiting_on;
    t.match(mine, [{ kind: 'window', name: 'account', partition_key: 'acct_1' }]);
    const other = (await explain(6)).waiting_on;
    t.same(other, [], 'the other account has its own');

    await inTransaction(database, (client) =>
      setWindowPaused(client, { limit: 'account', partitionKey: 'acct_2' }, true),
    );
    t.match((await explain(6)).waiting_on, [{ kind: 'window', name: 'account', until: null, detail: /paused/ }]);
  },
);

t.test(
  'an upstream that said 429 is cooling, or its rate is still coming back; a limit that was closed by hand',
  async (t) => {
    const { addJobs, claim, settle, explain, putLimit, database } = await setup(t);
    await addJobs({ count: 3 });
    await settle((await claim(1)).jobs, throttledFor(30_000));
    const { runnable, waiting_on } = await explain(2);
    t.equal(runnable, false);
    t.match(waiting_on, [{ kind: 'cooldown', name: 'api', partition_key: null, detail: /429/ }]);
    within(t, waiting_on[0].until, 30);

    await database.query(`update sluice.cooldowns set until = clock_timestamp()`);
    t.same((await explain(2)).waiting_on, [], 'over: whatever the lane was closed for, a probe may go');
    await database.query(`update sluice.lane_groups set next_at = clock_timestamp()`);
    t.equal((await claim(5)).jobs.length, 1);
    t.match((await explain(2)).waiting_on, [{ kind: 'cooldown', name: 'api', until: null, detail: /coming back/ }]);

    await database.query('delete from sluice.cooldowns');
    await putLimit('wide', { limit: 1_000, per: 60, upstreams: ['api'] });
    await inTransaction(database, (client) =>
      closeWindow(client, { limit: 'wide', partitionKey: '' }, 20, 'maintenance'),
    );
    t.match((await explain(2)).waiting_on, [{ kind: 'cooldown', name: 'wide', detail: 'maintenance' }]);
  },
);

t.test('a paused upstream, a paused queue, both', async (t) => {
  const { addJobs, waits, explain, putQueue, putUpstream } = await setup(t);
  await addJobs({ count: 1 });
  await putUpstream('api', { paused: true });
  t.same(await waits(1), ['upstream_paused api']);
  await putQueue('default', { paused: true });
  t.same(await waits(1), ['queue_paused default', 'upstream_paused api']);
  await putUpstream('api', { paused: false });
  t.match(await explain(1), { runnable: false, waiting_on: [{ kind: 'queue_paused', until: null }] });
  await putQueue('default', { paused: false });
  t.same(await waits(1), []);
});

t.test('a time that is to come: its run_at, or the backoff of a retry', async (t) => {
  const { addJobs, claim, settle, explain } = await setup(t);
  await addJobs({ count: 1, runAt: `clock_timestamp() + interval '40 seconds'` });
  const first = await explain(1);
  t.match(first, {
    state: 'scheduled',
    runnable: false,
    position: 1,
    waiting_on: [{ kind: 'scheduled', detail: /run_at/ }],
  });
  within(t, first.waiting_on[0].until, 40);
  await addJobs({ count: 1 });
  await settle((await claim(1)).jobs, {
    next: { kind: 'scheduled', delayMs: 30_000, reason: null },
    outcome: 'error',
    status: 500,
  });
  const second = await explain(2);
  t.match(second.waiting_on, [{ kind: 'scheduled', detail: /backoff/ }]);
  within(t, second.waiting_on[0].until, 30);
});

t.test('the head of its fifo lane: while it runs, while it waits for its retry, while it is held', async (t) => {
  const { addJobs, claim, settle, explain, putQueue, idOf, database } = await setup(t);
  await putQueue('line', { ordering: 'fifo' });
  await addJobs({ count: 3, queue: 'line' });
  await addJobs({ count: 1, queue: 'line', partitionKey: 'other' });
  t.same((await explain(1)).waiting_on, []);
  const behind = async () => (await explain(3)).waiting_on as Json[];
  t.match(await behind(), [{ kind: 'fifo', name: 'line', detail: new RegExp(`${await idOf(1)}.*ready`) }]);
  const head = (await claim(2)).jobs.filter(({ partitionKey }) => partitionKey === null);
  t.match(await explain(3), {
    runnable: false,
    position: 3,
    waiting_on: [{ kind: 'fifo', until: null, detail: /running/ }],
  });
  await settle(head, { next: { kind: 'scheduled', delayMs: 30_000, reason: null }, outcome: 'error', status: 500 });
  within(t, (await behind())[0].until, 30);
  await database.query(`update sluice.parked_jobs set state = 'held', due_at = null`);
  t.match(await behind(), [{ kind: 'fifo', until: null, detail: /held/ }]);
  t.match(await explain(1), { position: 1, waiting_on: [{ kind: 'held' }] });
});

t.test('no slot is free, or no worker is there: runnable, and waits for a slot', async (t) => {
  const { addJobs, claim, explain, database, workerId } = await setup(t);
  await addJobs({ count: 40 });
  await claim(31);
  t.same((await explain(40)).waiting_on, [], 'one of 32 is free');
  await claim(1);
  t.match(await explain(40), {
    runnable: true,
    position: 8,
    waiting_on: [{ kind: 'slot', name: null, until: null, detail: 'all 32 slots of 1 worker are taken' }],
  });
  await database.query(`update sluice.workers set lease_expires_at = clock_timestamp() where id = $1`, [workerId]);
  t.match((await explain(40)).waiting_on, [{ kind: 'slot', detail: /no process/ }]);
});

t.test('as many calls in flight as a limit allows', async (t) => {
  const { addJobs, claim, explain, putLimit } = await setup(t);
  await putLimit('narrow', { limit: null, max_in_flight: 2, upstreams: ['api'] });
  await addJobs({ count: 3 });
  await claim(5);
  t.match((await explain(3)).waiting_on, [
    { kind: 'window', name: 'narrow', until: null, detail: /2 calls are in flight/ },
  ]);
});

t.test('it runs elsewhere, is held, or has ended', async (t) => {
  const { addJobs, claim, settle, explain, workerId } = await setup(t);
  await addJobs({ count: 3 });
  const { jobs } = await claim(3);
  const running = await explain(1);
  t.match(running, {
    state: 'running',
    runnable: false,
    position: null,
    waiting_on: [{ kind: 'lease', name: workerId }],
  });
  t.match(running.waiting_on[0].until, instant);
  await settle(jobs.slice(1, 2), { next: { kind: 'held', reason: 'outcome_unknown' }, outcome: 'unknown' });
  t.match(await explain(2), {
    state: 'held',
    runnable: false,
    waiting_on: [{ kind: 'held', name: 'outcome_unknown', until: null }],
  });
  await settle(jobs.slice(2));
  t.match(await explain(3), {
    state: 'succeeded',
    runnable: false,
    position: null,
    waiting_on: [{ kind: 'ended', name: 'succeeded' }],
  });
});

t.test('what a claim noted about the lane long ago is not believed', async (t) => {
  const { addJobs, waits, putLimit, database, claimAll } = await setup(t);
  await putLimit('two', { limit: 2, per: 60, upstreams: ['api'] });
  await addJobs({ count: 3 });
  await claimAll(10);
  t.same(await waits(3), ['window two']);
  await database.query('delete from sluice.rate_windows');
  t.same(await waits(3), [], 'the window has room, whatever the group was closed for');
  await database.query(
    `update sluice.lane_groups set next_at = clock_timestamp(), closed_by = null, closed_name = null`,
  );
});

t.test('asking changes nothing, and a job of another tenant or of none is a 404', async (t) => {
  const { addJobs, explain, putLimit, database, status, idOf } = await setup(t);
  await putLimit('account', { limit: 2, per: 60, by_partition: true, upstreams: ['api'] });
  await addJobs({ count: 1, partitionKey: 'a' });
  await explain(1);
  t.same(await database.query('select 1 from sluice.rate_windows'), []);
  t.equal(await status('/v1/jobs/01890000-0000-7000-8000-000000000000/explain'), 404);
  t.equal(await status('/v1/jobs/x/explain'), 404);
  const id = await idOf(1);
  await database.query(`update sluice.jobs set tenant = 'other'`);
  t.equal(await status(`/v1/jobs/${id}/explain`), 404);
  await database.query(`update sluice.jobs set tenant = 'default'`);
});
