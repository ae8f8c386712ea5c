/** What is past its retention goes, what is not stays: keys, receipts, batches, jobs and attempts. */
import t, { type Test } from 'tap';
import { type Database, openDatabase } from '../../src/postgres/database.ts';
import { readReceipts } from '../../src/postgres/receipts.ts';
import { newRetentionCursor, retainOnce } from '../../src/postgres/retention.ts';
import { retireBatches } from '../../src/postgres/retire-batches.ts';
import { retryJobs } from '../../src/postgres/retry-jobs.ts';
import { inTransaction } from '../../src/postgres/transaction.ts';
import { createLogger } from '../../src/system/logger.ts';
import type { BatchAnswer } from '../support/client.ts';
import { defaults, useIntake } from '../support/intake.ts';
import { ageBatch, ageEnd, endJob, retentionRound } from '../support/old-rows.ts';

/** As they are by default. */
const policy = { retentionDays: 30, keyRetentionDays: 7 };
/** The rows go first. */
const rowsFirst = { retentionDays: 7, keyRetentionDays: 30 };

async function setup(t: Test) {
  const intake = await useIntake(t);
  const { database } = intake;
  return {
    ...intake,
    /** A batch with these keys; gives its id. */
    async batch(...keys: string[]): Promise<string> {
      const { body } = await intake.post<BatchAnswer>({
        defaults,
        items: keys.map((key) => ({ idempotency_key: key })),
      });
      return body.batch_id;
    },
    /** The state of each key's job by its receipt; null: the key is not known. */
    async receipts(...keys: string[]) {
      return (await readReceipts(database, 'default', keys)).map((receipt) => receipt?.state ?? null);
    },
    statusOf: async (path: string) => (await intake.get(path)).status,
    /** Rows in all tables that a job or a batch has. */
    async rows() {
      const tables = ['batches', 'batch_items', 'jobs', 'done_jobs', 'attempts', 'idempotency_keys', 'receipts'];
      const counts: Record<string, number> = {};
      for (const table of tables) counts[table] = await intake.count(table);
      return counts;
    },
  };
}

t.test('batches and all that is theirs go after the retention of their jobs, not a minute before', async (t) => {
  const { database, batch, statusOf, count } = await setup(t);
  const [old, young] = [await batch('old', 'older'), await batch('young', 'younger')];
  const oldJobs = [await endJob(database, 'old', '30 days 1 minute'), await endJob(database, 'older', '90 days')];
  const youngJobs = [await endJob(database, 'young', '29 days 23:59'), await endJob(database, 'younger', '90 days')];
  for (const id of [old, young]) await ageBatch(database, id, '90 days');
  await database.query(
    `insert into sluice.reconciliations (job_id, epoch, started_at, at, verdict)
     select job_id, 1, ended_at, ended_at, 'absent' from sluice.done_jobs`,
  );

  t.match(await retentionRound(database, policy), { batches: 1, jobs: 2 });
  t.equal(await statusOf(`/v1/batches/${old}`), 404);
  for (const id of oldJobs) t.equal(await statusOf(`/v1/jobs/${id}`), 404);
  t.equal(await statusOf(`/v1/batches/${young}`), 200);
  for (const id of youngJobs)
    t.equal(await statusOf(`/v1/jobs/${id}`), 200, 'also one that ended long ago: by batches');
  for (const table of ['batch_items', 'jobs', 'done_jobs', 'attempts', 'reconciliations']) {
    t.equal(await count(table), 2, `${table} of the young batch only`);
  }
});

t.test('a batch stays as long as one of its jobs has not ended', async (t) => {
  const { database, batch, statusOf } = await setup(t);
  const ids = [await batch('done', 'ready'), await batch('done-too', 'held')];
  await endJob(database, 'done', '60 days');
  await endJob(database, 'done-too', '60 days');
  await database.query(
    `with gone as (delete from sluice.ready_jobs r using sluice.jobs j
                    where j.id = r.job_id and j.idempotency_key = 'held' returning r.*)
     insert into sluice.parked_jobs (job_id, lane_id, rank, seq, state, reason, cost)
     select job_id, lane_id, rank, seq, 'held', 'outcome_unknown', cost from gone`,
  );
  for (const id of ids) await ageBatch(database, id, '90 days');
  t.match(await retentionRound(database, policy), { batches: 0, jobs: 0 });
  for (const id of ids) t.equal(await statusOf(`/v1/batches/${id}`), 200);
});

t.test('a batch in which nothing was accepted goes by its own age', async (t) => {
  const { post, database, statusOf } = await setup(t);
  const ids: string[] = [];
  for (const age of ['29 days 23:59', '30 days 1 minute']) {
    const { body } = await post<BatchAnswer>({ defaults, items: [{ idempotency_key: 'k', cost: 0 }] });
    await ageBatch(database, body.batch_id, age);
    ids.push(body.batch_id);
  }
  t.match(await retentionRound(database, policy), { batches: 1, jobs: 0 });
  t.equal(await statusOf(`/v1/batches/${ids[0]}`), 200);
  t.equal(await statusOf(`/v1/batches/${ids[1]}`), 404);
});

t.test('keys go after their own retention, not a minute before, and the job stays', async (t) => {
  const { database, batch, submit, receipts, statusOf, count } = await setup(t);
  const id = await batch('old', 'young', 'unfinished');
  const jobId = await endJob(database, 'old', '7 days 1 minute');
  await endJob(database, 'young', '6 days 23:59');
  await ageBatch(database, id, '90 days');
  t.match(await retentionRound(database, policy), { keys: 1, batches: 0, jobs: 0 });
  t.same(await receipts('old', 'young', 'unfinished'), [null, 'succeeded', 'ready']);
  t.equal(await statusOf(`/v1/jobs/${jobId}`), 200);

  const verdicts = await submit([{ idempotency_key: 'old' }, { idempotency_key: 'young' }]);
  t.same(
    verdicts.map(({ verdict }) => verdict),
    ['accepted', 'duplicate'],
  );
  t.match(await retentionRound(database, policy), { keys: 0 }, 'the key is the new job’s now, which has not ended');
  t.same(await receipts('old'), ['ready']);

  await endJob(database, 'unfinished', '8 days');
  await ageEnd(database, (await readReceipts(database, 'default', ['young']))[0]!.jobId, '8 days');
  t.match(await retentionRound(database, policy), { keys: 2 }, 'a walk from the start finds what was too young');
  const marks = await database.query<{ keys_gone: boolean }>(
    'select keys_gone from sluice.batches order by created_at',
  );
  t.same(
    marks.map(({ keys_gone }) => keys_gone),
    [true, false],
    'the walk for keys need not look at the first batch again',
  );
  t.equal(await count('idempotency_keys'), 1);
});

t.test('a receipt of the receiver goes with its key', async (t) => {
  const { database, batch, count } = await setup(t);
  const id = await batch('k');
  const jobId = await endJob(database, 'k', '8 days');
  await database.query(
    `insert into sluice.receipts (job_id, tenant, idempotency_key, state, evidence, attempts, ended_at)
     select job_id, 'default', 'k', 'succeeded', 'receipt', 1, ended_at from sluice.done_jobs where job_id = $1`,
    [jobId],
  );
  t.match(await retentionRound(database, policy), { keys: 0 }, 'the batch is too young to be looked at');
  await ageBatch(database, id, '9 days');
  t.match(await retentionRound(database, policy), { keys: 1 });
  t.equal(await count('receipts'), 0);
});

t.test('where rows go before keys, the receipt stays and the key is still known', async (t) => {
  const { database, batch, submit, receipts, statusOf, rows } = await setup(t);
  const id = await batch('k');
  const jobId = await endJob(database, 'k', '7 days 1 minute');
  await ageBatch(database, id, '8 days');
  t.match(await retentionRound(database, rowsFirst), { batches: 1, jobs: 1, keys: 0 });
  t.equal(await statusOf(`/v1/jobs/${jobId}`), 404);
  t.match(await readReceipts(database, 'default', ['k']), [{ jobId, state: 'succeeded', excerpt: 'kept answer' }]);
  t.match(await submit([{ idempotency_key: 'k' }]), [{ verdict: 'duplicate', job_id: jobId, job_state: 'succeeded' }]);
  t.match(await submit([{ idempotency_key: 'k', body: 'another' }]), [{ verdict: 'conflict' }]);

  await ageEnd(database, jobId, '29 days 23:59');
  t.match(await retentionRound(database, rowsFirst), { keys: 0 });
  await ageEnd(database, jobId, '30 days 1 minute');
  t.match(await retentionRound(database, rowsFirst), { keys: 1 });
  t.same(await receipts('k'), [null]);
  t.match(await rows(), { receipts: 0, idempotency_keys: 0 });
  t.match(await submit([{ idempotency_key: 'k' }]), [{ verdict: 'accepted' }]);
});

t.test('a job stays for the batch that it is a duplicate in, and goes with it', async (t) => {
  for (const [name, periods] of Object.entries({ 'keys first': policy, 'rows first': rowsFirst })) {
    await t.test(name, async (t) => {
      const { database, batch, statusOf, get, rows } = await setup(t);
      const first = await batch('shared');
      const jobId = await endJob(database, 'shared', '60 days');
      const second = await batch('shared', 'own', 'shared');
      await ageBatch(database, first, '90 days');
      await ageBatch(database, second, '50 days');
      t.match(await retentionRound(database, periods), { batches: 1, jobs: 0 });
      t.equal(await statusOf(`/v1/batches/${first}`), 404);
      t.equal(await statusOf(`/v1/jobs/${jobId}`), 200);
      const { body } = await get(`/v1/batches/${second}`);
      t.match(body, { jobs: { succeeded: 1, ready: 1 }, progress: 0.5 });

      await endJob(database, 'own', '40 days');
      t.match(await retentionRound(database, periods), { batches: 1, jobs: 2 });
      t.equal(await statusOf(`/v1/jobs/${jobId}`), 404);
      t.match(await retentionRound(database, periods), { batches: 0, jobs: 0, keys: 0 });
      t.same(
        await rows(),
        { batches: 0, batch_items: 0, jobs: 0, done_jobs: 0, attempts: 0, idempotency_keys: 0, receipts: 0 },
        'nothing is left of either',
      );
    });
  }
  await t.test('the other way round: the batch that brought it keeps it', async (t) => {
    const { database, batch, statusOf } = await setup(t);
    const first = await batch('shared', 'unfinished');
    const second = await batch('shared');
    const jobId = await endJob(database, 'shared', '60 days');
    for (const id of [first, second]) await ageBatch(database, id, '90 days');
    t.match(await retentionRound(database, policy), { batches: 1, jobs: 0 });
    t.equal(await statusOf(`/v1/batches/${second}`), 404);
    t.equal(await statusOf(`/v1/jobs/${jobId}`), 200);
  });
});

t.test('small steps', async (t) => {
  const keys = Array.from({ length: 35 }, (_, i) => `k${i}`);

  t.test('a batch larger than a step leaves sight at once and goes piece by piece, whoever goes on', async (t) => {
    const { database, batch, statusOf, rows, count } = await setup(t);
    const id = await batch(...keys, 'k3');
    for (const key of keys) await endJob(database, key, '60 days');
    await ageBatch(database, id, '90 days');
    const cursor = newRetentionCursor();
    const step = () => retainOnce(database, policy, cursor, { most: 10 });
    for (let left = 35; left > 0; left -= (await step()).keys) {
      t.ok((await count('idempotency_keys')) === left, `${left} keys are left`);
    }
    let last = await step();
    while (last.batches === 0) last = await step();
    t.equal(await statusOf(`/v1/batches/${id}`), 404, 'the batch is out of sight');
    t.equal(await count('batch_items'), 36, 'and all of it is still there');

    await step();
    t.equal((await step()).jobs, 10, 'one piece');
    const round = await retentionRound(database, policy, { most: 10 });
    t.match(round, { batches: 0, jobs: 25, mostJobs: 10 }, 'another process, with no memory of it, clears the rest');
    t.same(Object.values(await rows()), [0, 0, 0, 0, 0, 0, 0]);
    t.equal(await count('retired_batches'), 0);
  });

  t.test('one job that has not ended keeps a large batch, in whichever piece it is', async (t) => {
    const { database, batch, statusOf } = await setup(t);
    for (const unfinished of ['k0', 'k17', 'k34']) {
      const id = await batch(...keys.map((key) => `${unfinished}-${key}`));
      for (const key of keys) if (key !== unfinished) await endJob(database, `${unfinished}-${key}`, '60 days');
      await ageBatch(database, id, '90 days');
      t.match(await retentionRound(database, policy, { most: 10 }), { batches: 0, jobs: 0, keys: 34 });
      t.match(await retentionRound(database, policy, { most: 10 }), { batches: 0, jobs: 0, keys: 0 });
      t.equal(await statusOf(`/v1/batches/${id}`), 200);
    }
  });

  t.test('a job that came back to life after its batch left sight is not lost', async (t) => {
    const { database, batch, count, statusOf } = await setup(t);
    const id = await batch(...keys);
    for (const key of keys) await endJob(database, key, '60 days', 'failed');
    await ageBatch(database, id, '90 days');
    const cursor = newRetentionCursor();
    while ((await retainOnce(database, policy, cursor, { most: 10 })).batches === 0);
    const [revived] = await database.query<{ id: string }>(
      `with gone as (delete from sluice.done_jobs d using sluice.jobs j
                      where j.id = d.job_id and j.idempotency_key = 'k7' returning d.job_id, j.lane_id, j.rank, j.seq, j.cost)
       insert into sluice.ready_jobs (job_id, lane_id, rank, seq, cost, eligible_at)
       select job_id, lane_id, rank, seq, cost, clock_timestamp() from gone returning job_id as id`,
    );
    t.match(await retentionRound(database, policy, { most: 10, cursor }), { jobs: 34 });
    t.equal(await statusOf(`/v1/jobs/${revived!.id}`), 200);
    t.equal(await count('retired_batches'), 1, 'it is remembered');

    await endJob(database, 'k7', '30 days 1 minute');
    t.match(await retentionRound(database, policy), { jobs: 0 }, 'and looked at again in an hour');
    await database.query('update sluice.retired_batches set due_at = clock_timestamp()');
    t.match(await retentionRound(database, policy), { jobs: 1 });
    t.equal(await count('retired_batches'), 0);
    t.equal(await count('batch_items'), 0);
  });

  t.test('what of a large batch stays for another keeps nothing of it waiting', async (t) => {
    const { database, batch, count, rows, statusOf } = await setup(t);
    const id = await batch(...keys);
    const other = await batch('k7', 'own');
    for (const key of keys) await endJob(database, key, '60 days');
    await ageBatch(database, id, '90 days');
    t.match(await retentionRound(database, policy, { most: 10 }), { batches: 1, jobs: 34 });
    t.equal(await count('retired_batches'), 0);
    const [kept] = await database.query<{ id: string }>('select id from sluice.jobs where batch_id = $1', [id]);
    t.equal(await statusOf(`/v1/jobs/${kept!.id}`), 200);
    await endJob(database, 'own', '60 days');
    await ageBatch(database, other, '90 days');
    t.match(await retentionRound(database, policy), { batches: 1, jobs: 2 });
    t.same(Object.values(await rows()), [0, 0, 0, 0, 0, 0, 0]);
  });

  t.test('many small batches fill a step together, and none is cut in two', async (t) => {
    const { database, batch, count } = await setup(t);
    for (let i = 0; i < 12; i += 1) {
      const id = await batch(`${i}-a`, `${i}-b`, `${i}-c`);
      for (const part of ['a', 'b', 'c']) await endJob(database, `${i}-${part}`, '60 days');
      await ageBatch(database, id, `90 days ${i} minutes`);
    }
    t.match(await retentionRound(database, policy, { most: 10 }), { batches: 12, jobs: 36, mostJobs: 9 });
    t.equal(await count('jobs'), 0);
  });

  t.test('rounds go on where the last one stopped', async (t) => {
    const { database, batch, statusOf } = await setup(t);
    const cursor = newRetentionCursor();
    const [passed, later] = [await batch('passed'), await batch('later')];
    await ageBatch(database, passed, '50 days');
    t.match(await retentionRound(database, policy, { cursor }), { batches: 0 });
    for (const key of ['passed', 'later']) await endJob(database, key, '35 days');
    await ageBatch(database, later, '40 days');
    t.match(await retentionRound(database, policy, { cursor }), { batches: 1 });
    t.equal(await statusOf(`/v1/batches/${later}`), 404);
    t.equal(await statusOf(`/v1/batches/${passed}`), 200, 'not looked at again');
    t.match(await retentionRound(database, policy), { batches: 1 }, 'until the walk begins anew');
  });
});

t.test('a job is listed by its key as long as it is there', async (t) => {
  const { database, batch, get, count } = await setup(t);
  const listed = async (key: string) => {
    const { body } = await get<{ items: { job_id: string }[] }>(`/v1/jobs?idempotency_key=${key}`);
    return body.items.map((job) => job.job_id);
  };

  await t.test('also when its key has expired, beside the later jobs of that key', async (t) => {
    const ids: string[] = [];
    for (const age of ['29 days', '20 days', '8 days']) {
      const id = await batch('again');
      ids.unshift(await endJob(database, 'again', age));
      await ageBatch(database, id, '29 days');
      t.match(await retentionRound(database, policy), { keys: 1, jobs: 0 });
    }
    await batch('again', 'other');
    const jobs = await listed('again');
    t.equal(jobs.length, 4);
    t.same(jobs.slice(1), ids, 'the newest first');
    t.equal(await count('former_keys'), 3);
    t.equal((await listed('other')).length, 1);
    t.same(await listed('nobody'), []);
  });

  await t.test('once only where a person has had it run again', async (t) => {
    const id = await batch('retried');
    const jobId = await endJob(database, 'retried', '8 days', 'failed');
    await ageBatch(database, id, '9 days');
    t.match(await retentionRound(database, policy), { keys: 1 });
    const request = { tenant: 'default', jobIds: [jobId], from: ['failed'], freshKey: false } as const;
    t.same(await retryJobs(database, request), [{ kind: 'retried' }]);
    t.same(await listed('retried'), [jobId]);
    await endJob(database, 'retried', '8 days');
    t.match(await retentionRound(database, policy), { keys: 1 });
    t.same(await listed('retried'), [jobId]);
  });

  await t.test('and no longer', async (t) => {
    await database.query(`update sluice.done_jobs set ended_at = ended_at - interval '30 days'`);
    await database.query(`update sluice.batches set created_at = created_at - interval '40 days'`);
    t.match(await retentionRound(database, policy), { jobs: 4 });
    t.equal((await listed('again')).length, 1, 'the one that has not ended');
    t.equal(await count('former_keys'), 0);
    const kept = await batch('key-kept');
    await endJob(database, 'key-kept', '8 days');
    await ageBatch(database, kept, '9 days');
    t.match(await retentionRound(database, rowsFirst), { keys: 0, jobs: 1 }, 'where keys live longer');
    t.same(await listed('key-kept'), []);
    t.equal(await count('idempotency_keys'), 3);
  });
});

t.test('nobody waits', async (t) => {
  /** A second process. */
  function another(t: Test, connectionString: string): Database {
    const database = openDatabase({ connectionString, max: 2, logger: createLogger('silent') });
    t.teardown(() => database.close());
    return database;
  }

  t.test('retention passes over what somebody holds, and takes it another time', async (t) => {
    const { database, connectionString, batch, count } = await setup(t);
    const ids = [await batch('held', 'beside'), await batch('free'), await batch('locked')];
    for (const key of ['held', 'beside', 'free', 'locked']) await endJob(database, key, '60 days');
    for (const id of ids) await ageBatch(database, id, '90 days');
    await inTransaction(another(t, connectionString), async (client) => {
      await client.query(
        `select 1 from sluice.done_jobs d join sluice.jobs j on j.id = d.job_id where j.idempotency_key = 'held' for update of d`,
      );
      await client.query('select 1 from sluice.batches where id = $1 for update', [ids[2]]);
      t.match(await retentionRound(database, policy), { keys: 3, batches: 1, jobs: 1 });
    });
    t.equal(await count('batches'), 2);
    t.match(await retentionRound(database, policy), { keys: 1, batches: 2, jobs: 3 });
  });

  t.test('one process steps at a time; another has nothing to do meanwhile', async (t) => {
    const { database, connectionString, batch } = await setup(t);
    const id = await batch('k');
    await endJob(database, 'k', '60 days');
    await ageBatch(database, id, '90 days');
    await inTransaction(another(t, connectionString), async (client) => {
      await client.query('select pg_advisory_xact_lock(7305004)');
      const step = await retainOnce(database, policy, newRetentionCursor(), { most: 10 });
      t.same(step, { keys: 0, batches: 0, jobs: 0, roundOver: true });
    });
    t.match(await retentionRound(database, policy), { batches: 1 });
  });

  t.test('in the middle of a step others submit and read, and its locks are those of rows', async (t) => {
    const { database, connectionString, batch, submit, statusOf } = await setup(t);
    const id = await batch('old');
    await endJob(database, 'old', '60 days');
    await ageBatch(database, id, '90 days');
    await inTransaction(another(t, connectionString), async (client) => {
      t.same(await retireBatches(client, [id], 30), { batches: 1, jobs: 1 });
      t.match(await submit([{ idempotency_key: 'new' }, { idempotency_key: 'old' }]), [
        { verdict: 'accepted' },
        { verdict: 'duplicate' },
      ]);
      t.equal(await statusOf(`/v1/batches/${id}`), 200, 'it is there until the commit');
      const modes = await client.query<{ mode: string }>(
        `select distinct mode from pg_locks where pid = pg_backend_pid() and locktype = 'relation' order by mode`,
      );
      t.same(
        modes.map(({ mode }) => mode),
        ['AccessShareLock', 'RowExclusiveLock', 'RowShareLock'],
      );
    });
    t.equal(await statusOf(`/v1/batches/${id}`), 404);
  });
});
