/** GET /v1/batches/{batch_id} with `wait`, and with `Prefer: wait` (RFC 7240). */
import { request } from 'node:http';
import t, { type Test } from 'tap';
import { claimJobs } from '../../src/postgres/claim-jobs.ts';
import { settleJobs } from '../../src/postgres/settle-jobs.ts';
import { createTestApp } from '../support/app.ts';
import { newWorker, settleRow } from '../support/claims.ts';
import { waitFor } from '../support/client.ts';
import { type Answer, defaults, type Intake, type Problem, useIntake } from '../support/intake.ts';
import { countStatements } from '../support/statement-counts.ts';

interface Batch {
  readonly status: string;
  readonly jobs: Readonly<Record<string, number>>;
}

interface Waiting extends Intake {
  wait(batchId: string, query: string, headers?: Record<string, string>): Promise<Answer<Batch>>;
  finish(count?: number): Promise<void>;
  count(name?: string): Promise<number>;
  app2: Awaited<ReturnType<typeof createTestApp>>['app'];
}

async function useWaiting(t: Test, max = 4): Promise<Waiting> {
  const intake = await useIntake(t, { max });
  const counted = countStatements(intake.database);
  const { app } = await createTestApp(t, counted.database);
  const workerId = await newWorker(intake.database);
  return {
    ...intake,
    app2: app,
    count: async (name) => counted.count(name),
    async wait(batchId, query, headers = {}) {
      const answer = await app.inject({ url: `/v1/batches/${batchId}${query}`, headers });
      return { status: answer.statusCode, headers: answer.headers, body: answer.json<Batch>() };
    },
    async finish(count = 100) {
      const { jobs } = await claimJobs(intake.database, workerId, count);
      await settleJobs(
        intake.database,
        workerId,
        jobs.map((job) => settleRow(job)),
      );
    },
  };
}

function items(count: number): object[] {
  return Array.from({ length: count }, (_, i) => ({ idempotency_key: `k${i}` }));
}

t.test('answers when the batch is done', async (t) => {
  const { post, wait, finish, count } = await useWaiting(t);
  const { batch_id } = (await post({ defaults, items: items(3) })).body;
  const waiting = wait(batch_id, '?wait=30');
  await finish(1);
  await waitFor(
    () => count('find-moved'),
    (n) => n > 1,
    5_000,
  );
  await finish(2);
  const answer = await waiting;
  t.match(answer, { status: 200, body: { status: 'completed', jobs: { succeeded: 3 } } });
  t.equal(answer.headers['preference-applied'], undefined);
  t.match(await wait(batch_id, '?wait=30'), { status: 200, body: { status: 'completed' } }, 'one that is done at once');
});

t.test('an id in upper case is the same id', async (t) => {
  const { post, wait, finish, count } = await useWaiting(t);
  const { batch_id } = (await post({ defaults, items: items(1) })).body;
  const waiting = wait(batch_id.toUpperCase(), '?wait=30');
  await waitFor(
    () => count('find-moved'),
    (n) => n > 0,
    5_000,
  );
  await finish();
  t.match(await waiting, { status: 200, body: { batch_id, status: 'completed' } });
});

t.test('answers when the time is up', async (t) => {
  const { post, wait } = await useWaiting(t);
  const { batch_id } = (await post({ defaults, items: items(1) })).body;
  t.match(await wait(batch_id, '?wait=1'), { status: 200, body: { status: 'processing', jobs: { ready: 1 } } });
  t.match(await wait(batch_id, '?wait=0'), { status: 200, body: { status: 'processing' } });
});

t.test('a preference is applied, and says so; one that is not understood is passed over', async (t) => {
  const { post, wait, finish, count } = await useWaiting(t);
  const { batch_id } = (await post({ defaults, items: items(1) })).body;
  for (const prefer of ['wait=soon', 'respond-async', 'wait', 'wait=-1', 'wait=1.5', 'await=3', '']) {
    const answer = await wait(batch_id, '', { prefer });
    t.equal(answer.status, 200, prefer);
    t.equal(answer.headers['preference-applied'], undefined, prefer);
  }
  t.match(await wait(batch_id, '', { prefer: 'wait=1' }), {
    status: 200,
    headers: { 'preference-applied': 'wait=1' },
    body: { status: 'processing' },
  });
  const asked = await count('find-moved');
  const waiting = wait(batch_id, '', { prefer: 'respond-async, Wait = "100"; x=y' });
  await waitFor(
    () => count('find-moved'),
    (n) => n > asked,
    5_000,
  );
  await finish();
  t.match(await waiting, {
    status: 200,
    headers: { 'preference-applied': 'wait=60' },
    body: { status: 'completed' },
  });
  const both = await wait(batch_id, '?wait=1', { prefer: 'wait=9' });
  t.equal(both.headers['preference-applied'], undefined, 'the parameter goes before it');
});

t.test('a wrong wait is a 400', async (t) => {
  const { post, wait } = await useWaiting(t);
  const { batch_id } = (await post({ defaults, items: items(1) })).body;
  for (const value of ['-1', '61', '1.5', 'soon', '', '1e1', '30s']) {
    const { status, body } = (await wait(batch_id, `?wait=${value}`)) as unknown as Answer<Problem>;
    t.match(
      { status, body },
      { status: 400, body: { code: 'invalid_request', errors: [{ pointer: '/query/wait' }] } },
      value,
    );
  }
  t.equal((await wait('01890000-0000-7000-8000-000000000000', '?wait=30')).status, 404);
  t.equal((await wait('no-id', '?wait=30')).status, 404);
});

t.test('a batch that is called off is done, and one that is held is not', async (t) => {
  const { post, wait, app2, database } = await useWaiting(t);
  const called = (await post({ defaults, items: items(2) })).body.batch_id;
  const waiting = wait(called, '?wait=30');
  t.equal((await app2.inject({ method: 'POST', url: `/v1/batches/${called}/cancel` })).statusCode, 200);
  t.match(await waiting, { status: 200, body: { status: 'cancelled' } });

  const held = (await post({ defaults, items: [{ idempotency_key: 'held' }] })).body.batch_id;
  await database.query(
    `with gone as (delete from sluice.ready_jobs returning *)
     insert into sluice.parked_jobs (job_id, lane_id, rank, seq, state, reason, cost)
     select job_id, lane_id, rank, seq, 'held', 'outcome_unknown', cost from gone`,
  );
  t.match(await wait(held, '?wait=1'), { status: 200, body: { status: 'processing', jobs: { held: 1 } } });
});

t.test('hundreds that wait, for one batch and for many, ask no more often than one', async (t) => {
  // A pool of one connection: whoever held it while waiting would stop everybody.
  const { post, wait, finish, count } = await useWaiting(t, 1);
  const ids: string[] = [];
  for (let i = 0; i < 10; i += 1) {
    ids.push((await post({ defaults, items: [{ idempotency_key: `many-${i}` }] })).body.batch_id);
  }
  const waiting = [
    ...Array.from({ length: 100 }, () => wait(ids[0]!, '?wait=60')),
    ...ids.map((id) => wait(id, '?wait=60')),
  ];
  await waitFor(
    () => count('eta-windows'),
    (n) => n >= 10,
    20_000,
  );
  t.ok((await count('eta-windows')) <= 25, 'a batch is counted once, and once more for all who have come meanwhile');
  const [asked, all] = [await count('find-moved'), await count()];
  await waitFor(
    () => count('find-moved'),
    (n) => n >= asked + 4,
    20_000,
  );
  const more = (await count()) - all;
  t.ok(more < 4 * 20, `${more} statements in 4 rounds, for 110 clients`);
  await finish();
  const answers = await Promise.all(waiting);
  t.ok(answers.every(({ body }) => body.status === 'completed'));
});

t.test('who has gone is not waited for, and a process that stops answers at once', async (t) => {
  const { post, app2, count } = await useWaiting(t);
  const { batch_id } = (await post({ defaults, items: items(1) })).body;
  const url = await app2.listen({ host: '127.0.0.1', port: 0 });
  const begin = () =>
    new Promise<{ cut: () => void; answer: Promise<{ status: number; body: Batch }> }>((resolve) => {
      const sent = request(`${url}/v1/batches/${batch_id}?wait=60`);
      const answer = new Promise<{ status: number; body: Batch }>((done, failed) => {
        sent.on('error', failed);
        sent.on('response', async (response) => {
          let text = '';
          for await (const piece of response) text += String(piece);
          done({ status: response.statusCode!, body: JSON.parse(text) as Batch });
        });
      });
      answer.catch(() => undefined);
      sent.end(() => resolve({ cut: () => sent.destroy(), answer }));
    });
  const gone = await begin();
  await waitFor(
    () => count('find-moved'),
    (n) => n > 0,
    5_000,
  );
  gone.cut();
  const before = await count('find-moved');
  const stays = await begin();
  await waitFor(
    () => count('find-moved'),
    (n) => n > before,
    5_000,
  );
  const closed = app2.close();
  t.match(await stays.answer, { status: 200, body: { status: 'processing' } });
  await closed;
});
