/** GET of batches, their items, and jobs. */
import t from 'tap';
import { getBatch, listBatchItems } from '../../src/application/batches.ts';
import { getJob } from '../../src/application/jobs.ts';
import { claimJobs } from '../../src/postgres/claim-jobs.ts';
import { settleJobs } from '../../src/postgres/settle-jobs.ts';
import { newWorker, settleRow, throttledFor } from '../support/claims.ts';
import { defaults, type Intake, type Problem, useIntake } from '../support/intake.ts';

const instant = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;
const unknown = '01890000-0000-7000-8000-000000000000';

interface Page {
  readonly items: ReadonlyArray<Record<string, unknown>>;
  readonly next_cursor: string | null;
}

/** Moves the ready job of this key to another state. */
async function move(intake: Intake, key: string, to: string): Promise<void> {
  const into: Record<string, string> = {
    running: `insert into sluice.running_jobs (job_id, lane_id, group_id, rank, seq, cost, eligible_at, worker_id, admitted_at)
              select job_id, lane_id, 1, rank, seq, cost, eligible_at, gen_random_uuid(), clock_timestamp() from gone`,
    held: `insert into sluice.parked_jobs (job_id, lane_id, rank, seq, state, reason, cost)
           select job_id, lane_id, rank, seq, 'held', 'outcome_unknown', cost from gone`,
  };
  const done = `insert into sluice.done_jobs (job_id, state, reason, status, ended_at)
                select job_id, '${to}', 'a_reason', 418, clock_timestamp() from gone`;
  await intake.database.query(
    `with gone as (delete from sluice.ready_jobs r using sluice.jobs j
                    where j.id = r.job_id and j.idempotency_key = $1 returning r.*) ${into[to] ?? done}`,
    [key],
  );
}

t.test('a batch counts its jobs by state, those of its duplicates too, each once; held is no end', async (t) => {
  const intake = await useIntake(t);
  await intake.submit([{ idempotency_key: 'before' }, { idempotency_key: 'before-too' }]);
  const states = ['succeeded', 'failed', 'cancelled', 'expired', 'running', 'held', 'ready'];
  const { body } = await intake.post({
    defaults,
    correlation_id: 'c',
    items: [
      ...states.map((key) => ({ idempotency_key: key })),
      { idempotency_key: 'scheduled', run_at: '2099-01-01T00:00:00Z' },
      { idempotency_key: 'before' },
      { idempotency_key: 'ready' },
      { idempotency_key: 'before-too', body: 'conflict' },
      { idempotency_key: 'bad', cost: 0 },
    ],
  });
  for (const state of states) if (state !== 'ready') await move(intake, state, state);
  const { status, body: batch } = await intake.get<Record<string, unknown>>(`/v1/batches/${body.batch_id}`);
  t.equal(status, 200);
  t.same(batch, {
    batch_id: body.batch_id,
    status: 'processing',
    created_at: batch.created_at,
    completed_at: null,
    cancelled_at: null,
    correlation_id: 'c',
    counts: { total: 12, accepted: 8, duplicate: 2, conflict: 1, rejected: 1 },
    jobs: { scheduled: 1, ready: 2, running: 1, succeeded: 1, failed: 1, held: 1, cancelled: 1, expired: 1 },
    progress: 4 / 9,
    held_by: null,
    eta: null,
  });
  t.match(batch.created_at, instant);

  // When the rest has ended, the batch has.
  for (const key of ['ready', 'before']) await move(intake, key, 'succeeded');
  await intake.database.query(
    `insert into sluice.done_jobs (job_id, state, ended_at) select job_id, 'failed', clock_timestamp() from sluice.running_jobs`,
  );
  await intake.database.query('delete from sluice.running_jobs');
  await intake.database.query(
    `insert into sluice.done_jobs (job_id, state, ended_at) select job_id, 'failed', clock_timestamp() from sluice.parked_jobs`,
  );
  await intake.database.query('delete from sluice.parked_jobs');
  const ended = (await intake.get<Record<string, unknown>>(`/v1/batches/${body.batch_id}`)).body;
  t.match(ended, { status: 'completed', progress: 1, completed_at: instant });
});

t.test('a batch without jobs is completed at once', async (t) => {
  const { post, get } = await useIntake(t);
  const { body } = await post({ defaults, items: [{ idempotency_key: 'k', cost: 0 }] });
  t.equal(body.status, 'completed');
  const batch = (await get<Record<string, unknown>>(`/v1/batches/${body.batch_id}`)).body;
  t.match(batch, { status: 'completed', progress: 1, completed_at: batch.created_at });
});

t.test('items come page by page, none twice and none missing (drizzle-team/drizzle-orm#4419)', async (t) => {
  const { post, get } = await useIntake(t);
  const { body } = await post({
    defaults,
    items: Array.from({ length: 250 }, (_, i) => ({ idempotency_key: `k${i}` })),
  });
  const path = `/v1/batches/${body.batch_id}/items`;
  for (const [query, sizes] of [
    ['', [100, 100, 50]],
    ['?limit=125', [125, 125]],
    ['?limit=1000', [250]],
  ] as const) {
    const seen: unknown[] = [];
    const pages: number[] = [];
    let cursor: string | null = null;
    do {
      const more = cursor === null ? '' : `${query === '' ? '?' : '&'}cursor=${cursor}`;
      const page: Page = (await get<Page>(`${path}${query}${more}`)).body;
      pages.push(page.items.length);
      seen.push(...page.items.map(({ index }) => index));
      cursor = page.next_cursor;
    } while (cursor !== null);
    t.same(pages, sizes);
    t.same(
      seen,
      Array.from({ length: 250 }, (_, i) => i),
    );
  }
});

t.test('items show what became of each, and can be narrowed to a verdict or a state', async (t) => {
  const intake = await useIntake(t);
  const { body } = await intake.post({
    defaults,
    items: [
      { idempotency_key: 'a' },
      { idempotency_key: 'a' },
      { idempotency_key: 'a', body: 'other' },
      { idempotency_key: 'b' },
      { body: 'no key' },
    ],
  });
  await move(intake, 'a', 'failed');
  const path = `/v1/batches/${body.batch_id}/items`;
  const all = (await intake.get<Page>(path)).body;
  t.equal(all.next_cursor, null);
  const job_id = body.items[0]!.job_id;
  const a = {
    idempotency_key: 'a',
    key_source: 'given',
    job_id,
    job_state: 'failed',
    response_status: 418,
    errors: [],
  };
  t.same(all.items.slice(0, 2), [
    { index: 0, verdict: 'accepted', ...a },
    { index: 1, verdict: 'duplicate', ...a },
  ]);
  t.match(all.items[2], { verdict: 'conflict', job_id, job_state: null, errors: [{ code: 'idempotency_key_reused' }] });
  t.match(all.items[4], {
    index: 4,
    idempotency_key: null,
    key_source: null,
    verdict: 'rejected',
    job_id: null,
    job_state: null,
    response_status: null,
    errors: [{ pointer: '/items/4/idempotency_key', code: 'missing_idempotency_key' }],
  });

  const indices = async (query: string) =>
    (await intake.get<Page>(`${path}?${query}`)).body.items.map((item) => item.index);
  t.same(await indices('verdict=duplicate'), [1]);
  t.same(await indices('verdict=rejected'), [4]);
  t.same(await indices('state=failed'), [0, 1]);
  t.same(await indices('state=ready'), [3]);
  t.same(await indices('state=failed&verdict=accepted'), [0]);
  t.same(await indices('state=held'), []);
  const first = (await intake.get<Page>(`${path}?state=failed&limit=1`)).body;
  t.equal(first.items[0]!.index, 0);
  t.same(await indices(`state=failed&limit=1&cursor=${first.next_cursor}`), [1]);
});

t.test('what does not exist, or belongs to another tenant, is not found', async (t) => {
  const { database, submit, get, post } = await useIntake(t);
  for (const id of [unknown, 'nope', "'; drop table sluice.jobs; --", '%00']) {
    for (const path of [`/v1/batches/${id}`, `/v1/batches/${id}/items`, `/v1/jobs/${id}`]) {
      t.match(await get<Problem>(path.replaceAll(' ', '%20')), { status: 404, body: { code: 'not_found' } }, path);
    }
  }
  const [item] = await submit([{ idempotency_key: 'k' }]);
  const { body } = await post({ defaults, items: [{ idempotency_key: 'l' }] });
  const definitions = {
    current: async () => ({ version: 1, upstreams: new Map(), rateLimits: new Map(), queues: new Map() }),
  };
  const filter = { verdict: null, state: null, after: -1, limit: 10 };
  await t.rejects(getJob({ database, definitions }, 'other', item!.job_id!), { code: 'not_found' });
  await t.rejects(getBatch({ database }, 'other', body.batch_id), { code: 'not_found' });
  await t.rejects(listBatchItems({ database }, 'other', body.batch_id, filter), { code: 'not_found' });
  t.equal((await getJob({ database, definitions }, 'default', item!.job_id!)).jobId, item!.job_id);
});

t.test('query parameters are checked, and unknown ones are errors (colinhacks/zod#5501)', async (t) => {
  const { post, get } = await useIntake(t);
  const { body } = await post({ defaults, items: [{ idempotency_key: 'k' }] });
  for (const query of [
    'limit=',
    'limit=0',
    'limit=1001',
    'limit=1e2',
    'state=done',
    'verdict=',
    'cursor=x',
    'page=2',
  ]) {
    const answer = await get<Problem>(`/v1/batches/${body.batch_id}/items?${query}`);
    t.match(answer, { status: 400, body: { code: 'invalid_request' } }, query);
    t.match(answer.body.errors[0]!.pointer, `/query/${query.split('=')[0]}`);
  }
  const at = (index: unknown) => Buffer.from(JSON.stringify(index)).toString('base64url');
  for (const index of [2_147_483_648, -1, 1.5, 1e300, '1']) {
    const answer = await get<Problem>(`/v1/batches/${body.batch_id}/items?cursor=${at(index)}`);
    t.match(answer, { status: 400, body: { errors: [{ pointer: '/query/cursor' }] } }, String(index));
  }
  const beyond = await get(`/v1/batches/${body.batch_id}/items?cursor=${at(2_147_483_647)}`);
  t.match(beyond, { status: 200, body: { items: [], next_cursor: null } });
  t.equal((await get(`/v1/batches/${body.batch_id}?wait=x&y=1`)).status, 400);
  t.equal((await get(`/v1/jobs/${body.items[0]!.job_id}?x=1`)).status, 400);
});

t.test('ids may be written in upper case, and are shown as they are stored', async (t) => {
  const { app, post, get } = await useIntake(t);
  const { batch_id, items } = (await post({ defaults, items: [{ idempotency_key: 'k' }] })).body;
  const [batch, job] = [`/v1/batches/${batch_id.toUpperCase()}`, `/v1/jobs/${items[0]!.job_id!.toUpperCase()}`];
  t.match(await get(batch), { status: 200, body: { batch_id } });
  t.match(await get(`${batch}/items`), { status: 200, body: { items: [{ job_id: items[0]!.job_id }] } });
  t.match(await get(job), { status: 200, body: { job_id: items[0]!.job_id, batch_id } });
  t.match(await get(`${job}/explain`), { status: 200, body: { job_id: items[0]!.job_id } });
  const cancelled = await app.app.inject({ method: 'POST', url: `${batch}/cancel` });
  t.match(cancelled.json(), { batch_id, status: 'cancelled' });
});

t.test(
  'a job shows its request, with headers masked but for harmless ones (trv-enterprises/ts-store#163)',
  async (t) => {
    const { post, get } = await useIntake(t);
    const { body } = await post({
      defaults,
      correlation_id: 'import-7',
      items: [
        {
          idempotency_key: 'k',
          method: 'PATCH',
          path: '/charges/1?expand=a',
          headers: {
            'Content-Type': 'application/json',
            accept: 'a/b',
            'User-Agent': 'mine',
            'private-token': 'SECRET',
            authorization: 'SECRET',
            'x-hub-signature-256': 'SECRET',
          },
          body: { amount: 5 },
          partition_key: 'acct_1',
          priority: -3,
          cost: 2,
          max_attempts: 7,
          payload_version: '1',
          run_at: '2099-03-01T00:00:00.123Z',
          expires_at: '2099-03-02T00:00:00+09:00',
        },
      ],
    });
    const { job_id } = body.items[0]!;
    const { status, body: job } = await get<Record<string, unknown>>(`/v1/jobs/${job_id}`);
    t.equal(status, 200);
    t.same(job, {
      job_id,
      batch_id: body.batch_id,
      idempotency_key: 'k',
      key_source: 'given',
      queue: 'default',
      upstream: 'api',
      partition_key: 'acct_1',
      method: 'PATCH',
      path: '/charges/1?expand=a',
      headers: {
        'content-type': 'application/json',
        accept: 'a/b',
        'user-agent': 'mine',
        'private-token': '***',
        authorization: '***',
        'x-hub-signature-256': '***',
      },
      body: { amount: 5 },
      state: 'scheduled',
      reason: null,
      priority: -3,
      cost: 2,
      payload_version: '1',
      correlation_id: 'import-7',
      run_at: '2099-03-01T00:00:00.123Z',
      expires_at: '2099-03-01T15:00:00.000Z',
      next_eligible_at: '2099-03-01T00:00:00.123Z',
      lease_expires_at: null,
      max_attempts: 7,
      attempts_used: 0,
      throttles: 0,
      evidence: null,
      response: null,
      created_at: job.created_at,
      ended_at: null,
      attempts: [],
      reconciliations: [],
    });
    t.match(job.created_at, instant);
  },
);

t.test('bodies come back as they were sent: NUL, lone surrogates, emoji, {}, null, none, text', async (t) => {
  const { submit, get } = await useIntake(t);
  const bodies: unknown[] = [
    '10.5',
    '{"a":1}',
    'a\u0000b',
    '\ud800',
    '😀',
    {},
    [],
    null,
    false,
    0,
    '',
    { '': { a: [{}] } },
  ];
  const items = await submit([
    ...bodies.map((body, i) => ({ idempotency_key: `k${i}`, body })),
    { idempotency_key: 'none' },
    { idempotency_key: 'text', body_text: 'a\u0000<b/>\n"\\' },
    { idempotency_key: 'empty', body_text: '' },
  ]);
  for (const [i, body] of bodies.entries()) {
    const { body: job } = await get<Record<string, unknown>>(`/v1/jobs/${items[i]!.job_id}`);
    t.ok('body' in job && !('body_text' in job));
    t.same(JSON.stringify(job.body), JSON.stringify(body));
  }
  const last = await Promise.all(
    items
      .slice(bodies.length)
      .map(async (item) => (await get<Record<string, unknown>>(`/v1/jobs/${item.job_id}`)).body),
  );
  t.notOk('body' in last[0]! || 'body_text' in last[0]!);
  t.same(
    last.slice(1).map((job) => [job.body_text, 'body' in job]),
    [
      ['a\u0000<b/>\n"\\', false],
      ['', false],
    ],
  );
});

t.test('a job shows its attempts, its lease while it runs, and the answer that ended it', async (t) => {
  const intake = await useIntake(t);
  await intake.putUpstream('api', { retry: { max_attempts: 3 } });
  const [item] = await intake.submit([{ idempotency_key: 'k' }]);
  const job = async () => (await intake.get<Record<string, unknown>>(`/v1/jobs/${item!.job_id}`)).body;
  const ready = await job();
  t.match(ready, { state: 'ready', next_eligible_at: ready.created_at, max_attempts: 3 });

  const worker = await newWorker(intake.database);
  const [throttled] = (await claimJobs(intake.database, worker, 1)).jobs;
  t.match(await job(), { state: 'running', lease_expires_at: instant, next_eligible_at: null });
  await settleJobs(intake.database, worker, [settleRow(throttled!, throttledFor(3_600_000))]);
  const cooled = await job();
  t.match(cooled, { state: 'ready', throttles: 1, attempts_used: 0, lease_expires_at: null, response: null });
  t.ok(
    Date.parse(String(cooled.next_eligible_at)) > Date.parse(String(cooled.created_at)) + 3_000_000,
    'after the cooldown',
  );

  await intake.database.query('delete from sluice.cooldowns');
  await intake.database.query(`update sluice.lane_groups set next_at = clock_timestamp(), closed_by = null`);
  await intake.database.query(`update sluice.lanes set next_at = clock_timestamp(), closed_by = null`);
  const [claimed] = (await claimJobs(intake.database, worker, 1)).jobs;
  await settleJobs(intake.database, worker, [
    settleRow(claimed!, { excerpt: '{"ok":true}', sha256: '07'.repeat(32), status: 201 }),
  ]);
  const done = await job();
  const response = { status: 201, excerpt: '{"ok":true}', truncated: false, sha256: '07'.repeat(32) };
  t.match(done, {
    state: 'succeeded',
    evidence: 'response',
    next_eligible_at: null,
    ended_at: instant,
    attempts_used: 1,
    throttles: 1,
    response,
  });
  const attempts = done.attempts as Array<Record<string, unknown>>;
  t.match(
    attempts.map(({ number, outcome, charged, status }) => ({ number, outcome, charged, status })),
    [
      { number: 1, outcome: 'throttled', charged: 'throttle', status: 429 },
      { number: 2, outcome: 'success', charged: 'attempt', status: 201 },
    ],
  );
  t.match(attempts[1], {
    worker_id: worker,
    started_at: instant,
    sent_at: instant,
    ended_at: instant,
    error: null,
    ...response,
  });
  t.same(Object.keys(attempts[0]!), [
    'number',
    'epoch',
    'worker_id',
    'outcome',
    'charged',
    'status',
    'started_at',
    'sent_at',
    'ended_at',
    'slot_wait_ms',
    'retry_after_ms',
    'retry_after_capped',
    'excerpt',
    'truncated',
    'sha256',
    'error',
    'late',
  ]);
});

t.test('a job in a paused queue has no time at which it may run', async (t) => {
  const intake = await useIntake(t);
  const [item] = await intake.submit([{ idempotency_key: 'k' }]);
  await intake.putQueue('default', { paused: true });
  t.match(await intake.get(`/v1/jobs/${item!.job_id}`), { body: { state: 'ready', next_eligible_at: null } });
});
