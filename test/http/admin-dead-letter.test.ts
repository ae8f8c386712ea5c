/** Dead letters over HTTP: the list, its filters, and redrives that say how many. */
import t, { type Test } from 'tap';
import { redrive } from '../../src/application/dead-letters.ts';
import { claimJobs } from '../../src/postgres/claim-jobs.ts';
import { type SettleRow, settleJobs } from '../../src/postgres/settle-jobs.ts';
import { heldUnknown, newWorker, settleRow } from '../support/claims.ts';
import { type Answer, type Intake, useIntake } from '../support/intake.ts';

// biome-ignore lint/suspicious/noExplicitAny: JSON of any shape, compared by the tests.
type Json = any;

const failed = {
  next: { kind: 'done', state: 'failed', reason: 'attempts_exhausted', evidence: null },
  outcome: 'error',
  status: 500,
} as const satisfies Partial<SettleRow>;
const refused = {
  next: { kind: 'done', state: 'failed', reason: 'rejected_by_upstream', evidence: 'response' },
  outcome: 'rejected',
  status: 422,
} as const satisfies Partial<SettleRow>;

interface Setup extends Intake {
  /** Accepts the key, and ends its job like this. Gives the ids of job and batch. */
  dead(key: string, fields: Partial<SettleRow>, more?: object): Promise<{ job: string; batch: string }>;
  keys(query?: string): Promise<string[]>;
  send(body: object): Promise<Answer<Json>>;
  stateOf(job: string): Promise<string>;
}

async function setup(t: Test): Promise<Setup> {
  const intake = await useIntake(t);
  await intake.putUpstream('mail');
  await intake.putQueue('slow', {});
  const worker = await newWorker(intake.database);
  return {
    ...intake,
    async dead(key, fields, more = {}) {
      const { body } = await intake.post({
        defaults: { upstream: 'api', path: '/x' },
        items: [{ idempotency_key: key, ...more }],
      });
      const { jobs } = await claimJobs(intake.database, worker, 1);
      await settleJobs(
        intake.database,
        worker,
        jobs.map((job) => settleRow(job, fields)),
      );
      return { job: body.items[0]!.job_id!, batch: body.batch_id };
    },
    async keys(query = '') {
      const { body } = await intake.get<Json>(`/admin/dead-letter?${query}`);
      return body.items.map((item: Json) => item.idempotency_key);
    },
    async send(body) {
      const answer = await intake.app.app.inject({ method: 'POST', url: '/admin/dead-letter/redrive', payload: body });
      return { status: answer.statusCode, headers: answer.headers, body: answer.json<Json>() };
    },
    stateOf: async (job) => (await intake.get<Json>(`/v1/jobs/${job}`)).body.state,
  };
}

t.test('failed and held jobs are listed, newest first, and narrowed by each filter', async (t) => {
  const { dead, keys, get } = await setup(t);
  await dead('fine', {});
  const { batch } = await dead('a', failed);
  await dead('b', refused, { upstream: 'mail' });
  await dead('c', heldUnknown, { queue: 'slow' });
  t.same(await keys(), ['c', 'b', 'a']);
  t.same(await keys('state=failed'), ['b', 'a']);
  t.same(await keys('state=held'), ['c']);
  t.same(await keys('reason=rejected_by_upstream'), ['b']);
  t.same(await keys('upstream=mail'), ['b']);
  t.same(await keys('queue=slow&state=held'), ['c']);
  t.same(await keys(`batch_id=${batch}`), ['a']);
  const first = (await get<Json>('/admin/dead-letter?limit=2')).body;
  t.same(await keys(`limit=2&cursor=${first.next_cursor}`), ['a']);
  t.match(first.items[1], { state: 'failed', reason: 'rejected_by_upstream', response: { status: 422 } });
  for (const query of ['state=cancelled', 'batch_id=x', 'key=a']) {
    t.equal((await get(`/admin/dead-letter?${query}`)).status, 400, query);
  }
});

t.test('a redrive by filter takes what it fits, keeps keys, and says how many', async (t) => {
  const { dead, send, keys, stateOf } = await setup(t);
  const a = await dead('a', failed);
  const b = await dead('b', refused, { upstream: 'mail' });
  const c = await dead('c', heldUnknown);
  t.match(await send({ filter: { reason: 'attempts_exhausted' } }), { status: 200, body: { redriven: 1, skipped: 0 } });
  t.match(await send({ filter: { queue: 'none' } }), { status: 200, body: { redriven: 0, skipped: 0 } });
  t.same([await stateOf(a.job), await stateOf(b.job)], ['ready', 'failed']);
  t.match(await send({ filter: {} }), { status: 200, body: { redriven: 2, skipped: 0 } });
  t.same(await keys(), []);
  t.equal(await stateOf(c.job), 'ready');
});

t.test(
  'by ids: those that are not dead letters are skipped; with fresh keys those whose outcome is unknown',
  async (t) => {
    const { dead, send, stateOf, submit } = await setup(t);
    const a = await dead('a', failed);
    const b = await dead('b', heldUnknown);
    const [waiting] = await submit([{ idempotency_key: 'w' }]);
    const ids = [a.job, b.job, b.job, waiting!.job_id, '01890000-0000-7000-8000-000000000000'];
    t.match(await send({ job_ids: ids, fresh_key: true }), { status: 200, body: { redriven: 1, skipped: 3 } });
    t.same([await stateOf(a.job), await stateOf(b.job)], ['ready', 'held']);
    t.match(await send({ job_ids: ids }), { body: { redriven: 1, skipped: 3 } });
  },
);

t.test('a cancelled job is no dead letter', async (t) => {
  const { submit, send, app, keys } = await setup(t);
  const [item] = await submit([{ idempotency_key: 'a' }]);
  await app.app.inject({ method: 'POST', url: `/v1/jobs/${item!.job_id}/cancel` });
  t.same(await keys(), []);
  t.match(await send({ job_ids: [item!.job_id] }), { body: { redriven: 0, skipped: 1 } });
});

t.test('more than one step takes; of another tenant nothing', async (t) => {
  const { database, submit, send, keys } = await setup(t);
  await submit(Array.from({ length: 450 }, (_, i) => ({ idempotency_key: `k${i}` })));
  const worker = await newWorker(database);
  const { jobs } = await claimJobs(database, worker, 450);
  await settleJobs(
    database,
    worker,
    jobs.map((job) => settleRow(job, failed)),
  );
  const filter = { state: null, reason: null, upstream: null, queue: null, batchId: null };
  t.same(await redrive({ database }, 'other', { filter }, { freshKey: false }), { redriven: 0, skipped: 0 });
  t.same((await send({ filter: { state: 'failed' } })).body, { redriven: 450, skipped: 0 });
  t.same(await keys(), []);
});

t.test('either a filter or ids, and nothing else', async (t) => {
  const { send } = await setup(t);
  const id = '01890000-0000-7000-8000-000000000000';
  for (const body of [
    {},
    { filter: {}, job_ids: [id] },
    { job_ids: [] },
    { job_ids: ['x'] },
    { filter: { key: 'a' } },
    { filter: {}, x: 1 },
  ]) {
    t.match(await send(body), { status: 400, body: { code: 'invalid_request' } }, JSON.stringify(body));
  }
});
