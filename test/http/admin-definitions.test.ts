import t, { type Test } from 'tap';
import { createTestApp } from '../support/app.ts';
import { createTestDatabase } from '../support/database.ts';
import { createJob, createLane } from '../support/job-rows.ts';

const mail = { base_url: 'https://mail.example.test' };
const instant = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

async function setup(t: Test) {
  const { database } = await createTestDatabase(t);
  const { app } = await createTestApp(t, database);
  const call = async (method: 'GET' | 'PUT' | 'POST' | 'DELETE', url: string, payload?: unknown) => {
    const response = await app.inject({
      method,
      url,
      ...(payload === undefined
        ? {}
        : { payload: JSON.stringify(payload), headers: { 'content-type': 'application/json' } }),
    });
    return {
      status: response.statusCode,
      body: response.body === '' ? null : response.json(),
      headers: response.headers,
    };
  };
  return { app, call, database };
}

t.test('PUT answers 201, then 200, with the stored definition; GET and the list show the same', async (t) => {
  const { call } = await setup(t);
  const expected: [string, string, object, object][] = [
    [
      '/admin/upstreams',
      'mail',
      { ...mail, headers: { authorization: `Bearer $${'{API_KEY}'}` } },
      {
        idempotency_header: 'Idempotency-Key',
        timeout_ms: 15000,
        retry: { max_attempts: 5 },
        paused: false,
        cooldowns: [],
      },
    ],
    [
      '/admin/rate-limits',
      'per-account',
      { limit: 5, by_partition: true, upstreams: ['mail'] },
      { per: 1, algorithm: 'sliding_window', slack_ms: 25, max_in_flight: null, scope: 'fleet', queues: [] },
    ],
    ['/admin/queues', 'sms', { ordering: 'fifo' }, { paused: false }],
  ];
  for (const [path, name, definition, defaults] of expected) {
    const created = await call('PUT', `${path}/${name}`, definition);
    t.equal(created.status, 201, path);
    t.match(created.body, { name, ...definition, ...defaults, revision: 0, updated_at: instant });
    t.equal((await call('PUT', `${path}/${name}`, definition)).status, 200);
    const read = await call('GET', `${path}/${name}`);
    t.equal(read.status, 200);
    t.match(read.body, { name, ...definition, ...defaults });
    const list = await call('GET', path);
    t.same(
      list.body.items.filter((item: { name: string }) => item.name === name),
      [read.body],
    );
    t.equal(list.body.next_cursor, null);
  }
});

t.test('what was read can be changed and put back', async (t) => {
  const { call } = await setup(t);
  await call('PUT', '/admin/upstreams/mail', mail);
  const { body } = await call('GET', '/admin/upstreams/mail');
  const changed = await call('PUT', '/admin/upstreams/mail', { ...body, timeout_ms: 1234 });
  t.equal(changed.status, 200);
  t.match(changed.body, { ...body, timeout_ms: 1234, updated_at: instant });
  const other = await call('PUT', '/admin/upstreams/other', body);
  t.equal(other.status, 422);
  t.match(other.body, { code: 'invalid_definition', errors: [{ pointer: '/name', code: 'invalid' }] });
});

t.test('a definition with faults is a 422 that lists all of them', async (t) => {
  const { call } = await setup(t);
  const refusals: [string, unknown, string[]][] = [
    [
      '/admin/rate-limits/l',
      { limit: -1, per: 0, queues: ['default'] },
      ['/limit invalid_limit', '/per invalid_period'],
    ],
    ['/admin/rate-limits/l', { limit: 1, per: null, queues: ['default'] }, ['/per invalid_period']],
    ['/admin/rate-limits/l', { limit: 1, per: 1e12, queues: ['default'] }, ['/per invalid_period']],
    ['/admin/rate-limits/l', { limit: 1, queues: ['defualt'] }, ['/queues/0 unknown_queue']],
    ['/admin/rate-limits/l', { limit: 1, upstreams: ['gone'] }, ['/upstreams/0 unknown_upstream']],
    ['/admin/rate-limits/l', { limit: 1 }, ['undefined limit_covers_nothing']],
    ['/admin/upstreams/u', { base_url: 'http://127.0.0.1:1' }, ['/base_url base_url_private']],
    ['/admin/upstreams/u', { ...mail, headers: { a: `$${'{PATH}'}` } }, ['/headers/a secret_not_allowed']],
    ['/admin/upstreams/u', { ...mail, timeout: 1 }, ['/timeout unknown_field']],
    ['/admin/upstreams/u', {}, ['/base_url required']],
    ['/admin/queues/Bad', {}, ['undefined invalid_name']],
    [`/admin/queues/${'x'.repeat(64)}`, {}, ['undefined invalid_name']],
    ['/admin/queues/a%2Fb', {}, ['undefined invalid_name']],
    ['/admin/queues/a%00', {}, ['undefined invalid_name']],
    ['/admin/queues/q', [], ['undefined invalid']],
    ['/admin/queues/q', null, ['undefined invalid']],
    ['/admin/queues/q', 'x', ['undefined invalid']],
  ];
  for (const [url, payload, faults] of refusals) {
    const { status, body, headers } = await call('PUT', url, payload);
    t.equal(status, 422, url);
    t.equal(headers['content-type'], 'application/problem+json');
    t.equal(body.code, 'invalid_definition');
    t.same(
      body.errors.map((fault: { pointer?: string; code: string }) => `${fault.pointer} ${fault.code}`),
      faults,
      url,
    );
  }
  t.equal((await call('PUT', '/admin/queues/q')).status, 422, 'no body at all');
  t.same((await call('GET', '/admin/rate-limits')).body.items, []);
});

t.test('text that PostgreSQL cannot keep is a fault, never a 500', async (t) => {
  const { call } = await setup(t);
  for (const text of ['\u0000', '\ud800', '\udfff\ud800', '\u0001']) {
    for (const definition of [
      { base_url: `https://a.test/${text}` },
      { ...mail, headers: { a: text } },
      { ...mail, headers: { [`a${text}`]: 'v' } },
      { ...mail, idempotency_header: text },
      { ...mail, reconcile: { path: `/${text}` } },
      { ...mail, on_unknown: text },
      { ...mail, [text]: 1 },
    ]) {
      t.equal((await call('PUT', '/admin/upstreams/u', definition)).status, 422, JSON.stringify(definition));
    }
    t.equal((await call('PUT', '/admin/rate-limits/l', { limit: 1, upstreams: [text] })).status, 422);
    const name = encodeURIComponent(text.replaceAll(/\p{Surrogate}/gu, '\ufffd'));
    t.equal((await call('PUT', `/admin/queues/${name}`, {})).status, 422);
    t.equal((await call('GET', `/admin/queues/${name}`)).status, 404);
    t.equal((await call('DELETE', `/admin/queues/${name}`)).status, 404);
    t.equal(
      (await call('GET', `/admin/queues?cursor=${Buffer.from(JSON.stringify(text)).toString('base64url')}`)).status <
        500,
      true,
    );
  }
});

t.test('a text that no check has caught, but PostgreSQL refuses, is a 400', async (t) => {
  const { database } = await createTestDatabase(t);
  for (const question of ['select $1::text', `select replace('"x"', 'x', '\\' || 'u0000')::jsonb ->> 0, $1 = ''`]) {
    const text = question.includes('jsonb') ? '' : '\u0000';
    const careless = { ...database, query: <R>() => database.query<R>(question, [text]) };
    const { app } = await createTestApp(t, careless);
    const response = await app.inject({ url: '/admin/queues' });
    t.equal(response.statusCode, 400);
    t.equal(response.json().code, 'invalid_request');
  }
});

t.test('what is not there is a 404', async (t) => {
  const { call } = await setup(t);
  for (const path of [
    '/admin/upstreams/x',
    '/admin/rate-limits/x',
    '/admin/queues/x',
    '/admin/queues/NOT%20A%20NAME',
  ]) {
    for (const method of ['GET', 'DELETE'] as const) {
      const { status, body } = await call(method, path);
      t.equal(status, 404, `${method} ${path}`);
      t.equal(body.code, 'not_found');
    }
  }
  for (const path of ['/admin/upstreams/x/pause', '/admin/queues/x/resume'])
    t.equal((await call('POST', path)).status, 404);
  t.equal((await call('POST', '/admin/rate-limits/x/pause')).status, 404, 'a limit is paused by its window');
});

t.test('DELETE: 204, and 409 while jobs depend on it', async (t) => {
  const { call, database } = await setup(t);
  await call('PUT', '/admin/upstreams/mail', mail);
  await call('PUT', '/admin/rate-limits/l', { limit: 1, upstreams: ['mail'] });
  const job = await createJob(database, await createLane(database, 'default', 'mail'), 'scheduled');
  for (const path of ['/admin/upstreams/mail', '/admin/queues/default']) {
    const refused = await call('DELETE', path);
    t.equal(refused.status, 409, path);
    t.equal(refused.body.code, 'in_use');
  }
  const gone = await call('DELETE', '/admin/rate-limits/l');
  t.equal(gone.status, 204);
  t.equal(gone.body, null);
  await database.query('delete from sluice.parked_jobs where job_id = $1', [job]);
  t.equal((await call('DELETE', '/admin/upstreams/mail')).status, 204);
  t.equal((await call('GET', '/admin/upstreams/mail')).status, 404);
});

t.test('pause and resume answer with the definition; an empty JSON body is none', async (t) => {
  const { app, call } = await setup(t);
  await call('PUT', '/admin/upstreams/mail', mail);
  t.match((await call('POST', '/admin/upstreams/mail/pause')).body, { name: 'mail', paused: true, cooldowns: [] });
  t.match((await call('POST', '/admin/upstreams/mail/resume')).body, { name: 'mail', paused: false });
  const paused = await app.inject({
    method: 'POST',
    url: '/admin/queues/default/pause',
    payload: '',
    headers: { 'content-type': 'application/json' },
  });
  t.equal(paused.statusCode, 200);
  t.match((await call('GET', '/admin/queues/default')).body, { paused: true });
});

t.test('lists come in pages, and a cursor of somebody else is a 400', async (t) => {
  const { call } = await setup(t);
  for (const name of ['a', 'b', 'c']) await call('PUT', `/admin/queues/${name}`, {});
  const names: string[] = [];
  let cursor: string | null = '';
  while (cursor !== null) {
    const { body } = await call('GET', `/admin/queues?limit=2${cursor === '' ? '' : `&cursor=${cursor}`}`);
    names.push(...body.items.map((item: { name: string }) => item.name));
    cursor = body.next_cursor;
  }
  t.same(names, ['a', 'b', 'c', 'default']);
  for (const bad of ['x', '%00', Buffer.from('5').toString('base64url'), Buffer.from('{}').toString('base64url'), '']) {
    const { status, body } = await call('GET', `/admin/queues?cursor=${bad}`);
    t.equal(status, 400, bad);
    t.match(body, { code: 'invalid_request', errors: [{ pointer: '/query/cursor' }] });
  }
});

t.test('an upstream shows its cooldowns: cooling, probing, and not what is over', async (t) => {
  const { call, database } = await setup(t);
  await call('PUT', '/admin/upstreams/mail', mail);
  await call('PUT', '/admin/upstreams/quiet', mail);
  const job = '0199b6a0-0000-7000-8000-000000000001';
  await database.query(
    `insert into sluice.cooldowns (kind, name, partition_key, until, ramp, reason, status, header, job_id, at) values
       ('upstream', 'mail', '',       clock_timestamp() + interval '1 hour', null, 'retry_after', 429, '3600', $1, clock_timestamp()),
       ('upstream', 'mail', 'acct_1', clock_timestamp() - interval '1 second', 2, 'retry_after', 503, null, $1, clock_timestamp()),
       ('upstream', 'mail', 'acct_2', clock_timestamp() - interval '1 second', null, 'retry_after', 429, '1', $1, clock_timestamp()),
       ('limit',    'mail', '',       clock_timestamp() + interval '1 hour', null, 'operator', null, null, null, clock_timestamp())`,
    [job],
  );
  const { body } = await call('GET', '/admin/upstreams/mail');
  t.match(body.cooldowns, [
    {
      partition_key: null,
      state: 'cooling',
      until: instant,
      reason: 'retry_after',
      status: 429,
      header: '3600',
      job_id: job,
      at: instant,
    },
    { partition_key: 'acct_1', state: 'probing', until: instant, status: 503, header: null },
  ]);
  t.equal(body.cooldowns.length, 2);
  const list = (await call('GET', '/admin/upstreams')).body.items as { name: string; cooldowns: unknown[] }[];
  t.same(
    list.map(({ name, cooldowns }) => [name, cooldowns.length]),
    [
      ['mail', 2],
      ['quiet', 0],
    ],
  );
});

t.test('a secret is stored and shown as its name, never as its value', async (t) => {
  const { call, database } = await setup(t);
  process.env.API_KEY = 'the-value-of-the-secret';
  t.teardown(() => {
    delete process.env.API_KEY;
  });
  const authorization = `Bearer $${'{API_KEY}'}`;
  const { body } = await call('PUT', '/admin/upstreams/mail', { ...mail, headers: { authorization } });
  t.equal(body.headers.authorization, authorization);
  const [row] = await database.query<{ text: string }>('select definition::text as text from sluice.upstreams');
  t.match(row?.text, authorization);
  t.notMatch(row?.text, 'the-value-of');
});

t.test('the queue that items without a queue go to cannot be deleted', async (t) => {
  const { call, database } = await setup(t);
  const refused = await call('DELETE', '/admin/queues/default');
  t.equal(refused.status, 409);
  t.match(refused.body, { code: 'in_use', detail: /the queue "default" stays/ });
  t.equal((await call('GET', '/admin/queues/default')).status, 200);
  await database.query(`delete from sluice.queues where name = 'default'`);
  t.equal((await call('DELETE', '/admin/queues/default')).status, 409, 'also where it is missing');
});
