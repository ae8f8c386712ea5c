/** Each invariant sees what it is there for, and only that: a store in every state is fine, and one corruption at a time is told. */
import pg from 'pg';
import t, { type Test } from 'tap';
import { throttledFor, useClaims } from './claims.ts';
import { createTestDatabase } from './database.ts';
import { assertInvariants, brokenInvariants, findBroken, type Invariant, invariants } from './invariants.ts';

/** Jobs in every state, under a limit and a cooldown. */
async function setup(t: Test) {
  const store = await useClaims(t, { breaks: 'all' });
  await store.putUpstream('api');
  await store.putUpstream('slow');
  await store.putQueue('paused', { paused: true });
  await store.putLimit('none', { limit: 0, per: 1, queues: ['paused'] });
  await store.putLimit('account', { limit: 10, per: 60, by_partition: true, upstreams: ['api'] });
  await store.addJobs({ count: 3, partitionKey: 'a' });
  await store.addJobs({ count: 1, runAt: `clock_timestamp() + interval '1 hour'` });
  const [ended, running, held] = await store.claimAll(3);
  await store.settle([ended!]);
  await store.settle([held!], {
    next: { kind: 'held', reason: 'outcome_unknown' },
    outcome: 'unknown',
    outcomeUnknown: true,
  });
  await store.addJobs({ count: 2, upstream: 'slow' });
  await store.settle((await store.claim(1)).jobs, throttledFor(60_000));
  await store.addJobs({ count: 2, queue: 'paused' });
  await store.addJobs({ count: 2, partitionKey: 'b' });
  return { ...store, running: running!, ended: ended! };
}

t.test('a store with jobs in every state, a cooldown, a pause and a shut limit breaks nothing', async (t) => {
  const { connectionString, database } = await setup(t);
  t.same(await brokenInvariants(connectionString), []);
  const states = await database.query<{ n: number }>(
    `select (select count(*)::int from sluice.ready_jobs) as n union all select (select count(*)::int from sluice.running_jobs)
     union all select (select count(*)::int from sluice.parked_jobs) union all select (select count(*)::int from sluice.done_jobs)`,
  );
  t.ok(
    states.every(({ n }) => n > 0),
    'there is something in each table',
  );
});

const anyReady = `(select job_id from sluice.ready_jobs order by lane_id, seq limit 1)`;
const itsLane = `(select lane_id from sluice.ready_jobs order by lane_id, seq limit 1)`;

const corruptions: ReadonlyArray<readonly [rule: Invariant, what: string, sql: string]> = [
  ['one_state', 'a job lost its row', `delete from sluice.ready_jobs where job_id = ${anyReady}`],
  [
    'one_state',
    'a job is there twice',
    `insert into sluice.done_jobs (job_id, state, ended_at) values (${anyReady}, 'failed', now())`,
  ],
  [
    'state_of_a_job',
    'a row of nobody',
    `insert into sluice.done_jobs (job_id, state, ended_at) values (gen_random_uuid(), 'failed', now())`,
  ],
  ['place', 'a row moved', `update sluice.ready_jobs set rank = 7 where job_id = ${anyReady}`],
  ['claimable', 'a lane is gone', `delete from sluice.lanes where id = ${itsLane}`],
  [
    'claimable',
    'a lane is marked empty',
    `update sluice.lanes set next_at = 'infinity', closed_by = 'empty' where id = ${itsLane}`,
  ],
  [
    'claimable',
    'a lane is closed by nothing',
    `update sluice.lanes set next_at = 'infinity', closed_by = null where id = ${itsLane}`,
  ],
  [
    'claimable',
    'a lane is closed by a limit that is open',
    `update sluice.lanes set next_at = 'infinity', closed_by = 'window', closed_name = 'account' where id = ${itsLane}`,
  ],
  [
    'claimable',
    'a lane waits for a cooldown that is not',
    `update sluice.lanes set next_at = now() + interval '1 hour', closed_by = 'cooldown', closed_name = 'api' where id = ${itsLane}`,
  ],
  ['claimable', 'a group is gone', `delete from sluice.lane_groups where queue = 'paused'`],
  [
    'claimable',
    'a queue was resumed and its group was not told',
    `update sluice.queues set definition = definition || '{"paused": false}' where name = 'paused'`,
  ],
  ['claimable', 'a group outlasts its cooldown', `update sluice.cooldowns set until = now() where name = 'slow'`],
  ['claimable', 'an upstream is gone', `delete from sluice.upstreams where name = 'slow'`],
  ['leased', 'a worker is gone', `delete from sluice.workers`],
  ['leased', 'a lease is of another group', `update sluice.running_jobs set group_id = -1`],
  [
    'one_window',
    'a window is there twice',
    'insert into sluice.rate_windows select * from sluice.rate_windows limit 1',
  ],
  ['due', 'a scheduled job without a time', `update sluice.parked_jobs set due_at = null where state = 'scheduled'`],
  ['due', 'a held job with a time', `update sluice.parked_jobs set due_at = now() where state = 'held'`],
  [
    'key_of_a_job',
    'a key of nobody',
    `insert into sluice.idempotency_keys values ('default', 'stray', '', gen_random_uuid())`,
  ],
  ['job_of_a_key', 'a key was forgotten', `delete from sluice.idempotency_keys where job_id = ${anyReady}`],
  [
    'batch_counts',
    'an item too many',
    `insert into sluice.stored_items (batch_id, index, verdict) select id, 99, 'rejected' from sluice.batches limit 1`,
  ],
  [
    'batch_counts',
    'a wrong count',
    `update sluice.batches set accepted = accepted - 1, rejected = rejected + 1 where id = (select id from sluice.batches limit 1)`,
  ],
];

t.test('each corruption is told, by its own rule', async (t) => {
  const { connectionString } = await setup(t);
  const client = new pg.Client({ connectionString });
  await client.connect();
  t.teardown(() => client.end());
  for (const [rule, what, sql] of corruptions) {
    await client.query('begin');
    await client.query(sql);
    const broken = await findBroken(client);
    t.same(
      broken.map((each) => each.rule),
      [rule],
      `${rule}: ${what}; ${broken.map(({ subject, detail }) => `${subject} ${detail}`).join()}`,
    );
    await client.query('rollback');
  }
  t.same(await brokenInvariants(connectionString), []);
});

t.test('a batch that lost its item, and a session that forgot its transaction', async (t) => {
  const { connectionString, database } = await setup(t);
  const client = new pg.Client({ connectionString, application_name: 'forgetful' });
  await client.connect();
  t.teardown(() => client.end());
  await client.query('begin');
  await t.rejects(assertInvariants(connectionString), /idle_in_transaction: .*forgetful: begin/);
  await client.query('rollback');
  await database.query(`delete from sluice.stored_items where job_id = ${anyReady}`);
  const broken = await brokenInvariants(connectionString);
  t.same(
    broken.map(({ rule }) => rule),
    ['batch_counts', 'batch_of_a_job'],
  );
  t.same(await brokenInvariants(connectionString, ['batch_counts', 'batch_of_a_job']), [], 'what is broken on purpose');
});

t.test('every invariant has been seen broken', async (t) => {
  const seen = new Set<string>(corruptions.map(([rule]) => rule));
  t.same(
    Object.keys(invariants).filter((rule) => !seen.has(rule)),
    ['batch_of_a_job', 'idle_in_transaction'],
    'but for those of the test before this',
  );
});

t.test('the teardown of a test database looks, and fails the test', async (t) => {
  let teardown: () => Promise<void> = async () => undefined;
  const other = { teardown: (work: () => Promise<void>) => (teardown = work), passing: () => true } as unknown as Test;
  const { database } = await createTestDatabase(other);
  await database.query(`insert into sluice.idempotency_keys values ('default', 'stray', '', gen_random_uuid())`);
  await t.rejects(teardown(), /key_of_a_job: .*stray/);
});
