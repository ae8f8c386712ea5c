import t, { type Test } from 'tap';
import { createTestApp, unreachableDatabase } from '../support/app.ts';

const adminKey = 'k-'.padEnd(40, '0123456789');
const setup = (t: Test, key: string | undefined) => createTestApp(t, unreachableDatabase(t), { adminKey: key });

t.test('with a key configured, only the open paths answer without one', async (t) => {
  const { app } = await setup(t, adminKey);
  for (const url of ['/livez', '/docs', '/docs/static/index.css', '/docs/json', '/openapi.json']) {
    t.equal((await app.inject({ url })).statusCode, 200, url);
  }
  t.equal((await app.inject({ url: '/readyz' })).json().code, 'not_ready');
  const listed = Object.entries((await app.inject({ url: '/openapi.json' })).json().paths as Record<string, object>);
  let guarded = 0;
  for (const [path, methods] of listed) {
    if (['/', '/livez', '/readyz'].includes(path)) continue;
    for (const method of Object.keys(methods)) {
      guarded += 1;
      const response = await app.inject({
        method: method.toUpperCase() as 'GET',
        url: path.replaceAll(/\{\w+\}/g, 'x'),
      });
      t.equal(response.statusCode, 401, `${method} ${path}`);
      t.equal(response.headers['www-authenticate'], 'Bearer realm="sluice"');
      t.equal(response.json().code, 'unauthorized');
    }
  }
  t.ok(guarded > 10);
  t.equal((await app.inject({ url: '/v1/no-such-path' })).statusCode, 401, 'paths cannot be tried out');
});

t.test('the key opens, and nothing that is only like it', async (t) => {
  const { app } = await setup(t, adminKey);
  const status = async (authorization: string) =>
    (await app.inject({ url: '/admin/queues', headers: { authorization } })).statusCode;
  // 503: it went through to the database that is not there.
  for (const good of [`Bearer ${adminKey}`, `bearer ${adminKey}`, `BEARER   ${adminKey} `])
    t.equal(await status(good), 503, good);
  const bad = [
    '',
    `sluice_${'A'.repeat(63)}`,
    `Bearer sluice_${'A'.repeat(63)}`,
    `Bearer sluice_${'A'.repeat(65)}`,
    `Bearer sluice_${'A'.repeat(63)}=`,
    `Bearer sluice_${'A'.repeat(63)}\u00e9`,
    `Bearer SLUICE_${'A'.repeat(64)}`,
    `Bearer ${' '.repeat(8000)}x${' '.repeat(4000)}y`,
    'Bearer',
    'Bearer ',
    adminKey,
    `Basic ${adminKey}`,
    `Bearer ${adminKey}x`,
    `Bearer ${adminKey.slice(0, -1)}`,
    `Bearer ${adminKey.toUpperCase()}`,
    `Bearer x ${adminKey}`,
    `Bearer ${adminKey} x`,
    `Bearer${adminKey}`,
    'Bearer undefined',
  ];
  for (const each of bad) t.equal(await status(each), 401, each);
  t.equal(
    await status(`Bearer sluice_${'A'.repeat(64)}`),
    503,
    'it may be a stored key: not refused while nobody can look',
  );
  t.equal((await app.inject({ url: `/admin/queues?key=${adminKey}` })).statusCode, 401, 'not in the query');
});

t.test('the key is checked before the body is read', async (t) => {
  const { app } = await setup(t, adminKey);
  const response = await app.inject({
    method: 'PUT',
    url: '/admin/queues/a',
    payload: '{ not json',
    headers: { 'content-type': 'application/json' },
  });
  t.equal(response.statusCode, 401);
});

t.test('the key never reaches an answer or the log', async (t) => {
  const { app, logText } = await setup(t, adminKey);
  for (const authorization of [`Bearer ${adminKey}`, `Bearer ${adminKey}-wrong`]) {
    for (const url of ['/admin/queues', '/nothing', '/admin/queues?x=1', '/readyz']) {
      t.notMatch((await app.inject({ url, headers: { authorization } })).body, adminKey);
    }
  }
  t.notMatch(logText(), adminKey);
});

t.test('a key that cannot be looked up is no wrong key: 503, and when to come back', async (t) => {
  for (const key of [adminKey, undefined]) {
    const { app, logText } = await setup(t, key);
    const text = `sluice_${'aB3-_'.repeat(12)}aB3-`;
    for (const url of ['/v1/jobs', '/no-such-path']) {
      const response = await app.inject({ url, headers: { authorization: `Bearer ${text}` } });
      t.match(response, { statusCode: 503, headers: { 'retry-after': /^[1-9]/ } }, url);
      t.equal(response.json().code, 'database_unavailable');
    }
    t.equal((await app.inject({ url: '/livez', headers: { authorization: `Bearer ${text}` } })).statusCode, 200);
    t.notMatch(logText(), text);
  }
});

t.test('without a bootstrap key, a key that is presented must be known all the same', async (t) => {
  const { app } = await setup(t, undefined);
  const answer = (authorization: string) => app.inject({ url: '/admin/queues', headers: { authorization } });
  for (const wrong of ['Bearer', 'Bearer ', 'bearer x', 'Bearer undefined', `Bearer ${adminKey}`]) {
    const response = await answer(wrong);
    t.equal(response.statusCode, 401, wrong);
    t.equal(response.headers['www-authenticate'], 'Bearer realm="sluice", error="invalid_token"');
    t.match(response.json().detail, /not known.*without one/);
  }
  // Of another scheme it is no key: as if it were not there.
  for (const other of ['', 'Basic eDp5', 'Bearerx y']) t.equal((await answer(other)).statusCode, 503, other);
});

t.test('without a key everything is open to programs, and pages of other sites change nothing', async (t) => {
  const { app } = await setup(t, undefined);
  const post = (headers: Record<string, string>) =>
    app.inject({ method: 'POST', url: '/admin/queues/default/pause', headers });
  t.equal((await app.inject({ url: '/admin/queues' })).statusCode, 503);
  t.equal((await post({})).statusCode, 503);
  t.equal((await post({ 'sec-fetch-site': 'same-origin' })).statusCode, 503);
  t.equal((await post({ 'sec-fetch-site': 'none' })).statusCode, 503);
  const crossSite = await post({ 'sec-fetch-site': 'cross-site' });
  t.equal(crossSite.statusCode, 403);
  t.equal(crossSite.json().code, 'forbidden');
  t.equal((await app.inject({ url: '/livez', headers: { 'sec-fetch-site': 'cross-site' } })).statusCode, 200);
});
