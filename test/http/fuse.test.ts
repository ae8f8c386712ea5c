/** A batch that a fuse holds, over HTTP: what is told of it, and what a person can do. */
import { randomUUID } from 'node:crypto';
import t, { type Test } from 'tap';
import type { ClaimedJob } from '../../src/domain/job.ts';
import { appendToBatch } from '../../src/postgres/append-to-batch.ts';
import { beginStream, endStream } from '../../src/postgres/batch-streams.ts';
import { claimJobs } from '../../src/postgres/claim-jobs.ts';
import { newRetentionCursor, retainOnce } from '../../src/postgres/retention.ts';
import { type SettleRow, settleJobs } from '../../src/postgres/settle-jobs.ts';
import { systemClock } from '../../src/system/clock.ts';
import { createLogger } from '../../src/system/logger.ts';
import { FuseWalks } from '../../src/worker/fuse-walks.ts';
import { blewFuse, heldUnknown, newWorker, settleRow } from '../support/claims.ts';
import type { TestDatabaseOptions } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { faultPointsOf } from '../support/fault-points.ts';
import { type Answer, defaults, type Intake, submissionOf, useIntake } from '../support/intake.ts';

// biome-ignore lint/suspicious/noExplicitAny: JSON of any shape, compared by the tests.
type Json = any;

interface Setup extends Intake {
  /** A batch with these keys. Gives its id. */
  batch(...keys: string[]): Promise<string>;
  claim(count: number): Promise<ClaimedJob[]>;
  settle(jobs: readonly ClaimedJob[], fields?: Partial<SettleRow>): Promise<unknown>;
  /** What workers do with what a fuse holds, or lets go on. */
  move(): Promise<unknown>;
  /** The batch's first job is answered 401, and the rest is out of the way. Gives that job's id. */
  blow(): Promise<string>;
  send(path: string, body?: object): Promise<Answer<Json>>;
  read(batchId: string): Promise<Json>;
}

async function setup(t: Test, options: TestDatabaseOptions = {}): Promise<Setup> {
  const intake = await useIntake(t, options);
  const { database } = intake;
  const worker = await newWorker(database);
  const walks = new FuseWalks({ database, clock: systemClock, logger: createLogger('silent') });
  const bundle: Setup = {
    ...intake,
    async batch(...keys) {
      const items = keys.map((key) => ({ idempotency_key: key }));
      return (await intake.post({ defaults, items })).body.batch_id;
    },
    claim: async (count) => (await claimJobs(database, worker, count)).jobs,
    settle: (jobs, fields) =>
      settleJobs(
        database,
        worker,
        jobs.map((job) => settleRow(job, fields)),
      ),
    move: () => walks.turn(),
    async blow() {
      const jobs = await bundle.claim(1);
      await bundle.settle(jobs, blewFuse);
      await bundle.move();
      return jobs[0]!.jobId;
    },
    async send(path, body) {
      const payload = body === undefined ? {} : { payload: body };
      const answer = await intake.app.app.inject({ method: 'POST', url: path, ...payload });
      return { status: answer.statusCode, headers: answer.headers, body: answer.json<Json>() };
    },
    read: async (batchId) => (await intake.get<Json>(`/v1/batches/${batchId}`)).body,
  };
  return bundle;
}

t.test(
  'held_by tells which answer stopped the batch; it goes on processing, and is completed after its resume',
  async (t) => {
    const { batch, blow, read, send, claim, settle, get } = await setup(t);
    const id = await batch('a', 'b', 'c');
    t.equal((await read(id)).held_by, null);
    const jobId = await blow();
    const held = await read(id);
    t.match(held, {
      status: 'processing',
      completed_at: null,
      progress: 0,
      jobs: { held: 3, ready: 0 },
      held_by: { reason: 'fuse', job_id: jobId, status: 401 },
    });
    t.match(held.held_by.at, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
    t.same(Object.keys(held.held_by).sort(), ['at', 'job_id', 'reason', 'status']);
    t.same(await claim(3), []);
    const job = (await get<Json>(`/v1/jobs/${jobId}`)).body;
    t.match(job, {
      state: 'held',
      reason: 'fuse',
      attempts_used: 0,
      throttles: 0,
      next_eligible_at: null,
      attempts: [{ number: 1, outcome: 'rejected', charged: 'none', status: 401 }],
    });
    const resumed = await send(`/v1/batches/${id}/resume`);
    t.match(resumed, { status: 200, body: { batch_id: id, held_by: null, jobs: { held: 0, ready: 3 } } });
    const jobs = await claim(3);
    t.same(
      jobs.map(({ idempotencyKey, attemptsUsed, calls }) => ({ idempotencyKey, attemptsUsed, calls })),
      [
        { idempotencyKey: 'a', attemptsUsed: 0, calls: 1 },
        { idempotencyKey: 'b', attemptsUsed: 0, calls: 0 },
        { idempotencyKey: 'c', attemptsUsed: 0, calls: 0 },
      ],
      'in their order, under their keys, with nothing spent',
    );
    await settle(jobs);
    t.match(await read(id), { status: 'completed', progress: 1, held_by: null });
    t.match(await send(`/v1/batches/${id}/resume`), { status: 200, body: { status: 'completed' } }, 'asked again');
  },
);

t.test(
  'a resume of what no fuse holds changes nothing; of what is not there it is a 404; of a cancelled batch a 409',
  async (t) => {
    const { batch, send, claim, settle, read, blow } = await setup(t);
    const id = await batch('a', 'b');
    await settle(await claim(1), heldUnknown);
    const before = await read(id);
    t.match(before, { held_by: null, jobs: { held: 1, ready: 1 } });
    t.same(await send(`/v1/batches/${id}/resume`).then(({ status, body }) => ({ status, body })), {
      status: 200,
      body: before,
    });
    await claim(1);
    const cancelled = await batch('c', 'd');
    await blow();
    t.match(await send(`/v1/batches/${cancelled}/cancel`), {
      status: 200,
      body: { status: 'cancelled', jobs: { cancelled: 2, held: 0 }, held_by: null },
    });
    t.match(await send(`/v1/batches/${cancelled}/resume`), {
      status: 409,
      headers: { 'content-type': /^application\/problem\+json/ },
      body: { code: 'conflict', state: 'cancelled' },
    });
    for (const other of [randomUUID(), 'x']) {
      t.match(await send(`/v1/batches/${other}/resume`), { status: 404, body: { code: 'not_found' } });
    }
  },
);

t.test('what is held for another reason stays so; duplicates are the other batch’s to hold', async (t) => {
  const { batch, blow, send, claim, settle, read } = await setup(t);
  const id = await batch('a', 'b', 'c');
  await settle(await claim(1), heldUnknown);
  const second = await batch('d', 'b');
  await blow();
  t.match(await read(id), { jobs: { held: 3 }, held_by: { status: 401 } });
  t.match(
    await read(second),
    { jobs: { held: 1, ready: 1 }, held_by: null },
    'b is held, and not by a fuse of this one',
  );
  await eventually('its lane to be looked at again', async () => {
    const jobs = await claim(5);
    if (jobs.length === 0) return false;
    t.match(jobs, [{ idempotencyKey: 'd' }]);
    await settle(jobs, blewFuse);
    return true;
  });
  t.match(await read(second), { held_by: { status: 401 } });
  t.match(
    await send(`/v1/batches/${second}/resume`),
    { body: { jobs: { held: 1, ready: 1 } } },
    'd goes on, b does not',
  );
  t.match(await send(`/v1/batches/${id}/resume`), { body: { jobs: { held: 1, ready: 2 }, held_by: null } });
});

t.test('explain names the fuse, and what to do', async (t) => {
  const { batch, get, claim, settle, move } = await setup(t);
  const id = await batch('a', 'b');
  const jobs = (await get<Json>(`/v1/batches/${id}/items`)).body.items.map((item: Json) => item.job_id);
  await settle(await claim(1), blewFuse);
  const about = (await get<Json>(`/v1/jobs/${jobs[1]}/explain`)).body;
  t.match(
    about,
    { state: 'ready', runnable: false, waiting_on: [{ kind: 'held', name: 'fuse' }] },
    'not out of the way yet',
  );
  await move();
  const held = (await get<Json>(`/v1/jobs/${jobs[1]}/explain`)).body;
  t.match(held, { state: 'held', runnable: false, waiting_on: [{ kind: 'held', name: 'fuse', until: null }] });
  t.equal(held.waiting_on.length, 1);
  for (const part of [jobs[0], '401', `/v1/batches/${id}/resume`]) t.ok(held.waiting_on[0].detail.includes(part), part);
});

t.test('dead letters have them under their reason; one retried, or all redriven, go on without a resume', async (t) => {
  const { batch, blow, get, send, claim, settle, read, move } = await setup(t);
  const id = await batch('a', 'b', 'c', 'd');
  await blow();
  const listed = (await get<Json>('/admin/dead-letter?state=held&reason=fuse')).body.items;
  t.same(listed.map((item: Json) => item.idempotency_key).sort(), ['a', 'b', 'c', 'd']);
  const of = (key: string) => listed.find((item: Json) => item.idempotency_key === key).job_id;
  t.match(await send(`/v1/jobs/${of('b')}/retry`), { status: 200, body: { state: 'ready' } });
  await move();
  const one = await claim(4);
  t.match(one, [{ idempotencyKey: 'b', attemptsUsed: 0 }]);
  t.equal(one.length, 1);
  await settle(one);
  t.match(await read(id), { jobs: { succeeded: 1, held: 3 }, held_by: { status: 401 } });
  const redriven = await send('/admin/dead-letter/redrive', { filter: { reason: 'fuse', batch_id: id } });
  t.match(redriven.body, { redriven: 3, skipped: 0 });
  t.match(await read(id), { held_by: null }, 'nothing is held by it any more');
  await settle((await claim(1)).slice(0, 1), blewFuse);
  await move();
  t.match(
    await read(id),
    { jobs: { succeeded: 1, held: 3 }, held_by: { status: 401 } },
    'the next refusal stops them again',
  );
});

t.test('the export and its filter show them', async (t) => {
  const { batch, blow, get } = await setup(t);
  const id = await batch('a', 'b');
  await blow();
  const { items } = (await get<Json>(`/v1/batches/${id}/items?state=held`)).body;
  t.same(
    items.map(({ idempotency_key: key, job_state: state }: Json) => [key, state]),
    [
      ['a', 'held'],
      ['b', 'held'],
    ],
  );
});

t.test('a stream that goes on after the fuse has blown is taken, and held as it comes', async (t) => {
  const { database, claim, settle, move, read, send, get } = await setup(t);
  const holder = randomUUID();
  const stream = {
    tenant: 'default',
    correlationId: null,
    requestKey: { key: 'K', fingerprint: 'ab'.repeat(32) },
    holder,
  };
  const { batchId } = await beginStream(database, { ...stream, holdSeconds: 3_600 });
  const append = async (first: number, items: readonly object[]) => {
    const lines = items.map((_, at) => String(first + at).padStart(64, '0'));
    const place = { batchId, tenant: 'default', correlationId: null, definitionsVersion: null, first, lines };
    const chunk = { ...place, holder, holdSeconds: 3_600 };
    const appended = await appendToBatch(database, { ...chunk, items: submissionOf(items).items });
    return appended.kind === 'appended' ? appended.items.map(({ jobState }) => jobState) : appended.kind;
  };
  const later = '2099-01-01T00:00:00.000Z';
  t.same(await append(0, [{ idempotency_key: 'a' }, { idempotency_key: 'b' }]), ['ready', 'ready']);
  await settle(await claim(1), blewFuse);
  t.same(await append(2, [{ idempotency_key: 'c' }]), ['held'], 'also before the others are out of the way');
  await move();
  t.same(
    await append(3, [
      { idempotency_key: 'd', expires_at: later },
      { idempotency_key: 'e', run_at: later },
      { idempotency_key: 'a' },
    ]),
    ['held', 'held', 'held'],
  );
  t.match(await read(batchId), { status: 'incomplete', jobs: { held: 5 }, held_by: { status: 401 } });
  await endStream(database, batchId, holder);
  t.match(await read(batchId), { status: 'processing', held_by: { status: 401 } });
  t.match((await get<Json>('/v1/jobs?idempotency_key=d')).body.items, [{ state: 'held', reason: 'fuse' }]);
  t.match(await send(`/v1/batches/${batchId}/resume`), {
    body: { jobs: { ready: 4, scheduled: 1, held: 0 }, held_by: null },
  });
  const jobs = await claim(9);
  t.same(
    jobs.map(({ idempotencyKey }) => idempotencyKey),
    ['a', 'b', 'c', 'd'],
  );
  const rows = await database.query<Json>(
    `select j.idempotency_key as key, p.due_at from sluice.parked_jobs p join sluice.jobs j on j.id = p.job_id`,
  );
  t.same(rows, [{ key: 'e', due_at: new Date(later) }]);
  t.match(
    await database.query<Json>('select expires_at from sluice.running_jobs where expires_at is not null'),
    [{ expires_at: new Date(later) }],
    'each with its own times',
  );
});

t.test('retention keeps what a fuse holds, and leaves no mark of a batch that is gone', async (t) => {
  const { database, batch, blow, send, claim, settle, count } = await setup(t);
  const id = await batch('a');
  await blow();
  const retain = async () => {
    const cursor = newRetentionCursor();
    const policy = { retentionDays: 0, keyRetentionDays: 0 };
    while (!(await retainOnce(database, policy, cursor, { most: 100 })).roundOver);
  };
  await retain();
  t.same([await count('batches'), await count('parked_jobs'), await count('blown_fuses')], [1, 1, 1]);
  await send(`/v1/batches/${id}/resume`);
  await settle(await claim(1));
  await retain();
  t.same([await count('batches'), await count('jobs'), await count('blown_fuses')], [0, 0, 0]);
});

t.test(
  'a resume whose connection is lost is a 503; the workers bring it to its end, or whoever asks again',
  async (t) => {
    for (const who of ['workers', 'asked again'] as const) {
      // Two steps hold the batch; the resume makes its first, and loses its connection in the second.
      const faultPoints = faultPointsOf('decision.before_commit=pass*3,57P01');
      const { batch, blow, send, move, read } = await setup(t, { faultPoints });
      const id = await batch(...Array.from({ length: 1_500 }, (_, i) => `k${i}`));
      await blow();
      const before = faultPoints.passed('decision.before_commit');
      t.equal(before, 2, 'two steps to hold it');
      t.match(await send(`/v1/batches/${id}/resume`), { status: 503, headers: { 'retry-after': /^\d+$/ } }, who);
      if (who === 'workers') await move();
      else t.match(await send(`/v1/batches/${id}/resume`), { status: 200 });
      t.match(await read(id), { jobs: { ready: 1_500, held: 0 }, held_by: null }, who);
    }
  },
);

t.test('more jobs than one step takes', async (t) => {
  const { batch, blow, send } = await setup(t);
  const id = await batch(...Array.from({ length: 2_101 }, (_, i) => `k${i}`));
  await blow();
  t.match(await send(`/v1/batches/${id}/resume`), { body: { jobs: { ready: 2_101, held: 0 } } });
});
