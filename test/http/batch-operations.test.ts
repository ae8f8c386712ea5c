/** Lists of batches and their cancel over HTTP. */
import t, { type Test } from 'tap';
import type { ClaimedJob } from '../../src/domain/job.ts';
import { claimJobs } from '../../src/postgres/claim-jobs.ts';
import { listBatches } from '../../src/postgres/list-batches.ts';
import { type SettleRow, settleJobs } from '../../src/postgres/settle-jobs.ts';
import { newWorker, settleRow } from '../support/claims.ts';
import { type Answer, defaults, type Intake, type Problem, useIntake } from '../support/intake.ts';

// biome-ignore lint/suspicious/noExplicitAny: JSON of any shape, compared by the tests.
type Json = any;

interface Setup extends Intake {
  /** A batch with these keys. Gives its id. */
  batch(...keys: string[]): Promise<string>;
  claim(count: number): Promise<ClaimedJob[]>;
  settle(jobs: readonly ClaimedJob[], fields?: Partial<SettleRow>): Promise<unknown>;
  cancel(batchId: string): Promise<Answer<Json>>;
  status(batchId: string): Promise<string>;
}

async function setup(t: Test): Promise<Setup> {
  const intake = await useIntake(t);
  const worker = await newWorker(intake.database);
  return {
    ...intake,
    async batch(...keys) {
      const items = keys.map((key) => ({ idempotency_key: key }));
      return (await intake.post({ defaults, items, correlation_id: keys[0] })).body.batch_id;
    },
    claim: async (count) => (await claimJobs(intake.database, worker, count)).jobs,
    settle: (jobs, fields) =>
      settleJobs(
        intake.database,
        worker,
        jobs.map((job) => settleRow(job, fields)),
      ),
    async cancel(batchId) {
      const answer = await intake.app.app.inject({ method: 'POST', url: `/v1/batches/${batchId}/cancel` });
      return { status: answer.statusCode, headers: answer.headers, body: answer.json<Json>() };
    },
    status: async (batchId) => (await intake.get<Json>(`/v1/batches/${batchId}`)).body.status,
  };
}

t.test('cancel ends what waits; the batch is cancelled once nothing of it runs', async (t) => {
  const { batch, cancel, claim, settle, status, get } = await setup(t);
  const id = await batch('a', 'b', 'c');
  const running = await claim(1);
  const first = await cancel(id);
  t.match(first, {
    status: 200,
    body: {
      batch_id: id,
      status: 'processing',
      jobs: { running: 1, cancelled: 2, ready: 0 },
      completed_at: null,
      progress: 2 / 3,
    },
  });
  t.match(first.body.cancelled_at, /^\d{4}-.*Z$/);
  t.match(
    await cancel(id),
    { status: 200, body: { cancelled_at: first.body.cancelled_at } },
    'asked again: nothing new',
  );
  await settle(running, { next: { kind: 'scheduled', delayMs: 60_000, reason: null }, outcome: 'error', status: 500 });
  const ended = (await get<Json>(`/v1/batches/${id}`)).body;
  t.match(ended, { status: 'cancelled', jobs: { cancelled: 3 }, progress: 1 });
  t.ok(ended.completed_at >= ended.cancelled_at);
  t.match(await cancel(id), { status: 200, body: { status: 'cancelled' } });
  t.same(await claim(10), []);
  t.equal(await status(id), 'cancelled');
});

t.test('a call that ends well after the cancel has ended well', async (t) => {
  const { batch, cancel, claim, settle, get } = await setup(t);
  const id = await batch('a', 'b');
  const running = await claim(1);
  await cancel(id);
  await settle(running);
  t.match((await get(`/v1/batches/${id}`)).body, { status: 'cancelled', jobs: { succeeded: 1, cancelled: 1 } });
});

t.test('its duplicates are not its own: they stay, and it does not wait for them', async (t) => {
  const { batch, cancel, claim, status } = await setup(t);
  const first = await batch('a');
  const second = await batch('b', 'a');
  t.match((await cancel(second)).body, { status: 'cancelled', jobs: { cancelled: 1, ready: 1 } });
  t.equal(await status(first), 'processing');
  t.equal((await claim(10)).length, 1);
  t.match((await cancel(first)).body, { status: 'processing' });
});

t.test('what is held is cancelled too; a completed batch is a 409 with its state, another is a 404', async (t) => {
  const { batch, cancel, claim, settle } = await setup(t);
  const id = await batch('a');
  await settle(await claim(1), { next: { kind: 'held', reason: 'outcome_unknown' }, outcomeUnknown: true });
  t.match((await cancel(id)).body, { status: 'cancelled', jobs: { cancelled: 1 } });
  const done = await batch('b');
  await settle(await claim(1));
  t.match(await cancel(done), { status: 409, body: { code: 'conflict', state: 'completed' } });
  for (const unknown of ['01890000-0000-7000-8000-000000000000', 'x']) {
    t.match(await cancel(unknown), { status: 404, body: { code: 'not_found' } });
  }
});

t.test('more jobs than one step takes', async (t) => {
  const { batch, cancel, status } = await setup(t);
  const id = await batch(...Array.from({ length: 1_201 }, (_, i) => `k${i}`));
  t.match((await cancel(id)).body, { status: 'cancelled', jobs: { cancelled: 1_201 } });
  t.equal(await status(id), 'cancelled');
});

t.test('a cancelled job that is retried goes on, and its batch with it', async (t) => {
  const { batch, cancel, claim, settle, status, app, get } = await setup(t);
  const id = await batch('a', 'b');
  await cancel(id);
  const [job] = (await get<Json>('/v1/jobs?idempotency_key=a')).body.items;
  await app.app.inject({ method: 'POST', url: `/v1/jobs/${job.job_id}/retry` });
  t.equal(await status(id), 'processing');
  await settle(await claim(10));
  t.equal(await status(id), 'cancelled');
});

t.test('cancelled again after a retry: the retried job does not go on either', async (t) => {
  const { batch, cancel, claim, settle, app, get, status } = await setup(t);
  const id = await batch('a');
  const first = (await cancel(id)).body.cancelled_at;
  const [job] = (await get<Json>('/v1/jobs')).body.items;
  await app.app.inject({ method: 'POST', url: `/v1/jobs/${job.job_id}/retry` });
  const running = await claim(1);
  const second = (await cancel(id)).body;
  t.equal(second.status, 'processing');
  t.ok(second.cancelled_at > first);
  await settle(running, { next: { kind: 'ready' }, outcome: 'error', status: 500 });
  t.same(await claim(1), []);
  t.equal(await status(id), 'cancelled');
});

t.test('batches are listed newest first, each with the status that its own page shows', async (t) => {
  const { batch, cancel, claim, settle, status, get, post, database } = await setup(t);
  const completed = await batch('a', 'b');
  await settle(await claim(10));
  const held = await batch('c');
  await settle(await claim(10), { next: { kind: 'held', reason: 'outcome_unknown' } });
  const cancelled = await batch('d');
  await cancel(cancelled);
  const ending = await batch('e', 'f');
  await claim(1);
  await cancel(ending);
  const waiting = await batch('g');
  const duplicate = await batch('g', 'a');
  const nothing = (await post({ defaults, items: [{ idempotency_key: '' }] })).body.batch_id;
  const ids = [nothing, duplicate, waiting, ending, cancelled, held, completed];
  const expected = ['completed', 'processing', 'processing', 'processing', 'cancelled', 'processing', 'completed'];
  const { body } = await get<Json>('/v1/batches');
  t.same(
    body.items.map((item: Json) => [item.batch_id, item.status]),
    ids.map((id, i) => [id, expected[i]]),
  );
  for (const [i, id] of ids.entries()) t.equal(await status(id), expected[i]);
  const { batch_id, status: _, created_at, cancelled_at, correlation_id, counts, ...rest } = body.items[4];
  t.same(rest, {});
  const own = (await get<Json>(`/v1/batches/${batch_id}`)).body;
  t.same(
    { created_at, cancelled_at, correlation_id, counts },
    {
      created_at: own.created_at,
      cancelled_at: own.cancelled_at,
      correlation_id: 'd',
      counts: { total: 1, accepted: 1, duplicate: 0, conflict: 0, rejected: 0 },
    },
  );

  // The other way to find it out: batch by batch, as many as the budget has items for.
  const walk = { tenant: 'default', before: null, limit: 100 };
  const inOne = await listBatches(database, walk);
  t.same(await listBatches(database, walk, { mostUnfinished: 0, mostItems: 1_000 }), inOne);
  const pages: string[][] = [];
  for (let before: string | null = null, first = true; first || before !== null; first = false) {
    const page = await listBatches(database, { ...walk, before, limit: 3 }, { mostUnfinished: 0, mostItems: 2 });
    pages.push(page.items.map(({ batchId }) => batchId));
    before = page.next;
  }
  t.same(pages.flat(), ids);
  t.ok(pages.length > 3, `${pages.length} pages`);
});

t.test('a cursor goes on; of another tenant nothing; wrong parameters are errors', async (t) => {
  const { batch, get, database } = await setup(t);
  const ids = [await batch('a'), await batch('b'), await batch('c')];
  const first = (await get<Json>('/v1/batches?limit=2')).body;
  t.same(
    first.items.map((item: Json) => item.batch_id),
    [ids[2], ids[1]],
  );
  const rest = (await get<Json>(`/v1/batches?limit=2&cursor=${first.next_cursor}`)).body;
  t.match(rest, { items: [{ batch_id: ids[0] }], next_cursor: null });
  t.same(await listBatches(database, { tenant: 'other', before: null, limit: 10 }), { items: [], next: null });
  for (const query of ['limit=0', 'cursor=x', 'status=completed']) {
    t.match(await get<Problem>(`/v1/batches?${query}`), { status: 400, body: { code: 'invalid_request' } });
  }
});
