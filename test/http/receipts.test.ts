import { createHash } from 'node:crypto';
import t from 'tap';
import { claimJobs } from '../../src/postgres/claim-jobs.ts';
import { settleJobs } from '../../src/postgres/settle-jobs.ts';
import { newWorker, settleRow } from '../support/claims.ts';
import { type Answer, type Intake, type Problem, useIntake } from '../support/intake.ts';

interface Receipt {
  readonly idempotency_key: string;
  readonly job_id: string;
  readonly state: string;
  readonly status: number | null;
  readonly excerpt: string | null;
  readonly truncated: boolean;
  readonly sha256: string | null;
  readonly evidence: string | null;
  readonly note: string | null;
  readonly ended_at: string | null;
  readonly expires_at: string | null;
}

const sha256 = (text: string) => createHash('sha256').update(text).digest('hex');

async function send<T = Receipt>(
  intake: Intake,
  method: 'PUT' | 'POST',
  url: string,
  body?: unknown,
): Promise<Answer<T>> {
  const answer = await intake.app.app.inject({
    method,
    url,
    ...(body === undefined ? {} : { headers: { 'content-type': 'application/json' }, payload: JSON.stringify(body) }),
  });
  return { status: answer.statusCode, headers: answer.headers, body: answer.json<T>() };
}

/** Ends the job of each item, in their order, as succeeded. */
async function runAll({ database }: Intake): Promise<void> {
  const worker = await newWorker(database);
  const { jobs } = await claimJobs(database, worker, 100);
  await settleJobs(
    database,
    worker,
    jobs.map((job) => settleRow(job, { excerpt: `answer to ${job.idempotencyKey}` })),
  );
}

t.test('a receipt is read by its key, in the query or in the path, before the job ends and after', async (t) => {
  const intake = await useIntake(t);
  const [item] = await intake.submit([{ idempotency_key: 'ord-1', body: {} }]);
  t.same((await intake.get('/v1/receipts?key=ord-1')).body, {
    idempotency_key: 'ord-1',
    job_id: item!.job_id,
    state: 'ready',
    reason: null,
    attempts: 0,
    status: null,
    excerpt: null,
    truncated: false,
    sha256: null,
    evidence: null,
    note: null,
    first_sent_at: null,
    ended_at: null,
    expires_at: null,
  });
  await runAll(intake);
  const { status, body } = await intake.get<Receipt>('/v1/receipts/ord-1');
  t.equal(status, 200);
  t.match(body, {
    job_id: item!.job_id,
    state: 'succeeded',
    attempts: 1,
    status: 200,
    excerpt: 'answer to ord-1',
    sha256: '00'.repeat(32),
    evidence: 'response',
    first_sent_at: /^\d{4}-.*\.\d{3}Z$/,
  });
  t.equal(Date.parse(body.expires_at!) - Date.parse(body.ended_at!), 7 * 86_400_000, 'as long as the key is kept');
});

t.test('any legal key can be asked for in either place', async (t) => {
  const intake = await useIntake(t);
  const keys = ['a/b?c=d&e#f%+', 'with space', 'é', '😀'.repeat(255), '{"}\\', 'lookup', '..%2f'];
  await intake.submit(keys.map((idempotency_key) => ({ idempotency_key })));
  for (const key of keys) {
    const encoded = encodeURIComponent(key);
    for (const path of [`/v1/receipts?key=${encoded}`, `/v1/receipts/${encoded}`]) {
      t.equal((await intake.get<Receipt>(path)).body.idempotency_key, key, path);
    }
  }
});

t.test('a key that is not known, or cannot be one, is a 404; none at all is a 400', async (t) => {
  const intake = await useIntake(t);
  for (const key of ['nobody', 'a%00b', '%20x', 'x'.repeat(256), encodeURIComponent('\ud7ff'), '%0A']) {
    for (const path of [`/v1/receipts?key=${key}`, `/v1/receipts/${key}`]) {
      const { status, body } = await intake.get<Problem>(path);
      t.equal(status, 404, path);
      t.equal(body.code, 'not_found');
      t.equal((await send<Problem>(intake, 'PUT', path)).status, 404, `PUT ${path}`);
    }
  }
  t.equal((await intake.get('/v1/receipts?key=')).status, 404);
  for (const path of ['/v1/receipts', '/v1/receipts?key=a&more=1', '/v1/receipts?key=a&key=b']) {
    t.equal((await intake.get(path)).status, 400, path);
    t.equal((await send(intake, 'PUT', path)).status, 400, `PUT ${path}`);
  }
});

t.test('look-up: one item for each key, in their order, repeated and unknown ones too', async (t) => {
  const intake = await useIntake(t);
  await intake.submit([{ idempotency_key: 'k1' }, { idempotency_key: 'k2' }]);
  const keys = ['k2', 'nobody', 'k1', 'k2', 'a\u0000b', '\ud800', ''];
  const { status, body } = await send<{ items: Receipt[] }>(intake, 'POST', '/v1/receipts/lookup', { keys });
  t.equal(status, 200);
  t.match(
    body.items.map(({ state }) => state),
    ['ready', 'unknown_key', 'ready', 'ready', 'unknown_key', 'unknown_key', 'unknown_key'],
  );
  t.same(body.items[1], { idempotency_key: 'nobody', state: 'unknown_key' });
  t.same(body.items[0], (await intake.get('/v1/receipts?key=k2')).body);
  t.same(body.items[3], body.items[0]);
  t.same((await send(intake, 'POST', '/v1/receipts/lookup', { keys: [] })).body, { items: [] });
});

t.test('look-up: 1,000 keys, not one more', async (t) => {
  const intake = await useIntake(t);
  const keys = Array.from({ length: 1000 }, (_, index) => `k${index}`);
  await intake.submit(keys.map((idempotency_key) => ({ idempotency_key })));
  const { body } = await send<{ items: Receipt[] }>(intake, 'POST', '/v1/receipts/lookup', { keys: keys.toReversed() });
  t.same(
    body.items.map((item) => item.idempotency_key),
    keys.toReversed(),
  );
  t.ok(body.items.every(({ state }) => state === 'ready'));
  const refused = await send<Problem>(intake, 'POST', '/v1/receipts/lookup', { keys: [...keys, 'k'] });
  t.equal(refused.status, 400);
  t.match(refused.body.errors, [{ pointer: '/keys' }]);
  for (const wrong of [undefined, {}, { keys: 'k' }, { keys: [1] }, { keys: [], more: 1 }]) {
    t.equal((await send(intake, 'POST', '/v1/receipts/lookup', wrong)).status, 400, JSON.stringify(wrong));
  }
});

t.test(
  'PUT ends an unfinished job as succeeded, with what the receiver says; it is told wherever the job is',
  async (t) => {
    const intake = await useIntake(t);
    const [item] = await intake.submit([{ idempotency_key: 'ord-1', run_at: '2999-01-01T00:00:00Z' }]);
    const put = await send(intake, 'PUT', '/v1/receipts?key=ord-1', {
      status: 201,
      body: 'ch_1',
      note: 'from the ledger',
    });
    t.equal(put.status, 200);
    t.match(put.body, {
      idempotency_key: 'ord-1',
      job_id: item!.job_id,
      state: 'succeeded',
      reason: null,
      attempts: 0,
      status: 201,
      excerpt: 'ch_1',
      truncated: false,
      sha256: sha256('ch_1'),
      evidence: 'receipt',
      note: 'from the ledger',
    });
    t.same((await intake.get('/v1/receipts/ord-1')).body, put.body);
    const job = await intake.get<Record<string, unknown>>(`/v1/jobs/${item!.job_id}`);
    t.match(job.body, {
      state: 'succeeded',
      evidence: 'receipt',
      response: { status: 201, excerpt: 'ch_1', truncated: false, sha256: sha256('ch_1') },
      attempts: [],
      reconciliations: [],
    });
    const [again] = await intake.submit([{ idempotency_key: 'ord-1', run_at: '2999-01-01T00:00:00Z' }]);
    t.match(again, { verdict: 'duplicate', job_id: item!.job_id, job_state: 'succeeded' });
  },
);

t.test('PUT: everything in it is optional; a body is text, or any JSON in its text form', async (t) => {
  const intake = await useIntake(t);
  const none = { status: null, excerpt: null, sha256: null, truncated: false, note: null };
  const kept = (excerpt: string) => ({ ...none, excerpt, sha256: sha256(excerpt) });
  const long = '😀'.repeat(20_000);
  const cases: Array<[sent: unknown, told: object]> = [
    [undefined, none],
    [null, none],
    [{}, none],
    [{ status: null, body: null, note: null }, none],
    [{ status: 204 }, { ...none, status: 204 }],
    [{ body: { id: 'ch_1', amount: 5 } }, kept('{"id":"ch_1","amount":5}')],
    [{ body: [1] }, kept('[1]')],
    [{ body: false }, kept('false')],
    [{ body: '' }, kept('')],
    [
      { body: 'a\u0000b', note: 'n\u0000' },
      { ...none, excerpt: 'a\ufffdb', sha256: sha256('a\u0000b'), note: 'n\ufffd' },
    ],
    [{ body: long }, { ...none, excerpt: '😀'.repeat(16_384), sha256: sha256(long), truncated: true }],
  ];
  await intake.submit(cases.map((_, index) => ({ idempotency_key: `k${index}` })));
  for (const [index, [sent, told]] of cases.entries()) {
    const { status, body } = await send(intake, 'PUT', `/v1/receipts/k${index}`, sent);
    t.equal(status, 200);
    t.match(body, { ...told, state: 'succeeded', evidence: 'receipt' }, JSON.stringify(sent)?.slice(0, 60));
  }
});

t.test('PUT: what is not of the shape changes nothing', async (t) => {
  const intake = await useIntake(t);
  await intake.submit([{ idempotency_key: 'k' }]);
  for (const [sent, pointer] of [
    [{ status: 99 }, '/status'],
    [{ status: 600 }, '/status'],
    [{ status: '200' }, '/status'],
    [{ note: 5 }, '/note'],
    [{ note: 'x'.repeat(4001) }, '/note'],
    [{ more: 1 }, '/more'],
    [[], ''],
  ] as const) {
    const { status, body } = await send<Problem>(intake, 'PUT', '/v1/receipts/k', sent);
    t.equal(status, 400, JSON.stringify(sent).slice(0, 60));
    t.equal(body.errors[0]?.pointer ?? '', pointer);
  }
  t.equal((await intake.get<Receipt>('/v1/receipts/k')).body.state, 'ready');
  t.equal((await send(intake, 'PUT', '/v1/receipts/k', { note: 'x'.repeat(4000) })).status, 200, 'the control');
});

t.test('PUT for a job that has ended is a 409 that says how, and leaves its receipt as it was', async (t) => {
  const intake = await useIntake(t);
  await intake.submit([{ idempotency_key: 'k' }]);
  await runAll(intake);
  const before = await intake.get('/v1/receipts/k');
  const { status, body } = await send<Problem>(intake, 'PUT', '/v1/receipts/k', { status: 500 });
  t.equal(status, 409);
  t.equal(body.code, 'conflict');
  t.match(body.detail, /succeeded/);
  t.same((await intake.get('/v1/receipts/k')).body, before.body);
});

t.test('a receipt lives as long as its key, whatever happens to the job', async (t) => {
  const intake = await useIntake(t);
  const { archiveReceipts } = await import('../../src/postgres/receipts.ts');
  const { inTransaction } = await import('../../src/postgres/transaction.ts');
  const [item] = await intake.submit([{ idempotency_key: 'k' }]);
  await runAll(intake);
  const before = await intake.get<Receipt>('/v1/receipts/k');
  await inTransaction(intake.database, async (client) => {
    await archiveReceipts(client, [item!.job_id!]);
    for (const table of ['attempts', 'done_jobs', 'jobs', 'stored_items', 'batches']) {
      await client.query(`delete from sluice.${table}`);
    }
  });
  t.equal((await intake.get(`/v1/jobs/${item!.job_id}`)).status, 404);
  t.same((await intake.get('/v1/receipts/k')).body, before.body);
  t.equal((await send(intake, 'PUT', '/v1/receipts/k')).status, 409);
  const [again] = await intake.submit([{ idempotency_key: 'k' }]);
  t.match(again, { verdict: 'duplicate', job_id: item!.job_id, job_state: 'succeeded' });
});
