/** Cancel, retry and lists of jobs over HTTP: shapes, refusals with their state, and what a list leaves out. */
import t, { type Test } from 'tap';
import { claimJobs } from '../../src/postgres/claim-jobs.ts';
import { type SettleRow, settleJobs } from '../../src/postgres/settle-jobs.ts';
import { heldUnknown, newWorker, settleRow } from '../support/claims.ts';
import { type Answer, type Intake, type Problem, useIntake } from '../support/intake.ts';

// biome-ignore lint/suspicious/noExplicitAny: JSON of any shape, compared by the tests.
type Json = any;

const nowhere = '01890000-0000-7000-8000-000000000000';
const failed = {
  next: { kind: 'done', state: 'failed', reason: 'attempts_exhausted', evidence: null },
  outcome: 'error',
  status: 500,
} as const satisfies Partial<SettleRow>;

interface Setup extends Intake {
  /** Ids of new jobs with these keys. */
  accept(...keys: string[]): Promise<string[]>;
  /** Claims the next jobs, and settles them like this. */
  run(count: number, fields?: Partial<SettleRow>): Promise<void>;
  act(jobId: string, action: 'cancel' | 'retry', body?: object): Promise<Answer<Json>>;
}

async function setup(t: Test): Promise<Setup> {
  const intake = await useIntake(t);
  const worker = await newWorker(intake.database);
  return {
    ...intake,
    async accept(...keys) {
      const items = await intake.submit(
        keys.map((key) => ({ idempotency_key: key, body: { key }, headers: { 'x-a': 'b' } })),
      );
      return items.map(({ job_id }) => job_id!);
    },
    async run(count, fields) {
      const { jobs } = await claimJobs(intake.database, worker, count);
      if (fields !== undefined)
        await settleJobs(
          intake.database,
          worker,
          jobs.map((job) => settleRow(job, fields)),
        );
    },
    async act(jobId, action, body) {
      const answer = await intake.app.app.inject({
        method: 'POST',
        url: `/v1/jobs/${jobId}/${action}`,
        ...(body === undefined ? {} : { payload: body }),
      });
      return { status: answer.statusCode, headers: answer.headers, body: answer.json<Json>() };
    },
  };
}

t.test(
  'cancel answers with the job; 409 with its state where it runs or has ended, 404 where there is none',
  async (t) => {
    const { accept, act, run, get } = await setup(t);
    const [running, waiting] = (await accept('a', 'b')) as [string, string];
    await run(1);
    const cancelled = await act(waiting, 'cancel');
    t.match(cancelled, {
      status: 200,
      body: { job_id: waiting, state: 'cancelled', reason: 'cancelled', attempts: [] },
    });
    t.same((await get(`/v1/jobs/${waiting}`)).body, cancelled.body, 'as GET shows it');
    t.match(await act(running, 'cancel'), {
      status: 409,
      body: { code: 'conflict', state: 'running', detail: /running/ },
    });
    t.match(await act(waiting, 'cancel'), {
      status: 409,
      body: {
        code: 'conflict',
        state: 'cancelled',
        detail: 'the job is cancelled: what has ended stays as it is',
      },
    });
    for (const id of [nowhere, 'x', '%00']) {
      t.match(await act(id, 'cancel'), { status: 404, body: { code: 'not_found' } });
      t.match(await act(id, 'retry'), { status: 404, body: { code: 'not_found' } });
    }
  },
);

t.test(
  'retry makes an ended or held job ready with new budgets; 409 with its state where that makes no sense',
  async (t) => {
    const { accept, act, run } = await setup(t);
    const [succeeded, ended, isHeld, running, ready] = (await accept('a', 'b', 'c', 'd', 'e')) as [
      string,
      string,
      string,
      string,
      string,
    ];
    await run(1, {});
    await run(1, failed);
    await run(1, heldUnknown);
    await run(1);
    for (const id of [ended, isHeld]) {
      t.match(await act(id, 'retry'), {
        status: 200,
        body: {
          job_id: id,
          state: 'ready',
          reason: null,
          attempts_used: 0,
          throttles: 0,
          ended_at: null,
          attempts: [{ number: 1 }],
        },
      });
    }
    for (const [id, state] of [
      [succeeded, 'succeeded'],
      [running, 'running'],
      [ready, 'ready'],
      [ended, 'ready'],
    ] as const) {
      t.match(await act(id, 'retry'), { status: 409, body: { code: 'conflict', state } });
    }
  },
);

t.test('a fresh key is refused while an outcome is unknown; other members of the body are errors', async (t) => {
  const { accept, act, run } = await setup(t);
  const [isHeld, ended] = (await accept('a', 'b')) as [string, string];
  await run(1, heldUnknown);
  await run(1, failed);
  t.match(await act(isHeld, 'retry', { fresh_key: true }), {
    status: 409,
    body: { state: 'held', detail: /fresh key/ },
  });
  t.match(await act(ended, 'retry', { fresh_key: true }), { status: 200, body: { state: 'ready' } });
  t.match(await act(isHeld, 'retry', { fresh: true }), { status: 400, body: { code: 'invalid_request' } });
  t.match(await act(isHeld, 'retry', { fresh_key: false }), { status: 200, body: { state: 'ready' } });
});

t.test('a duplicate of a job that ended badly needs a retry, and none after it', async (t) => {
  const { accept, act, run, submit } = await setup(t);
  const [id] = (await accept('a')) as [string];
  await run(1, failed);
  const again = () => submit([{ idempotency_key: 'a', body: { key: 'a' }, headers: { 'x-a': 'b' } }]);
  t.match(await again(), [{ verdict: 'duplicate', job_id: id, needs_retry: true }]);
  await act(id, 'retry');
  const [item] = await again();
  t.match(item, { verdict: 'duplicate', job_state: 'ready' });
  t.notOk(item!.needs_retry);
});

t.test('the list leaves out headers, body, calls and the text of the answer', async (t) => {
  const { accept, run, get } = await setup(t);
  await accept('a', 'b');
  await run(1, {});
  const { status, body } = await get<Json>('/v1/jobs');
  t.equal(status, 200);
  t.equal(body.next_cursor, null);
  const [newest, oldest] = body.items;
  const job = (await get<Json>(`/v1/jobs/${oldest.job_id}`)).body;
  const { headers: _h, body: _b, attempts: _a, reconciliations: _r, response, ...rest } = job;
  const { excerpt, ...answer } = response;
  t.equal(excerpt, 'ok');
  t.same(oldest, { ...rest, response: answer });
  t.match(newest, { idempotency_key: 'b', state: 'ready', response: null });
});

t.test('filters narrow the list, a cursor goes on with it, and wrong ones are errors', async (t) => {
  const { accept, run, get, post } = await setup(t);
  await accept('a', 'b', 'c');
  await run(1, failed);
  const { body: batch } = await post({
    correlation_id: 'import-7',
    defaults: { upstream: 'api', path: '/x' },
    items: [{ idempotency_key: 'd' }, { idempotency_key: 'a', body: { key: 'a' }, headers: { 'x-a': 'b' } }],
  });
  const keys = async (query: string) =>
    (await get<Json>(`/v1/jobs?${query}`)).body.items.map((job: Json) => job.idempotency_key);
  t.same(await keys(''), ['d', 'c', 'b', 'a']);
  t.same(await keys('state=failed'), ['a']);
  t.same(await keys('state=ready&queue=default&upstream=api'), ['d', 'c', 'b']);
  t.same(await keys('queue=other'), []);
  t.same(await keys(`batch_id=${batch.batch_id}`), ['d'], 'what it has brought, not its duplicates');
  t.same(await keys('idempotency_key=c'), ['c']);
  t.same(await keys('correlation_id=import-7'), ['d']);
  const first = (await get<Json>('/v1/jobs?limit=3')).body;
  t.equal(first.items.length, 3);
  const rest = (await get<Json>(`/v1/jobs?limit=3&cursor=${first.next_cursor}`)).body;
  t.match(rest, { items: [{ idempotency_key: 'a' }], next_cursor: null });
  for (const query of ['state=done', 'batch_id=x', 'limit=0', 'cursor=x', 'tenant=x', 'idempotency_key=%00']) {
    const { status, body } = await get<Problem>(`/v1/jobs?${query}`);
    t.match({ status, code: body.code }, { status: 400, code: 'invalid_request' }, query);
  }
});
