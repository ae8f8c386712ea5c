/** On their way again: from where, with which budgets, key and place; and what keeps a job where it is. */
import t, { type Test } from 'tap';
import { v7 as newId } from 'uuid';
import type { ClaimedJob } from '../../src/domain/job.ts';
import { cancelJobs } from '../../src/postgres/cancel-jobs.ts';
import { insertBatch } from '../../src/postgres/insert-batch.ts';
import { type RetryOutcome, type RetryRequest, retryJobs } from '../../src/postgres/retry-jobs.ts';
import type { SettleRow } from '../../src/postgres/settle-jobs.ts';
import { newSweepCursor, sweepLanes } from '../../src/postgres/sweep.ts';
import { type Claims, jobIds, throttledFor, useClaims } from '../support/claims.ts';
import type { TestDatabaseOptions } from '../support/database.ts';
import { submissionOf } from '../support/intake.ts';

const dayMs = 86_400_000;

async function setup(t: Test, options: TestDatabaseOptions = {}): Promise<Claims> {
  const store = await useClaims(t, options);
  await store.putUpstream('api');
  return store;
}

function retry(store: Claims, jobIds: readonly string[], more: Partial<RetryRequest> = {}): Promise<RetryOutcome[]> {
  const from = ['failed', 'cancelled', 'expired', 'held'] as const;
  return retryJobs(store.database, { tenant: 'default', jobIds, from, freshKey: false, ...more });
}

const failed = {
  next: { kind: 'done', state: 'failed', reason: 'attempts_exhausted', evidence: null },
  outcome: 'error',
  status: 500,
} as const satisfies Partial<SettleRow>;
const unknown = { outcome: 'unknown', status: null, outcomeUnknown: true } as const satisfies Partial<SettleRow>;
const held = {
  ...unknown,
  next: { kind: 'held', reason: 'outcome_unknown' },
} as const satisfies Partial<SettleRow>;

/** One job, claimed and settled like this. */
async function settledJob(store: Claims, fields: Partial<SettleRow>): Promise<string> {
  await store.addJobs({ count: 1 });
  const { jobs } = await store.claim(1);
  await store.settle(jobs, fields);
  return jobs[0]!.jobId;
}

async function claimOne(store: Claims): Promise<ClaimedJob> {
  const { jobs } = await store.claim(1);
  if (jobs.length !== 1) throw new Error('nothing was claimed');
  return jobs[0]!;
}

/** Lets what is known of the job's first send be this old. */
async function ageKey({ database }: Claims, jobId: string, ms: number): Promise<void> {
  for (const table of ['done_jobs', 'parked_jobs', 'ready_jobs']) {
    await database.query(
      `update sluice.${table} set first_sent_at = clock_timestamp() - make_interval(secs => $2::float8 / 1000) where job_id = $1`,
      [jobId, ms],
    );
  }
}

t.test('budgets start anew, calls and epoch go on, the key stays, the place too', async (t) => {
  const store = await setup(t);
  await store.addJobs({ count: 1 });
  const first = await claimOne(store);
  await store.settle([first], throttledFor(1));
  await store.database.query('delete from sluice.cooldowns');
  await store.database.query('update sluice.lane_groups set next_at = clock_timestamp(), closed_by = null');
  await store.settle([await claimOne(store)], failed);
  await store.addJobs({ count: 1 });
  t.same(await retry(store, [first.jobId]), [{ kind: 'retried' }]);
  const again = await claimOne(store);
  t.match(
    again,
    {
      jobId: first.jobId,
      attemptsUsed: 0,
      throttles: 0,
      calls: 2,
      epoch: 3,
      freshKeys: 0,
      outcomeUnknown: false,
    },
    'before the one that was accepted after it',
  );
});

t.test(
  'each ended state but success goes on again; what runs, waits or succeeded does not; no other tenant can',
  async (t) => {
    const store = await setup(t);
    const succeeded = await settledJob(store, {});
    const hasFailed = await settledJob(store, failed);
    const isHeld = await settledJob(store, held);
    const scheduled = await settledJob(store, {
      ...failed,
      next: { kind: 'scheduled', delayMs: 60_000, reason: null },
    });
    await store.addJobs({ count: 1, expiresAt: `clock_timestamp() - interval '1 second'` });
    await store.claim(1);
    await store.addJobs({ count: 3 });
    const ids = await jobIds(store);
    const [expired, running, cancelled, ready] = ids.slice(4) as [string, string, string, string];
    t.equal((await claimOne(store)).jobId, running);
    await cancelJobs(store.database, [cancelled]);
    const all = [succeeded, hasFailed, isHeld, scheduled, expired, running, cancelled, ready, newId()];
    t.same(
      (await retry(store, all, { tenant: 'other' })).map(({ kind }) => kind),
      all.map(() => 'elsewhere'),
    );
    t.same(
      (await retry(store, all)).map(({ kind }) => kind),
      ['elsewhere', 'retried', 'retried', 'elsewhere', 'retried', 'elsewhere', 'retried', 'elsewhere', 'elsewhere'],
    );
    t.same(
      (await store.claimAll(10)).map(({ jobId }) => jobId),
      [hasFailed, isHeld, expired, cancelled, ready],
      'the deadline that passed does not end it again',
    );
  },
);

t.test('before its run_at a job is scheduled again, and keeps a deadline that is still to come', async (t) => {
  const store = await setup(t);
  await store.addJobs({
    count: 1,
    runAt: `clock_timestamp() + interval '1 hour'`,
    expiresAt: `clock_timestamp() + interval '2 hours'`,
  });
  const [id] = (await jobIds(store)) as [string];
  await store.database.query(`update sluice.jobs set run_at = clock_timestamp() + interval '1 hour'`);
  await cancelJobs(store.database, [id]);
  t.same(await retry(store, [id]), [{ kind: 'retried' }]);
  t.same(
    await store.database.query(
      'select p.state, p.due_at = j.run_at as due, p.expires_at = j.expires_at as expires from sluice.parked_jobs p join sluice.jobs j on j.id = p.job_id',
    ),
    [{ state: 'scheduled', due: true, expires: true }],
  );
});

t.test('a lane that was swept away is made anew, and is woken', async (t) => {
  const store = await setup(t);
  const id = await settledJob(store, failed);
  await store.claim(1);
  const before = await store.database.query('select id from sluice.lanes');
  t.equal(await sweepLanes(store.database, newSweepCursor(), { idleSeconds: 0, most: 10 }), 1);
  await retry(store, [id]);
  t.equal((await claimOne(store)).jobId, id);
  const [lane] = await store.database.query<{ same: boolean }>(
    'select l.id = j.lane_id as same from sluice.lanes l, sluice.jobs j',
  );
  t.same(lane, { same: true });
  t.not((await store.database.query('select id from sluice.lanes'))[0], before[0]);
});

t.test('a held head of a fifo lane that is retried goes first', async (t) => {
  const store = await setup(t);
  await store.putQueue('line', { ordering: 'fifo' });
  await store.addJobs({ count: 2, queue: 'line' });
  const head = await claimOne(store);
  await store.settle([head], held);
  t.same((await store.claim(1)).jobs, [], 'it holds the lane');
  await retry(store, [head.jobId]);
  t.equal((await claimOne(store)).jobId, head.jobId);
});

t.test('its upstream gone, its queue gone: it stays where it is', async (t) => {
  const store = await setup(t);
  const id = await settledJob(store, failed);
  await store.database.query(`delete from sluice.upstreams`);
  t.same(await retry(store, [id]), [{ kind: 'undefined', queue: 'default', upstream: 'api' }]);
  t.same(await store.database.query('select state from sluice.done_jobs'), [{ state: 'failed' }]);
});

t.test('a fresh key: refused while an outcome is unknown, else one that nobody has seen, of no age', async (t) => {
  const store = await setup(t);
  const isHeld = await settledJob(store, held);
  const unknownEnd = await settledJob(store, { ...failed, ...unknown });
  const forgotten = await settledJob(store, { ...held, outcomeUnknown: false });
  const hasFailed = await settledJob(store, failed);
  const ids = [isHeld, unknownEnd, forgotten, hasFailed];
  t.same(
    (await retry(store, ids, { freshKey: true })).map(({ kind }) => kind),
    ['outcome_unknown', 'outcome_unknown', 'outcome_unknown', 'retried'],
  );
  const fresh = await claimOne(store);
  t.match(fresh, { jobId: hasFailed, freshKeys: 1, firstSentAgeMs: null });
  await store.settle([fresh], failed);
  await retry(store, [hasFailed]);
  const same = await claimOne(store);
  t.equal(same.freshKeys, 1, 'it stays the same until the next wish');
  t.ok(same.firstSentAgeMs !== null);
});

t.test(
  'the age of the key counts from the decision, unless nobody knows what the calls of an ended job did',
  async (t) => {
    const store = await setup(t);
    const isHeld = await settledJob(store, held);
    const hasFailed = await settledJob(store, failed);
    const unknownEnd = await settledJob(store, { ...failed, ...unknown });
    for (const id of [isHeld, hasFailed, unknownEnd]) await ageKey(store, id, 3 * dayMs);
    await retry(store, [isHeld, hasFailed, unknownEnd]);
    const ages = new Map((await store.claimAll(10)).map(({ jobId, firstSentAgeMs }) => [jobId, firstSentAgeMs!]));
    t.ok(ages.get(isHeld)! < dayMs, 'a person has said so');
    t.ok(ages.get(hasFailed)! < dayMs);
    t.ok(ages.get(unknownEnd)! > 2 * dayMs, 'it is held by the check before a send');
    t.same(
      await store.database.query(
        `select bool_and(first_sent_at < clock_timestamp() - interval '2 days') as "true" from sluice.running_jobs`,
      ),
      [{ true: true }],
      'when it was first sent stays on record',
    );
  },
);

t.test('a key that was forgotten is taken again; where another job has it, the old one stays', async (t) => {
  const store = await setup(t, { breaks: ['job_of_a_key'] });
  const { items } = submissionOf([
    { idempotency_key: 'mine', body: { amount: 5 }, headers: { 'X-A': 'b' } },
    { idempotency_key: 'theirs', body_text: 'as it is' },
  ]);
  const intake = () =>
    insertBatch(store.database, {
      tenant: 'default',
      correlationId: null,
      requestKey: null,
      definitionsVersion: null,
      items,
    });
  await intake();
  const jobs = await store.claimAll(10);
  await store.settle(jobs, failed);
  const idOf = (key: string) => jobs.find(({ idempotencyKey }) => idempotencyKey === key)!.jobId;
  await store.database.query('delete from sluice.idempotency_keys');
  await store.database.query('update sluice.batches set keys_gone = true');
  await store.database.query(
    `insert into sluice.idempotency_keys (tenant, key, fingerprint, job_id)
     select 'default', 'theirs', '\\x00', id from sluice.jobs where idempotency_key = 'mine'`,
  );
  t.same(await retry(store, [idOf('mine'), idOf('theirs')]), [{ kind: 'retried' }, { kind: 'key_taken' }]);
  t.same(await store.database.query('select keys_gone from sluice.batches'), [{ keys_gone: false }]);
  const again = await intake();
  if (again.kind !== 'inserted') throw new Error('not inserted');
  t.same(
    again.batch.items.map(({ verdict }) => verdict),
    ['duplicate', 'conflict'],
    'the request is known as the same one',
  );
});

t.test('of two at the same time, one sends it on its way', async (t) => {
  const store = await setup(t);
  const id = await settledJob(store, failed);
  const kinds = (await Promise.all([retry(store, [id]), retry(store, [id]), retry(store, [id])])).flat();
  t.same(kinds.map(({ kind }) => kind).sort(), ['elsewhere', 'elsewhere', 'retried']);
});

t.test('a job that is retried after its batch was cancelled goes on like any other', async (t) => {
  const store = await setup(t);
  const id = await settledJob(store, failed);
  await store.database.query('update sluice.batches set cancelled_at = clock_timestamp()');
  await retry(store, [id]);
  await store.settle([await claimOne(store)], { ...failed, next: { kind: 'ready' } });
  t.equal((await claimOne(store)).jobId, id);
});
