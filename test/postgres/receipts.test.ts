/** Receipts by key, from the job's own rows and from what is kept when these go. */
import t from 'tap';
import { putReceipt } from '../../src/postgres/put-receipt.ts';
import { archiveReceipts, readReceipts, type StoredReceipt } from '../../src/postgres/receipts.ts';
import type { SettleRow } from '../../src/postgres/settle-jobs.ts';
import { inTransaction } from '../../src/postgres/transaction.ts';
import { type Claims, useClaims } from '../support/claims.ts';

const rejected: Partial<SettleRow> = {
  next: { kind: 'done', state: 'failed', reason: 'rejected_by_upstream', evidence: 'response' },
  outcome: 'rejected',
  status: 422,
  excerpt: 'no such account',
  truncated: true,
  sha256: '07'.repeat(32),
};
const failedOnce: Partial<SettleRow> = {
  next: { kind: 'ready' },
  outcome: 'error',
  status: 422,
  excerpt: 'an earlier answer with the same status',
};
const applied: Partial<SettleRow> = {
  next: { kind: 'done', state: 'succeeded', reason: null, evidence: 'reconciled' },
  outcome: null,
  charge: 'none',
  status: 200,
  reconciliation: 'applied',
  mayHaveHadEffect: false,
};
const exhausted: Partial<SettleRow> = {
  next: { kind: 'done', state: 'failed', reason: 'attempts_exhausted', evidence: null },
  outcome: 'timeout',
  status: null,
  excerpt: null,
  sha256: null,
};

/** Deletes the rows of all ended jobs, as retention does. */
async function retire(store: Claims, { archive = true } = {}): Promise<number> {
  return inTransaction(store.database, async (client) => {
    const rows = await client.query<{ job_id: string }>('select job_id from sluice.done_jobs');
    const ids = rows.map((row) => row.job_id);
    const archived = archive ? await archiveReceipts(client, ids) : 0;
    for (const table of ['attempts', 'reconciliations', 'done_jobs']) {
      await client.query(`delete from sluice.${table} where job_id = any ($1::uuid[])`, [ids]);
    }
    await client.query('delete from sluice.jobs where id = any ($1::uuid[])', [ids]);
    return archived;
  });
}

const read = (store: Claims, ...keys: string[]) => readReceipts(store.database, 'default', keys);
const without = ({ jobId: _, firstSentAt, endedAt, ...rest }: StoredReceipt) => ({
  ...rest,
  sent: firstSentAt !== null,
  ended: endedAt !== null,
});

t.test('a receipt says the same before and after the rows of its job are gone, however the job ended', async (t) => {
  const store = await useClaims(t, { breaks: ['batch_counts'] });
  await store.putUpstream('api');
  await store.addJobs({ count: 5 });
  const claimed = (await store.claim(5)).jobs;
  const [first, second, third, fourth] = claimed;
  await store.settle([first!]);
  await store.settle([second!], failedOnce);
  await store.settle((await store.claim(1)).jobs, rejected);
  await store.settle([third!], { next: { kind: 'ready' }, outcome: 'unknown', status: null, outcomeUnknown: true });
  await store.settle((await store.claim(1)).jobs, applied);
  await store.settle([fourth!], exhausted);
  const evidence = {
    status: 202,
    excerpt: 'in the books',
    truncated: false,
    sha256: Buffer.alloc(32, 9),
    note: 'by hand',
  };
  await putReceipt(store.database, 'default', 'k5', evidence);

  const before = await read(store, 'k1', 'k2', 'k3', 'k4', 'k5');
  t.match(
    before.map((receipt) => receipt?.jobId),
    claimed.map((job) => job.jobId),
  );
  const none = { reason: null, note: null, truncated: false, sent: true, ended: true };
  const noAnswer = { status: null, excerpt: null, sha256: null };
  t.same(
    before.map((receipt) => without(receipt!)),
    [
      {
        ...none,
        key: 'k1',
        state: 'succeeded',
        attempts: 1,
        status: 200,
        excerpt: 'ok',
        sha256: '00'.repeat(32),
        evidence: 'response',
      },
      {
        ...none,
        key: 'k2',
        state: 'failed',
        reason: 'rejected_by_upstream',
        attempts: 2,
        status: 422,
        excerpt: 'no such account',
        truncated: true,
        sha256: '07'.repeat(32),
        evidence: 'response',
      },
      { ...none, ...noAnswer, key: 'k3', state: 'succeeded', attempts: 1, evidence: 'reconciled' },
      { ...none, ...noAnswer, key: 'k4', state: 'failed', reason: 'attempts_exhausted', attempts: 1, evidence: null },
      {
        ...none,
        key: 'k5',
        state: 'succeeded',
        attempts: 1,
        status: 202,
        excerpt: 'in the books',
        sha256: '09'.repeat(32),
        evidence: 'receipt',
        note: 'by hand',
      },
    ],
  );
  t.equal(await retire(store), 4, 'that of the receiver is there already');
  t.same(await store.database.query('select 1 from sluice.jobs'), []);
  t.same(await read(store, 'k1', 'k2', 'k3', 'k4', 'k5'), before);
});

t.test('the receipt of an unfinished job is where it stands', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.addJobs({ count: 4 });
  const { jobs } = await store.claim(3);
  await store.settle(jobs.slice(0, 1), failedOnce);
  await store.settle(jobs.slice(1, 2), {
    next: { kind: 'held', reason: 'outcome_unknown' },
    outcome: 'unknown',
    status: null,
  });
  const unfinished = {
    status: null,
    excerpt: null,
    sha256: null,
    evidence: null,
    note: null,
    truncated: false,
    ended: false,
  };
  const receipts = await read(store, 'k1', 'k2', 'k3', 'k4');
  t.same(
    receipts.map((receipt) => without(receipt!)),
    [
      { ...unfinished, key: 'k1', state: 'ready', reason: null, attempts: 1, sent: true },
      { ...unfinished, key: 'k2', state: 'held', reason: 'outcome_unknown', attempts: 1, sent: true },
      { ...unfinished, key: 'k3', state: 'running', reason: null, attempts: 0, sent: false },
      { ...unfinished, key: 'k4', state: 'ready', reason: null, attempts: 0, sent: false },
    ],
  );
});

t.test('receipts come in the order of the keys, with a gap for each that is not known', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.addJobs({ count: 2 });
  const odd = ['é"\\,{}', 'NULL', '€'.repeat(255)];
  t.same(
    (await read(store, 'k2', 'x', 'k1', ...odd)).map((receipt) => receipt?.key ?? null),
    ['k2', null, 'k1', null, null, null],
  );
  t.same(await readReceipts(store.database, 'other', ['k1']), [null], 'of another tenant');
});

t.test('nothing is kept for a job whose key is forgotten, belongs to a later job, or that has not ended', async (t) => {
  const store = await useClaims(t, { breaks: ['batch_counts', 'job_of_a_key', 'key_of_a_job'] });
  await store.putUpstream('api');
  await store.addJobs({ count: 4 });
  await store.settle((await store.claim(3)).jobs);
  await store.database.query(`delete from sluice.idempotency_keys where key = 'k1'`);
  await store.database.query(`update sluice.idempotency_keys set job_id = gen_random_uuid() where key = 'k2'`);
  const archived = await inTransaction(store.database, async (client) => {
    const rows = await client.query<{ id: string }>('select id from sluice.jobs');
    return archiveReceipts(
      client,
      rows.map((row) => row.id),
    );
  });
  t.equal(archived, 1, 'the third alone');
  t.equal(await retire(store), 0, 'and only once');
  t.same(
    (await read(store, 'k1', 'k2', 'k3')).map((receipt) => receipt?.state ?? null),
    [null, null, 'succeeded'],
  );
});
