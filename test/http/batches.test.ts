/** POST /v1/batches: verdicts, faults of items and envelopes, keys, defaults, and the request's own idempotency. */
import { createHash } from 'node:crypto';
import t from 'tap';
import type { IntakeClaimer } from '../../src/postgres/intake-reservation.ts';
import { createTestApp, unreachableDatabase } from '../support/app.ts';
import { newWorker } from '../support/claims.ts';
import type { BatchAnswer } from '../support/client.ts';
import { eventually } from '../support/eventually.ts';
import { codesOf, defaults, type Problem, useIntake } from '../support/intake.ts';

const verdicts = (items: ReadonlyArray<{ verdict: string }>) => items.map(({ verdict }) => verdict);

t.test('each item gets its verdict in order; sent again, all that was accepted is a duplicate', async (t) => {
  const { post } = await useIntake(t);
  const batch = {
    correlation_id: 'import-7',
    defaults,
    items: [
      { idempotency_key: 'K1', body: 'p' },
      { idempotency_key: 'K2', body: 'q' },
      { idempotency_key: 'K1', body: 'p' },
      { idempotency_key: 'K1', body: 'r' },
      { idempotency_key: 'K3', body: 's' },
      { method: 'TEAPOT' },
    ],
  };
  const { status, headers, body } = await post(batch);
  t.equal(status, 202);
  t.equal(headers.location, `/v1/batches/${body.batch_id}`);
  t.match(body, {
    batch_id: /^[0-9a-f-]{36}$/,
    status: 'processing',
    created_at: /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/,
    correlation_id: 'import-7',
    replayed: false,
    counts: { total: 6, accepted: 3, duplicate: 1, conflict: 1, rejected: 1 },
  });
  t.same(verdicts(body.items), ['accepted', 'accepted', 'duplicate', 'conflict', 'accepted', 'rejected']);
  t.same(
    body.items.map(({ index }) => index),
    [0, 1, 2, 3, 4, 5],
  );
  t.same(body.items[0], {
    index: 0,
    idempotency_key: 'K1',
    key_source: 'given',
    verdict: 'accepted',
    job_id: body.items[0]!.job_id,
    job_state: 'ready',
  });
  t.equal(body.items[2]!.job_id, body.items[0]!.job_id);
  t.match(body.items[3], { job_id: body.items[0]!.job_id, errors: [{ code: 'idempotency_key_reused' }] });
  t.match(body.items[5], { idempotency_key: null, errors: [{ pointer: '/items/5/method', code: 'invalid' }] });

  const again = await post(batch);
  t.same(verdicts(again.body.items), ['duplicate', 'duplicate', 'duplicate', 'conflict', 'duplicate', 'rejected']);
  t.not(again.body.batch_id, body.batch_id);
  t.same(
    again.body.items.slice(0, 5).map(({ job_id }) => job_id),
    body.items.slice(0, 5).map(({ job_id }) => job_id),
  );
});

t.test('a key with another request is a conflict whatever its job does, and the job is untouched', async (t) => {
  const { submit, putUpstream, database } = await useIntake(t);
  await putUpstream('other');
  const [first] = await submit([{ idempotency_key: 'K', path: '/a', body: 1 }]);
  // Running: the fingerprint decides before the state does (idempot-dev/idempot-js#191).
  await database.query(
    `with worker as (
       insert into sluice.workers (id, host, pid, concurrency, lease_expires_at)
       values (gen_random_uuid(), 'test', 1, 1, clock_timestamp() + interval '1 hour') returning id),
     gone as (delete from sluice.ready_jobs returning *)
     insert into sluice.running_jobs (job_id, lane_id, group_id, rank, seq, cost, eligible_at, worker_id, admitted_at)
     select job_id, lane_id, 1, rank, seq, cost, eligible_at, worker.id, clock_timestamp() from gone, worker`,
  );
  // Each alone makes another request (josipmusa/idempotency4j#12, spring's silent first answer).
  for (const change of [
    { path: '/b' },
    { method: 'PUT' },
    { headers: { 'x-a': '1' } },
    { upstream: 'other' },
    { body: 2 },
  ]) {
    const [item] = await submit([{ idempotency_key: 'K', path: '/a', body: 1, ...change }]);
    t.match(item, { verdict: 'conflict', job_id: first!.job_id }, JSON.stringify(change));
    t.same(codesOf(item), ['idempotency_key_reused']);
    t.notOk('job_state' in item!);
  }
  const [same] = await submit([{ idempotency_key: 'K', path: '/a', body: 1, priority: 3, cost: 2, headers: {} }]);
  t.match(
    same,
    { verdict: 'duplicate', job_state: 'running', job_id: first!.job_id },
    'how it is run is not the request',
  );
});

t.test('a duplicate of a job that ended without success says that it needs a retry', async (t) => {
  const { submit, post, database } = await useIntake(t);
  await submit(['succeeded', 'failed', 'cancelled', 'expired'].map((key) => ({ idempotency_key: key })));
  await database.query(
    `with gone as (delete from sluice.ready_jobs returning *)
     insert into sluice.done_jobs (job_id, state, ended_at)
     select g.job_id, j.idempotency_key, clock_timestamp() from gone g join sluice.jobs j on j.id = g.job_id`,
  );
  const { body } = await post({
    defaults,
    items: ['succeeded', 'failed', 'cancelled', 'expired', 'failed'].map((key) => ({ idempotency_key: key })),
  });
  t.same(
    body.items.map(({ verdict, job_state, needs_retry }) => [verdict, job_state, needs_retry]),
    [
      ['duplicate', 'succeeded', undefined],
      ['duplicate', 'failed', true],
      ['duplicate', 'cancelled', true],
      ['duplicate', 'expired', true],
      ['duplicate', 'failed', true],
    ],
  );
  t.equal(body.status, 'completed', 'nothing accepted and no duplicate unfinished');
});

t.test('member order and spelling make no other request, the order of arrays does', async (t) => {
  const { post } = await useIntake(t);
  const item = (body: string) =>
    `{"defaults":${JSON.stringify(defaults)},"items":[{"idempotency_key":"K","body":${body}}]}`;
  t.same(verdicts((await post(item('{"b":1,"a":{"d":2,"c":[1,2]}}'))).body.items), ['accepted']);
  t.same(verdicts((await post(item('{"a": {"c":[1,2.0], "\\u0064":2}, "b":1e0}'))).body.items), ['duplicate']);
  t.same(verdicts((await post(item('{"b":1,"a":{"d":2,"c":[2,1]}}'))).body.items), ['conflict']);
});

t.test('an illegal key is refused by name and sinks no other (triggerdotdev/trigger.dev#3560)', async (t) => {
  const { submit } = await useIntake(t);
  const random = createHash('sha512').update('seed').digest('base64').repeat(46).slice(0, 4000);
  const illegal = [random, 'a'.repeat(4000), 'x'.repeat(256), 'a\u0000b', 'a\nb', '\ud800', '', '   ', ' a', 7];
  const legal = ['x'.repeat(255), '😀'.repeat(128), '😀'.repeat(255), 'é', 'e\u0301', 'a/../b'];
  const items = await submit([...illegal, ...legal].map((key) => ({ idempotency_key: key })));
  for (const [index, key] of illegal.entries()) {
    t.match(items[index], { verdict: 'rejected', idempotency_key: null }, JSON.stringify(key).slice(0, 30));
    t.same(codesOf(items[index]), ['invalid_key']);
    t.equal(items[index]!.errors![0]!.pointer, `/items/${index}/idempotency_key`);
  }
  const accepted = items.slice(illegal.length);
  t.same(verdicts(accepted), Array(legal.length).fill('accepted'), 'NFC and NFD are two keys');
  t.same(
    accepted.map((item) => item.idempotency_key),
    legal,
  );
});

t.test('without a key an item is rejected, or gets its fingerprint for one', async (t) => {
  const { submit } = await useIntake(t);
  const item = { body: { amount: 5 } };
  const [without, none] = await submit([item, { ...item, idempotency_key: null }]);
  t.same([...codesOf(without), ...codesOf(none)], ['missing_idempotency_key', 'missing_idempotency_key']);

  const [first, second, given] = await submit([item, item, { idempotency_key: 'mine', ...item }], {
    derive_keys: true,
  });
  const form = '{"body":{"amount":5},"method":"POST","path":"/charges","upstream":"api"}';
  const key = `sluice-${createHash('sha256').update(form).digest('hex')}`;
  t.match(first, { verdict: 'accepted', idempotency_key: key, key_source: 'derived' });
  t.match(second, { verdict: 'duplicate', idempotency_key: key, key_source: 'derived', job_id: first!.job_id });
  t.match(given, { verdict: 'accepted', idempotency_key: 'mine', key_source: 'given' });
});

t.test('defaults fill what an item leaves out, field by field; null stands for none', async (t) => {
  const { putUpstream, putQueue, post, get } = await useIntake(t);
  await putUpstream('other');
  await putQueue('sms', {});
  await putQueue('mail', {});
  const { body } = await post({
    queue: 'sms',
    defaults: {
      upstream: 'other',
      method: 'PUT',
      path: '/d',
      headers: { 'X-A': '1' },
      body: { d: 1 },
      partition_key: 'p',
      priority: 2,
      cost: 3,
      max_attempts: 4,
      payload_version: 'v1',
      run_at: '2099-01-01T00:00:00+01:00',
    },
    items: [
      { idempotency_key: '1' },
      {
        idempotency_key: '2',
        upstream: 'api',
        method: 'DELETE',
        path: '/i',
        headers: { 'x-b': '2' },
        body_text: 'text',
        queue: 'mail',
        partition_key: null,
        priority: 0,
        cost: 1,
        max_attempts: null,
        payload_version: null,
        run_at: null,
      },
    ],
  });
  const jobs = [];
  for (const { job_id } of body.items) jobs.push((await get<Record<string, unknown>>(`/v1/jobs/${job_id}`)).body);
  t.match(jobs[0], {
    queue: 'sms',
    upstream: 'other',
    method: 'PUT',
    path: '/d',
    headers: { 'x-a': '***' },
    body: { d: 1 },
    partition_key: 'p',
    priority: 2,
    cost: 3,
    max_attempts: 4,
    payload_version: 'v1',
    run_at: '2098-12-31T23:00:00.000Z',
    state: 'scheduled',
  });
  t.match(jobs[1], {
    queue: 'mail',
    upstream: 'api',
    method: 'DELETE',
    path: '/i',
    headers: { 'x-b': '***' },
    body_text: 'text',
    partition_key: null,
    priority: 0,
    cost: 1,
    max_attempts: 5,
    payload_version: null,
    run_at: null,
    state: 'ready',
  });
  t.notOk('body' in jobs[1]!, 'a body of the item replaces that of the defaults in either form');
});

t.test('what is wrong with an item is told with a pointer and a code, all of it at once', async (t) => {
  const { submit, putQueue, putLimit } = await useIntake(t);
  await putQueue('sms', { ordering: 'fifo' });
  await putLimit('small', { limit: 5, per: 60, upstreams: ['api'] });
  const wrong: Array<[item: unknown, faults: Array<[pointer: string, code: string]>]> = [
    [5, [['', 'invalid']]],
    [null, [['', 'invalid']]],
    [[], [['', 'invalid']]],
    [{ key: 'k' }, [['/key', 'unknown_field']]],
    [
      { method: 'TRACE', cost: 0 },
      [
        ['/method', 'invalid'],
        ['/cost', 'invalid'],
      ],
    ],
    [{ priority: 32_768 }, [['/priority', 'invalid']]],
    [{ priority: 1.5 }, [['/priority', 'invalid']]],
    [{ max_attempts: 0 }, [['/max_attempts', 'invalid']]],
    [{ run_at: 'tomorrow' }, [['/run_at', 'invalid']]],
    [{ run_at: '2026-02-30T00:00:00Z' }, [['/run_at', 'invalid']]],
    [{ expires_at: '2026-01-01T00:00:00' }, [['/expires_at', 'invalid']]],
    [{ expires_at: '0000-01-01T00:00:00Z' }, [['/expires_at', 'invalid']]],
    [{ partition_key: 'a\u0000b' }, [['/partition_key', 'invalid']]],
    [{ partition_key: '' }, [['/partition_key', 'invalid']]],
    [{ payload_version: 'é' }, [['/payload_version', 'invalid']]],
    [{ upstream: 'Not A Name' }, [['/upstream', 'invalid']]],
    [{ upstream: 'ap' }, [['/upstream', 'unknown_upstream']]],
    [{ queue: 'nope' }, [['/queue', 'unknown_queue']]],
    [
      { upstream: 'ap', queue: 'nope' },
      [
        ['/upstream', 'unknown_upstream'],
        ['/queue', 'unknown_queue'],
      ],
    ],
    [{ cost: 6 }, [['/cost', 'cost_exceeds_limit']]],
    [{ queue: 'sms', priority: 1 }, [['/priority', 'priority_in_fifo_queue']]],
    [{ path: 'charges' }, [['/path', 'invalid_path']]],
    [{ path: '//evil.test/x' }, [['/path', 'invalid_path']]],
    [{ path: '/a/../b' }, [['/path', 'invalid_path']]],
    [{ path: '/a\u0000' }, [['/path', 'invalid_path']]],
    [{ body: 1, body_text: 'x' }, [['', 'invalid']]],
    [{ body_text: '\ud800' }, [['/body_text', 'invalid']]],
    [{ headers: { 'x-a': 'a\nb' } }, [['/headers/x-a', 'invalid_header']]],
    [{ headers: { 'bad name': '1' } }, [['/headers/bad name', 'invalid_header']]],
    [{ headers: { 'X-A': '1', 'x-a': '2' } }, [['/headers/x-a', 'invalid_header']]],
    [{ headers: { Host: 'a' } }, [['/headers/Host', 'forbidden_header']]],
    [{ headers: { 'Sluice-Job-Id': 'a' } }, [['/headers/Sluice-Job-Id', 'forbidden_header']]],
    [{ headers: { 'IDEMPOTENCY-KEY': 'a' } }, [['/headers/idempotency-key', 'forbidden_header']]],
    [{ headers: { 'x-a': 1 } }, [['/headers/x-a', 'invalid']]],
  ];
  const items = wrong.map(([item], index) =>
    typeof item === 'object' && item !== null && !Array.isArray(item)
      ? { idempotency_key: `k${index}`, ...item }
      : item,
  );
  const good = [{ idempotency_key: 'good', cost: 5, queue: 'sms' }];
  const answered = await submit([...items, ...good]);
  for (const [index, [item, faults]] of wrong.entries()) {
    t.equal(answered[index]!.verdict, 'rejected');
    t.same(
      answered[index]!.errors?.map(({ pointer, code }) => [pointer, code]),
      faults.map(([pointer, code]) => [`/items/${index}${pointer}`, code]),
      JSON.stringify(item),
    );
  }
  t.equal(answered.at(-1)!.verdict, 'accepted');
  t.match(answered[16]!.errors![0]!.message, /did you mean.*api/i);
});

t.test('upstream and path must come from somewhere', async (t) => {
  const { post } = await useIntake(t);
  const { status, body } = await post({ items: [{ idempotency_key: 'k' }] });
  t.equal(status, 202);
  t.match(body, { status: 'completed', counts: { rejected: 1 } });
  t.same(codesOf(body.items[0]), ['required', 'required']);
});

t.test('what is known stays a duplicate when definitions would refuse it now', async (t) => {
  const { submit, putLimit } = await useIntake(t);
  const item = { idempotency_key: 'k', cost: 50 };
  const [first] = await submit([item]);
  await putLimit('small', { limit: 5, per: 60, upstreams: ['api'] });
  const [again, other, fresh] = await submit([item, { ...item, body: 1 }, { ...item, idempotency_key: 'l' }]);
  t.match(again, { verdict: 'duplicate', job_id: first!.job_id });
  t.same([codesOf(other), codesOf(fresh)], [['cost_exceeds_limit'], ['cost_exceeds_limit']]);
  const [later] = await submit([{ ...item, idempotency_key: 'l', cost: 5 }]);
  t.equal(later!.verdict, 'accepted', 'what was rejected took no key');
});

t.test('a bad envelope is refused as a whole', async (t) => {
  const intake = await useIntake(t);
  const items = [{ idempotency_key: 'k' }];
  const refused: Array<[body: unknown, status: number, code: string, pointer?: string]> = [
    ['', 400, 'malformed_json'],
    ['{"items":[', 400, 'malformed_json'],
    ['[]', 400, 'invalid_request'],
    ['null', 400, 'invalid_request'],
    [{}, 400, 'invalid_request', '/items'],
    [{ items: {} }, 400, 'invalid_request', '/items'],
    [{ items: [] }, 422, 'empty_batch'],
    [{ items, item: [] }, 400, 'invalid_request', '/item'],
    [{ items, queue: 'No Name' }, 400, 'invalid_request', '/queue'],
    [{ items, correlation_id: 'a\u0000' }, 400, 'invalid_request', '/correlation_id'],
    [{ items, derive_keys: 'false' }, 400, 'invalid_request', '/derive_keys'],
    [{ items, defaults: { method: 'TRACE' } }, 400, 'invalid_request', '/defaults/method'],
    [{ items, defaults: { idempotency_key: 'k' } }, 400, 'invalid_request', '/defaults/idempotency_key'],
    [Buffer.from('7b226974656d73223a5b22ff225d7d', 'hex'), 400, 'malformed_json'],
  ];
  for (const [body, status, code, pointer] of refused) {
    const answer = await intake.post<Problem>(body);
    const label = Buffer.isBuffer(body) ? 'not UTF-8' : JSON.stringify(body);
    t.match(answer, { status, headers: { 'content-type': 'application/problem+json' }, body: { status, code } }, label);
    if (pointer !== undefined) t.equal(answer.body.errors[0]?.pointer, pointer, label);
  }
  t.equal(await intake.count('batches'), 0);
  const form = await intake.post<Problem>('items=1', { 'content-type': 'application/x-www-form-urlencoded' });
  t.equal(form.status, 415);
});

t.test('__proto__ is refused where names are read, and is data in a body (fastify/fastify#1426)', async (t) => {
  const intake = await useIntake(t);
  const text = (item: string) => `{"defaults":${JSON.stringify(defaults)},"items":[${item}]}`;
  for (const body of [
    '{"items":[{"idempotency_key":"k","__proto__":{"isAdmin":true}}]}',
    '{"items":[{"key":"k","__proto__":{"isAdmin":true}}]}',
    '{"items":[{"idempotency_key":"k","\\u005f_proto__":null}]}',
    '{"items":[{"idempotency_key":"k","headers":{"__proto__":"a"}}]}',
    '{"__proto__":{"queue":"x"},"items":[{"idempotency_key":"k"}]}',
    '{"defaults":{"__proto__":{}},"items":[{"idempotency_key":"k"}]}',
  ]) {
    const answer = await intake.post<Problem>(body);
    t.match(answer, { status: 400, body: { code: 'invalid_request' } }, body);
    t.match(answer.body.errors[0]?.pointer, /__proto__$/);
  }
  t.notOk('isAdmin' in {});

  const body = '{"__proto__":{"isAdmin":true},"constructor":{"prototype":{"isAdmin":true}},"toString":"a"}';
  const { items } = (
    await intake.post(
      text(
        `{"idempotency_key":"a","body":${body}},{"idempotency_key":"b","body":{"constructor":"text"}},{"idempotency_key":"c","body":{"constructor":null}}`,
      ),
    )
  ).body;
  t.same(verdicts(items), ['accepted', 'accepted', 'accepted']);
  const rows = await intake.database.query<{ body: string }>('select body from sluice.jobs order by seq');
  t.same(
    rows.map((row) => row.body),
    [body, '{"constructor":"text"}', '{"constructor":null}'],
  );
  t.notOk('isAdmin' in {});
  t.match((await intake.post(text('{"idempotency_key":"d","constructor":null}'))).body.items[0], {
    verdict: 'rejected',
    errors: [{ pointer: '/items/0/constructor', code: 'unknown_field' }],
  });
});

t.test('numbers that a double would change are rejected by name, and body_text carries them', async (t) => {
  const { post, get } = await useIntake(t);
  // brianc/node-postgres#2385, webhooksite/webhook.site#76
  const text = `{"defaults":${JSON.stringify(defaults)},"items":[
    {"idempotency_key":"0","body":{"id":9007199254740993}},
    {"idempotency_key":"1","body":{"id":9007199254740991,"x":[1.5,-0,1e20]}},
    {"idempotency_key":"2","body":[[{"a/b":-9007199254740992}],1E400]},
    {"idempotency_key":"3","body_text":"{\\"id\\":9007199254740993}","headers":{"content-type":"application/json"}},
    {"idempotency_key":"4","body":{"id":"9007199254740993"}}]}`;
  const { items } = (await post(text)).body;
  t.same(verdicts(items), ['rejected', 'accepted', 'rejected', 'accepted', 'accepted']);
  t.same(
    [items[0], items[2]].map((item) => item!.errors!.map(({ pointer, code }) => [pointer, code])),
    [
      [['/items/0/body/id', 'unsafe_number']],
      [
        ['/items/2/body/0/0/a~1b', 'unsafe_number'],
        ['/items/2/body/1', 'unsafe_number'],
      ],
    ],
  );
  t.match(items[0]!.errors![0]!.message, /9007199254740993.*body_text/);
  const job = await get<{ body_text: string }>(`/v1/jobs/${items[3]!.job_id}`);
  t.equal(job.body.body_text, '{"id":9007199254740993}');

  const inherited = await post(
    '{"defaults":{"upstream":"api","path":"/x","body":{"id":9007199254740993}},"items":[{"idempotency_key":"d"},{"idempotency_key":"e","body":1}]}',
  );
  t.same(verdicts(inherited.body.items), ['rejected', 'accepted']);
  t.equal(inherited.body.items[0]!.errors![0]!.pointer, '/defaults/body/id');
});

t.test('each of many items gets its own unsafe numbers', async (t) => {
  const { post } = await useIntake(t);
  const items = Array.from(
    { length: 3000 },
    (_, i) => `{"idempotency_key":"k${i}","body":[1,${i % 3 === 0 ? '9007199254740993' : '1e20'}]}`,
  );
  const { body } = await post(`{"defaults":${JSON.stringify(defaults)},"items":[${items}]}`);
  const wrong = body.items.filter((item, i) => {
    const pointer = item.errors?.[0]?.pointer;
    return i % 3 === 0 ? pointer !== `/items/${i}/body/1` : item.verdict !== 'accepted';
  });
  t.same(wrong, []);
});

t.test('what is crowded with mistakes is refused without telling each', async (t) => {
  const { submit, post } = await useIntake(t);
  const many = (count: number) => Object.fromEntries(Array.from({ length: count }, (_, i) => [`x-${i}`, i]));
  const numbers = `[${Array(50).fill('9007199254740993')}]`;
  const items = await submit([
    { idempotency_key: 'a', ...many(100_000) },
    { idempotency_key: 'b', headers: many(100_000) },
    { idempotency_key: 'c', ...many(50) },
    { idempotency_key: 'd', body: many(100_000) },
  ]);
  t.same(
    items.map((item) => item.errors?.length),
    [1, 1, 20, undefined],
  );
  t.match(items[0]!.errors![0], { pointer: '/items/0', message: /100001 members/ });
  t.match(items[1]!.errors![0], { pointer: '/items/1/headers' });
  const unsafe = await post(
    `{"defaults":${JSON.stringify(defaults)},"items":[{"idempotency_key":"e","body":${numbers}}]}`,
  );
  t.equal(unsafe.body.items[0]!.errors!.length, 20);
  for (const envelope of [many(1000), { defaults: many(1000) }, { defaults: { headers: many(1000) } }]) {
    const refused = await post<Problem>({ ...envelope, items: [{ idempotency_key: 'k' }] });
    t.match(refused, { status: 400, body: { code: 'invalid_request' } });
    t.equal(refused.body.errors.length, 1);
  }
});

t.test('with PostgreSQL away it says so, and when to come back; with one connection everything works', async (t) => {
  const { app } = await createTestApp(t, unreachableDatabase(t));
  for (const [method, url] of [
    ['POST', '/v1/batches'],
    ['GET', '/v1/batches/01890000-0000-7000-8000-000000000000'],
    ['GET', '/v1/jobs/01890000-0000-7000-8000-000000000000'],
  ] as const) {
    const payload = { defaults, items: [{ idempotency_key: 'k' }] };
    const answer = await app.inject({ method, url, ...(method === 'POST' ? { payload } : {}) });
    t.match(answer.json(), { status: 503, code: 'database_unavailable' }, url);
    t.match(answer.headers['retry-after'], /^\d+$/);
  }
  const { post, get } = await useIntake(t, { max: 1 });
  const batch = { defaults, items: [{ idempotency_key: 'k' }, { idempotency_key: 'l', partition_key: 'p' }] };
  const answers = await Promise.all(Array.from({ length: 10 }, () => post(batch, { 'idempotency-key': 'one' })));
  t.same([...new Set(answers.map(({ body }) => body.batch_id))].length, 1);
  t.equal((await get(`/v1/batches/${answers[0]!.body.batch_id}/items`)).status, 200);
});

t.test('the request key gives the first answer again, whatever has happened since', async (t) => {
  const { post, database, count } = await useIntake(t);
  const batch = {
    defaults,
    correlation_id: 'c',
    items: [
      { idempotency_key: 'a', body: { x: 1, y: 2 } },
      { idempotency_key: 'a', body: { x: 1, y: 2 } },
      { idempotency_key: 'a', body: 'other' },
      { idempotency_key: 'later', run_at: '2099-01-01T00:00:00Z' },
      { idempotency_key: 'bad', cost: 0 },
      { idempotency_key: '\u0000' },
    ],
  };
  const first = await post(batch, { 'idempotency-key': 'req-1' });
  t.equal(first.body.replayed, false);
  await database.query(
    `with gone as (delete from sluice.ready_jobs returning *)
     insert into sluice.done_jobs (job_id, state, ended_at) select job_id, 'failed', clock_timestamp() from gone`,
  );
  const reordered = JSON.stringify(
    { ...batch, items: [{ body: { y: 2, x: 1 }, idempotency_key: 'a' }, ...batch.items.slice(1)] },
    null,
    2,
  );
  for (const [body, key] of [
    [batch, 'req-1'],
    [batch, '"req-1"'],
    [reordered, 'req-1'],
  ] as const) {
    const again = await post(body, { 'idempotency-key': key });
    t.equal(again.status, 202);
    t.equal(again.headers.location, first.headers.location);
    t.same(again.body, { ...first.body, replayed: true });
  }
  t.equal(await count('batches'), 1);

  const other = await post<Problem>({ ...batch, items: [{ idempotency_key: 'z' }] }, { 'idempotency-key': 'req-1' });
  t.match(other, { status: 422, body: { code: 'idempotency_key_reused' } });
  t.equal(await count('batches'), 1);
  t.equal((await post(batch, { 'idempotency-key': 'req-2' })).body.replayed, false, 'another key is another batch');
  for (const key of ['', ' ', '""', 'x'.repeat(256), '"\\u0000"'.repeat(60)]) {
    const refused = await post<Problem>(batch, { 'idempotency-key': key });
    t.match(refused, { status: 400, body: { errors: [{ pointer: '/headers/idempotency-key' }] } }, key.slice(0, 10));
  }
});

t.test('twins at the same time get one batch, whether or not they differ', async (t) => {
  const { post, count } = await useIntake(t, { max: 3 });
  const batch = { defaults, items: Array.from({ length: 200 }, (_, i) => ({ idempotency_key: `k${i}` })) };
  const answers = await Promise.all(Array.from({ length: 12 }, () => post(batch, { 'idempotency-key': 'twin' })));
  t.same([...new Set(answers.map(({ status }) => status))], [202]);
  t.equal(answers.filter(({ body }) => !body.replayed).length, 1);
  const [first] = answers.filter(({ body }) => !body.replayed);
  for (const { body } of answers) t.same({ ...body, replayed: false }, first!.body);
  t.same([await count('batches'), await count('jobs')], [1, 200]);

  const others = await Promise.all(
    Array.from({ length: 6 }, (_, i) =>
      post<BatchAnswer & Problem>(
        { defaults, items: [{ idempotency_key: `other${i}` }] },
        { 'idempotency-key': 'rivals' },
      ),
    ),
  );
  t.same(others.map(({ status }) => status).sort(), [202, 422, 422, 422, 422, 422]);
  t.equal(await count('jobs'), 201);
});

t.test('50 posts of one new key at once: one accepted, 49 duplicates of it', async (t) => {
  const { post, app } = await useIntake(t);
  const batch = { defaults, items: [{ idempotency_key: 'new', body: 1 }] };
  const answers = await Promise.all(Array.from({ length: 50 }, () => post(batch)));
  t.same([...new Set(answers.map(({ status }) => status))], [202]);
  const items = answers.map(({ body }) => body.items[0]!);
  t.same(verdicts(items).sort(), ['accepted', ...Array(49).fill('duplicate')]);
  t.equal(new Set(items.map(({ job_id }) => job_id)).size, 1);
  t.notMatch(app.logText(), /"level":50|unique/);
});

t.test('neither keys nor bodies nor headers reach the log', async (t) => {
  const { post, app } = await useIntake(t);
  await post({
    defaults,
    items: [{ idempotency_key: 'SECRET-a', headers: { authorization: 'SECRET-b' }, body: 'SECRET-c' }],
  });
  await post({
    defaults,
    items: [{ idempotency_key: 'SECRET-d\u0000', headers: { 'x-token': 'SECRET\n' }, body: 'x' }],
  });
  await post('{"items": SECRET}');
  t.match(app.logText(), /v1\/batches/, 'there is a log');
  t.notMatch(app.logText(), /SECRET/);
});

t.test('all that is wrong with an item is told at once', async (t) => {
  const { submit, post, putQueue } = await useIntake(t);
  await putQueue('line', { ordering: 'fifo' });
  const told = (items: Awaited<ReturnType<typeof submit>>) =>
    items.map((item) => item.errors!.map(({ pointer, code }) => `${pointer!.replace(/^\/items\/\d+/, '')} ${code}`));
  const items = await submit([
    { idempotency_key: 'a', method: 'post', path: 'charges' },
    { method: 'post', headers: { Host: 'x', 'Idempotency-Key': 'y', 'Sluice-Job-Id': 'z', 'x-n': 5 } },
    { idempotency_key: 'b', headers: { Host: 'x', 'Idempotency-Key': 'y' } },
    { idempotency_key: ' c', cost: 0, path: '//x', body_text: '\ud800', body: 1 },
    { idempotency_key: 'd', path: 5, headers: [], upstream: 'nobody', queue: 'line', priority: 1 },
    { idempotency_key: 5, body: 1 },
  ]);
  t.same(told(items), [
    ['/method invalid', '/path invalid_path'],
    [
      '/method invalid',
      '/headers/x-n invalid',
      '/headers/Host forbidden_header',
      '/headers/Sluice-Job-Id forbidden_header',
      '/idempotency_key missing_idempotency_key',
      '/headers/Idempotency-Key forbidden_header',
    ],
    ['/headers/Host forbidden_header', '/headers/Idempotency-Key forbidden_header'],
    ['/cost invalid', '/path invalid_path', ' invalid', '/body_text invalid', '/idempotency_key invalid_key'],
    ['/path invalid', '/headers invalid', '/upstream unknown_upstream', '/priority priority_in_fifo_queue'],
    ['/idempotency_key invalid_key'],
  ]);
  t.same(
    items.map((item) => item.idempotency_key),
    ['a', null, 'b', null, 'd', null],
  );
  const bare = await post({
    items: [{ idempotency_key: 'e', method: 'post' }, 5, { idempotency_key: 'f', upstream: 5 }],
  });
  t.same(told(bare.body.items), [
    ['/method invalid', '/upstream required', '/path required'],
    [' invalid'],
    ['/upstream invalid', '/path required'],
  ]);
});

t.test(
  'what another process has declared since is known to the next batch, and what it took away is not',
  async (t) => {
    const { database, post } = await useIntake(t);
    const other = await createTestApp(t, database);
    const body = { items: [{ idempotency_key: 'k', upstream: 'later', path: '/x' }] };
    t.same(codesOf((await post(body)).body.items[0]!), ['unknown_upstream']);
    const upstream = { base_url: 'https://later.example.test' };
    t.equal(
      (await other.app.inject({ method: 'PUT', url: '/admin/upstreams/later', payload: upstream })).statusCode,
      201,
    );
    t.same(verdicts((await post(body)).body.items), ['accepted']);
  },
);

t.test('the worker of the process is told once a batch is stored, and not of one that is not', async (t) => {
  const { database } = await useIntake(t);
  const stored: number[] = [];
  const workCame = () => void database.query('select from sluice.jobs').then((rows) => stored.push(rows.length));
  const { app } = await createTestApp(t, database, { workCame });
  const send = (payload: object) => app.inject({ method: 'POST', url: '/v1/batches', payload });
  t.equal((await send({ defaults, items: [{ idempotency_key: 'k' }] })).statusCode, 202);
  t.ok((await send({ defaults, items: 'none' })).statusCode >= 400);
  await eventually('the worker is told', () => stored.length > 0);
  t.same(stored, [1]);
});

t.test('what a worker has had at its intake is not told to it again', async (t) => {
  const { database } = await useIntake(t);
  const workerId = await newWorker(database);
  let told = 0;
  const workCame = () => {
    told += 1;
  };
  const claimed: string[] = [];
  const claimer: IntakeClaimer = {
    workerId,
    reserve: () => ({
      claimed: async (jobs) => void claimed.push(...jobs.map(({ idempotencyKey }) => idempotencyKey)),
      unused: () => undefined,
      lost: () => undefined,
    }),
  };
  const { app } = await createTestApp(t, database, { claimer, workCame });
  const send = (...keys: string[]) => {
    const items = keys.map((key) => ({ idempotency_key: key }));
    return app.inject({ method: 'POST', url: '/v1/batches', payload: { defaults, items } });
  };
  t.equal((await send('a')).statusCode, 202);
  t.same([claimed, told], [['a'], 0]);
  t.equal((await send('a', 'b')).statusCode, 202);
  t.same([claimed, told], [['a'], 1], 'with a duplicate beside it, it is left to the claims');
});
