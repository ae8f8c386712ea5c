import t from 'tap';
import { createTestApp, unreachableDatabase } from '../support/app.ts';
import { createTestDatabase } from '../support/database.ts';

t.test('one line per request, from an allow-list', async (t) => {
  const { database } = await createTestDatabase(t);
  const { app, logLines } = await createTestApp(t, database);
  const response = await app.inject({ url: '/admin/queues/default' });
  t.equal(response.statusCode, 200);
  const lines = logLines().filter((line) => line.msg === 'request');
  t.equal(lines.length, 1);
  const { level, time, pid, hostname, ...line } = lines[0]!;
  t.match(line, { request_id: /^[0-9a-f-]{36}$/, duration_ms: Number });
  t.same(Object.keys(line).sort(), ['duration_ms', 'method', 'msg', 'request_id', 'route', 'status', 'tenant']);
  t.match(line, { method: 'GET', route: '/admin/queues/:name', status: 200, tenant: 'default' });
  await app.inject({ url: '/admin/queues/none' });
  t.match(logLines().at(-1), { status: 404, code: 'not_found' });
  await app.inject({ url: '/livez' });
  t.match(logLines().at(-1), { route: '/livez', level: 20 }, 'health checks do not fill the log');
});

// pinojs/pino#2478 and kin: redaction by a list of names always misses one; nothing that a client wrote is logged at all.
t.test('nothing that a client or an operator wrote reaches the log or a refusal', async (t) => {
  const secret = 'SECRET-p4ss';
  const headers = {
    authorization: `Bearer ${secret}`,
    COOKIE: `a=${secret}`,
    'x-api-key': secret,
    'private-token': secret,
    'idempotency-key': secret,
    'content-type': 'application/json',
  };
  const body = {
    headers: { authorization: secret, 'x-a': 17 },
    base_url: `https://u:${secret}@h.test/`,
    a: { b: { token: secret } },
  };
  const { database } = await createTestDatabase(t);
  for (const [name, each] of [
    ['with a database', database],
    ['without', unreachableDatabase(t)],
  ] as const) {
    const { app, logText } = await createTestApp(t, each);
    const answers = [
      await app.inject({ method: 'PUT', url: '/admin/upstreams/u', headers, payload: JSON.stringify(body) }),
      await app.inject({ method: 'PUT', url: '/admin/upstreams/u', headers, payload: `{"${secret}` }),
      await app.inject({
        method: 'PUT',
        url: '/admin/upstreams/u',
        headers,
        payload: JSON.stringify({ base_url: `https://u:${secret}@h.test/` }),
      }),
      await app.inject({ url: `/${secret}`, headers }),
      await app.inject({ url: `/admin/queues/x?cursor=${secret}`, headers }),
      await app.inject({ url: `/admin/queues?cursor=${secret}`, headers }),
      await app.inject({ url: `/admin/queues/${secret.toLowerCase()}`, headers }),
    ];
    for (const answer of answers) {
      t.ok(answer.statusCode >= 400, `${name}: refused`);
      t.notMatch(answer.body, secret, name);
    }
    t.not(logText(), '');
    t.notMatch(logText().toLowerCase(), secret.toLowerCase(), name);
  }
});
