/** API keys: made, shown, deleted; what their scopes open; what is left of them in the store and in the log. */
import t, { type Test } from 'tap';
import { type Scope, scopes } from '../../src/domain/access.ts';
import { createTestApp } from '../support/app.ts';
import { createTestDatabase } from '../support/database.ts';
import type { Problem } from '../support/intake.ts';
import { tenantClient, withKey } from '../support/tenants.ts';

const adminKey = 'bootstrap-key-of-the-tests';

async function setup(t: Test) {
  const { database } = await createTestDatabase(t, { max: 4 });
  const app = await createTestApp(t, database, { adminKey });
  return { database, app, operator: withKey(app, adminKey) };
}

interface Made {
  readonly id: string;
  readonly key: string;
  readonly [member: string]: unknown;
}

t.test('a key is shown once, works, and is gone everywhere when it is deleted', async (t) => {
  const { database, app, operator } = await setup(t);
  const other = await createTestApp(t, database, { adminKey });
  const made = await operator.send<Made>('POST', '/admin/api-keys', { body: { name: 'importer', scopes: ['read'] } });
  t.equal(made.status, 201);
  t.same(Object.keys(made.body).sort(), ['created_at', 'id', 'key', 'name', 'scopes', 'tenant']);
  const { key, ...shown } = made.body;
  t.match(key, /^sluice_[A-Za-z0-9_-]{64}$/);
  t.match(shown, {
    id: /^[0-9a-f-]{36}$/,
    name: 'importer',
    tenant: 'default',
    scopes: ['read'],
    created_at: /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/,
  });
  t.match(made.headers, { location: `/admin/api-keys/${shown.id}`, 'cache-control': 'no-store' });

  t.same((await operator.send('GET', '/admin/api-keys')).body, { items: [shown], next_cursor: null });
  t.same((await operator.send('GET', `/admin/api-keys/${shown.id}`)).body, shown);
  t.equal((await withKey(app, key).send('GET', '/v1/jobs')).status, 200);
  t.equal((await withKey(other, key).send('GET', '/v1/jobs')).status, 200);

  t.match(await operator.send('DELETE', `/admin/api-keys/${shown.id}`), { status: 204, body: '' });
  for (const replica of [app, other]) {
    const refused = await withKey(replica, key).send<Problem>('GET', '/v1/jobs');
    t.match(refused, { status: 401, body: { code: 'unauthorized' } });
    t.equal(refused.headers['www-authenticate'], 'Bearer realm="sluice", error="invalid_token"');
  }
  for (const id of [shown.id, 'no-uuid', '%00']) {
    t.match(await operator.send('DELETE', `/admin/api-keys/${id}`), { status: 404, body: { code: 'not_found' } }, id);
    t.match(await operator.send('GET', `/admin/api-keys/${id}`), { status: 404, body: { code: 'not_found' } }, id);
  }
  t.same((await operator.send('GET', '/admin/api-keys')).body, { items: [], next_cursor: null });
});

t.test('what is kept of a key cannot be sent as one, and no line of the log has it', async (t) => {
  const { database, app, operator } = await setup(t);
  const { key, id } = (
    await operator.send<Made>('POST', '/admin/api-keys', { body: { name: 'n', scopes: [...scopes], tenant: 'acme' } })
  ).body;
  t.equal((await withKey(app, key).send('GET', '/admin/queues')).status, 200);
  const secret = key.slice(-43);
  const [row] = await database.query<{ text: string }>('select k::text as text from sluice.api_keys k');
  t.match(row!.text, id);
  t.notMatch(row!.text, secret);
  t.notMatch(app.logText(), secret);
  t.notMatch(app.logText(), adminKey);
  const lines = app.logLines().filter(({ msg }) => msg === 'request');
  t.match(lines, [
    { tenant: 'default', key_id: 'bootstrap', made_key_id: id, status: 201 },
    { tenant: 'acme', key_id: id, status: 200 },
  ]);

  const [{ hash } = { hash: '' }] = await database.query<{ hash: string }>(
    "select encode(k.hash, 'hex') as hash from sluice.api_keys k",
  );
  const near = [
    hash,
    `${key.slice(0, -1)}${key.endsWith('A') ? 'B' : 'A'}`,
    key.slice(0, -1),
    `${key}A`,
    key.toUpperCase(),
  ];
  // Its id with another secret: found, and refused.
  near.push(`${key.slice(0, 29)}${'A'.repeat(42)}`);
  for (const wrong of near) t.equal((await withKey(app, wrong).send('GET', '/v1/jobs')).status, 401, wrong);
  t.equal((await withKey(app, key).send('GET', '/v1/jobs')).status, 200, 'the control');
});

t.test('wishes that are not legal are refused with every fault', async (t) => {
  const { operator, database } = await setup(t);
  const good = { name: 'n', scopes: ['read'], tenant: 'acme' };
  const wrong: Array<[body: unknown, pointer: string]> = [
    [{ ...good, name: undefined }, '/name'],
    [{ ...good, name: '' }, '/name'],
    [{ ...good, name: 'x'.repeat(201) }, '/name'],
    [{ ...good, name: 'a\u0000b' }, '/name'],
    [{ ...good, name: '\ud800' }, '/name'],
    [{ ...good, name: 7 }, '/name'],
    [{ ...good, scopes: undefined }, '/scopes'],
    [{ ...good, scopes: [] }, '/scopes'],
    [{ ...good, scopes: ['write'] }, '/scopes/0'],
    [{ ...good, scopes: 'read' }, '/scopes'],
    [{ ...good, scopes: null }, '/scopes'],
    [{ ...good, tenant: 'Acme' }, '/tenant'],
    [{ ...good, tenant: '' }, '/tenant'],
    [{ ...good, tenant: 'x'.repeat(64) }, '/tenant'],
    [{ ...good, tenant: null }, '/tenant'],
    [{ ...good, expires_at: null }, '/expires_at'],
  ];
  for (const [body, pointer] of wrong) {
    const { status, body: problem } = await operator.send<Problem>('POST', '/admin/api-keys', { body });
    t.match({ status, code: problem.code }, { status: 400, code: 'invalid_request' }, JSON.stringify(body));
    t.ok(
      problem.errors.some((fault) => fault.pointer === pointer),
      `${JSON.stringify(problem.errors)} has ${pointer}`,
    );
  }
  for (const body of ['', '[]', '{', 'null']) {
    t.equal((await operator.send('POST', '/admin/api-keys', { body })).status, 400, body);
  }
  t.same(await database.query('select from sluice.api_keys'), []);
  const longest = { name: 'x'.repeat(200), scopes: ['admin', 'read', 'read'], tenant: 'x'.repeat(63) };
  const made = await operator.send<Made>('POST', '/admin/api-keys', { body: longest });
  t.match(made, { status: 201, body: { ...longest, scopes: ['read', 'admin'] } }, 'named twice is once');
});

t.test('the list has pages, newest first', async (t) => {
  const { operator } = await setup(t);
  const made: string[] = [];
  for (const name of ['a', 'b', 'c', 'd', 'e']) {
    made.unshift((await operator.send<Made>('POST', '/admin/api-keys', { body: { name, scopes: ['read'] } })).body.id);
  }
  const seen: string[] = [];
  let cursor: string | null = null;
  do {
    const from: string = cursor === null ? '' : `&cursor=${cursor}`;
    const page = await operator.send<{ items: Made[]; next_cursor: string | null }>(
      'GET',
      `/admin/api-keys?limit=2${from}`,
    );
    seen.push(...page.body.items.map(({ id }) => id));
    t.ok(page.body.items.every((item) => !('key' in item) && !('hash' in item)));
    cursor = page.body.next_cursor;
  } while (cursor !== null);
  t.same(seen, made);
});

t.test('each scope opens its own routes and no other: every route of the document', async (t) => {
  const { database, app } = await setup(t);
  const { paths } = (await app.app.inject({ url: '/openapi.json' })).json<{
    paths: Record<string, Record<string, { description?: string; security: unknown[] }>>;
  }>();
  const routes = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, { description = '', security }]) => ({
      method: method.toUpperCase() as 'GET',
      path,
      url: path.replaceAll(/\{\w+\}/g, '01a229d4-e669-74ea-9104-965b77a9264f'),
      scope: security.length === 0 ? 'open' : /Scope: `(\w+)`/.exec(description)?.[1],
    })),
  );
  const found = new Set(routes.map(({ scope }) => scope));
  t.same([...found].sort(), ['admin', 'open', 'read', 'receipts', 'submit']);
  for (const scope of scopes) {
    const its = await tenantClient({ database, app }, 'acme', [scope]);
    const others = await tenantClient({ database, app }, 'acme', scopes.filter((each) => each !== scope) as Scope[]);
    for (const route of routes.filter((each) => each.scope === scope)) {
      // Without a body, and of things that are not there: whatever it answers, it is not for want of a scope.
      const opened = await its.send<Problem>(route.method, route.url);
      t.notOk([401, 403, 500].includes(opened.status), `${route.method} ${route.path} with ${scope}: ${opened.status}`);
      const closed = await others.send<Problem>(route.method, route.url);
      t.match(closed, { status: 403, body: { code: 'forbidden' } }, `${route.method} ${route.path} without ${scope}`);
      t.equal(
        closed.headers['www-authenticate'],
        `Bearer realm="sluice", error="insufficient_scope", scope="${scope}"`,
      );
    }
  }
  const scopeOf = (method: string, path: string) =>
    routes.find((each) => each.method === method && each.path === path)?.scope;
  t.equal(scopeOf('POST', '/v1/batches'), 'submit');
  t.equal(scopeOf('GET', '/v1/batches/{batch_id}'), 'read');
  t.equal(scopeOf('PUT', '/v1/receipts'), 'receipts');
  for (const { method, path, scope } of routes) {
    if (path.startsWith('/admin/')) t.equal(scope, 'admin', `${method} ${path}`);
    else if (!['/', '/livez', '/readyz'].includes(path)) t.not(scope, 'open', `${method} ${path}`);
  }
});

t.test('without a bootstrap key: no key is the open default tenant, a known key is its own', async (t) => {
  const { database } = await createTestDatabase(t);
  const open = await createTestApp(t, database, { adminKey: undefined });
  t.equal((await open.app.inject({ url: '/admin/queues' })).statusCode, 200, 'open');
  const made = await open.app.inject({
    method: 'POST',
    url: '/admin/api-keys',
    headers: { 'content-type': 'application/json' },
    payload: { name: 'n', scopes: ['read'], tenant: 'acme' },
  });
  t.equal(made.statusCode, 201);
  const client = withKey(open, made.json<Made>().key);
  t.equal((await client.send('GET', '/v1/jobs')).status, 200);
  t.equal((await client.send('GET', '/admin/queues')).status, 403, 'a key has what it lists, open or not');
  const another = `${client.key.slice(0, -1)}${client.key.endsWith('-') ? '_' : '-'}`;
  t.equal((await withKey(open, another).send('GET', '/v1/jobs')).status, 401);
});
