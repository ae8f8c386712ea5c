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
    if (path === '/livez' || path === '/readyz') continue;
    for (const method of Object.keys(methods)) {
      guarded += 1;
      const response = await app.inject({
        method: method.toUpperCase() as 'GET',
        url: path.replaceAll(/\{\w+\}/g, 'x'),
      });
      t.equal(response.statusCode, 401, `${method} ${path}`);
      t.equal(response.headers['www-authenticate'], 'Bearer');
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
