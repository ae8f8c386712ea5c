import { connect } from 'node:net';
import Fastify, { type FastifyInstance } from 'fastify';
import t, { type Test } from 'tap';
import { z } from 'zod';
import { addAuth } from '../../src/http/auth.ts';
import { problems } from '../../src/http/problem-details.ts';
import { refuseUnknownParameters, requestValidator } from '../../src/http/request-validation.ts';
import type { Database } from '../../src/postgres/database.ts';
import { createTestApp, unreachableDatabase } from '../support/app.ts';
import { eventually } from '../support/eventually.ts';

const setup = async (t: Test, overrides = {}) => createTestApp(t, unreachableDatabase(t), overrides);

/** Everything that a refusal must be, whatever refused. */
function isProblem(
  t: Test,
  response: { statusCode: number; headers: Record<string, unknown>; body: string },
  status: number,
  code: string,
): void {
  t.equal(response.statusCode, status);
  t.equal(response.headers['content-type'], 'application/problem+json');
  const problem = JSON.parse(response.body);
  t.match(problem, { type: `urn:sluice:problem:${code}`, status, code, title: String, detail: String, errors: Array });
  t.match(problem.request_id, /^[0-9a-f-]{36}$/);
  t.notMatch(response.body, /at .*\.(ts|js):\d+/, 'no stack');
}

t.test('paths and methods that do not exist', async (t) => {
  const { app } = await setup(t);
  isProblem(t, await app.inject({ url: '/nothing' }), 404, 'not_found');
  isProblem(t, await app.inject({ url: '/admin/queues/a/b' }), 404, 'not_found');
  const wrong = await app.inject({ method: 'PATCH', url: '/admin/queues/a?x=1' });
  isProblem(t, wrong, 405, 'method_not_allowed');
  t.equal(wrong.headers.allow, 'DELETE, GET, HEAD, PUT');
  isProblem(t, await app.inject({ method: 'POST', url: '/livez' }), 405, 'method_not_allowed');
  isProblem(t, await app.inject({ url: '/%zz' }), 400, 'invalid_request');
  isProblem(t, await app.inject({ url: `/admin/queues/${'x'.repeat(5000)}` }), 404, 'not_found');
});

t.test('query parameters that are not listed, or not of their kind', async (t) => {
  const { app } = await setup(t);
  const pointerOf = async (url: string) => {
    const response = await app.inject({ url });
    isProblem(t, response, 400, 'invalid_request');
    return response.json().errors.map((fault: { pointer: string; code: string }) => `${fault.pointer} ${fault.code}`);
  };
  t.same(await pointerOf('/livez?a=1'), ['/query/a unknown_field']);
  t.same(await pointerOf('/openapi.json?a=1'), ['/query/a unknown_field']);
  t.same(await pointerOf('/admin/queues?limt=5&x~/y=1'), ['/query/limt unknown_field', '/query/x~0~1y unknown_field']);
  // colinhacks/zod#5501: a coerced empty text is 0, and 1e2 is a hundred.
  for (const limit of ['', '0', '1001', '-1', '1.5', '1e2', 'NaN', '0x10', '%20', '9'.repeat(400)]) {
    t.same(await pointerOf(`/admin/queues?limit=${limit}`), ['/query/limit invalid'], limit);
  }
  t.same(await pointerOf('/admin/queues?limit=1&limit=2'), ['/query/limit invalid'], 'twice');
});

t.test('bodies that cannot be read', async (t) => {
  const { app } = await setup(t);
  const put = (payload: string | Buffer, type: string | undefined) =>
    app.inject({
      method: 'PUT',
      url: '/admin/queues/a',
      payload,
      headers: type === undefined ? {} : { 'content-type': type },
    });
  isProblem(t, await put('{', 'application/json'), 400, 'malformed_json');
  isProblem(t, await put('{"a":1}x', 'application/json; charset=utf-8'), 400, 'malformed_json');
  for (const type of [
    'text/plain',
    'application/x-www-form-urlencoded',
    'multipart/form-data; boundary=x',
    'nonsense',
    'application/xml',
    'application/json; charset=utf-16',
    'application/json;charset="ISO-8859-1"',
  ]) {
    isProblem(t, await put('a=1', type), 415, 'unsupported_media_type');
  }
  for (const charset of ['UTF-8', '"utf-8"', 'us-ascii']) {
    isProblem(t, await put('{', `application/json; charset=${charset}`), 400, 'malformed_json');
  }
  const latin = { 'content-type': 'application/json; charset=latin1' };
  isProblem(
    t,
    await app.inject({ method: 'POST', url: '/v1/batches', payload: '{}', headers: latin }),
    415,
    'unsupported_media_type',
  );
  const lines = { 'content-type': 'application/x-ndjson; charset=utf-16le' };
  isProblem(
    t,
    await app.inject({ method: 'POST', url: '/v1/batches', payload: '{}', headers: lines }),
    415,
    'unsupported_media_type',
  );
  // fastify/fastify#1426: a member that would reach a prototype.
  isProblem(t, await put('{"__proto__":{"isAdmin":true}}', 'application/json'), 400, 'malformed_json');
  isProblem(t, await put('{"constructor":{"prototype":{"isAdmin":true}}}', 'application/json'), 400, 'malformed_json');
  t.equal(({} as { isAdmin?: boolean }).isAdmin, undefined);
  isProblem(t, await put('['.repeat(200_000), 'application/json'), 400, 'malformed_json');
  const nested = await put(`${'['.repeat(200_000)}${']'.repeat(200_000)}`, 'application/json');
  t.ok(nested.statusCode < 600 && nested.statusCode !== 500, 'deep nesting ends no process and is no fault of ours');
});

t.test('PostgreSQL away is a 503 with Retry-After', async (t) => {
  const { app, logLines } = await setup(t);
  const response = await app.inject({ url: '/admin/queues' });
  isProblem(t, response, 503, 'database_unavailable');
  t.match(response.headers['retry-after'], /^[1-9]\d*$/);
  t.notMatch(response.body, /ECONNREFUSED|127\.0\.0\.1/, 'no inner error');
  t.match(logLines().at(-1), { msg: 'request', status: 503, code: 'database_unavailable' });
});

t.test('what nobody foresaw is a 500 without its reason, and the log has the reason under the same id', async (t) => {
  const readiness = () => {
    throw new Error('the inner reason');
  };
  const { app, logLines } = await setup(t, { readiness });
  const response = await app.inject({ url: '/readyz' });
  isProblem(t, response, 500, 'internal_error');
  t.notMatch(response.body, 'inner reason');
  const line = logLines().find((each) => each.msg === 'a request failed');
  t.match(line, { request_id: response.json().request_id, err: { message: 'the inner reason', stack: /readiness/ } });
});

t.test('a thrown value that is no error is a 500 too', async (t) => {
  const readiness = () => {
    throw null as unknown as Error;
  };
  const { app } = await setup(t, { readiness });
  const response = await app.inject({ url: '/readyz' });
  t.equal(response.statusCode, 500);
  t.notMatch(response.body, 'at ');
});

t.test('a route cannot be registered without a scope, or with parameters that are not strict', async (t) => {
  const bare = (watch: (app: FastifyInstance) => void) => {
    const app = Fastify();
    t.teardown(() => app.close());
    app.setValidatorCompiler(requestValidator);
    watch(app);
    return (options: object) => app.get('/x', options, async () => 'x');
  };
  const withAuth = bare((app) => addAuth(app, { adminKey: undefined, identify: async () => null }));
  t.throws(() => withAuth({}), /names no scope/);
  t.doesNotThrow(() => withAuth({ config: { scope: 'read' } }));
  const withStrictness = bare((app) => refuseUnknownParameters(app));
  t.throws(() => withStrictness({ schema: { querystring: z.object({}) } }), /strict object/);
  t.throws(() => withStrictness({ schema: { querystring: z.record(z.string(), z.string()) } }), /strict object/);
  t.doesNotThrow(() => withStrictness({ schema: { querystring: z.strictObject({ a: z.string() }) } }));
});

t.test('the table of problems agrees with itself', async (t) => {
  for (const [code, { status, title }] of Object.entries(problems)) {
    t.ok(status >= 400 && status < 600, code);
    t.not(title, '', code);
  }
});

t.test('the body of a request: at the limit, above it, and far above it', async (t) => {
  const { app } = await setup(t);
  const address = await app.listen({ port: 0, host: '127.0.0.1' });
  const limit = 16 * 1_048_576;
  const body = (bytes: number) => `{"a":"${'x'.repeat(bytes - 8)}"}`;
  const put = (payload: string) =>
    fetch(`${address}/admin/queues/a`, {
      method: 'PUT',
      body: payload,
      headers: { 'content-type': 'application/json' },
    });

  t.equal((await put(body(limit))).status, 503, 'read whole: it fails only at the database that is not there');
  for (let i = 0; i < 5; i++) {
    const refused = await put(body(limit + 1));
    t.equal(refused.status, 413);
    t.equal(refused.headers.get('content-type'), 'application/problem+json');
    t.match(await refused.json(), { code: 'payload_too_large', detail: /16777216 bytes \(16 MiB\)/ });
  }
});

// valyala/fasthttp#1348, rybbit-io/rybbit#582: a peer that is still writing must see the 413, or a clean end.
t.test('a body without a length that goes on and on is refused without being kept', async (t) => {
  const { app } = await setup(t);
  await app.listen({ port: 0, host: '127.0.0.1' });
  const { port } = app.server.address() as { port: number };
  const before = process.memoryUsage().rss;
  const answer = await new Promise<string>((resolve) => {
    const socket = connect(port, '127.0.0.1');
    let text = '';
    socket.on('data', (chunk) => {
      text += chunk.toString();
    });
    socket.on('error', () => undefined);
    socket.on('close', () => resolve(text));
    socket.write(
      'PUT /admin/queues/a HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n',
    );
    const chunk = Buffer.concat([Buffer.from('100000\r\n'), Buffer.alloc(1_048_576, 'x'), Buffer.from('\r\n')]);
    const write = () => {
      while (!socket.destroyed && socket.writable) if (!socket.write(chunk)) return;
    };
    socket.on('drain', write);
    write();
  });
  t.ok(answer === '' || answer.startsWith('HTTP/1.1 413 '), answer.slice(0, 100));
  t.ok(process.memoryUsage().rss - before < 150 * 1_048_576, 'memory stays bounded');
  t.equal((await app.inject({ url: '/livez' })).statusCode, 200, 'the next request is served');
});

t.test('what is not HTTP is answered as problem+json and closed', async (t) => {
  const { app } = await setup(t);
  await app.listen({ port: 0, host: '127.0.0.1' });
  const { port } = app.server.address() as { port: number };
  const ask = (text: string) =>
    new Promise<string>((resolve) => {
      const socket = connect(port, '127.0.0.1', () => socket.write(text));
      let answer = '';
      socket.on('data', (chunk) => {
        answer += chunk.toString();
      });
      socket.on('error', () => undefined);
      socket.on('close', () => resolve(answer));
    });
  for (const text of ['nonsense\r\n\r\n', `GET / HTTP/1.1\r\nHost: x\r\nX-Long: ${'x'.repeat(100_000)}\r\n\r\n`]) {
    const answer = await ask(text);
    t.match(answer, /^HTTP\/1\.1 400 Bad Request\r\n/);
    t.match(answer, 'Content-Type: application/problem+json');
    t.match(JSON.parse(answer.split('\r\n\r\n')[1]!), { code: 'invalid_request', status: 400 });
  }
});

t.test('while it closes, a request on an open connection is refused as problem+json', async (t) => {
  let release = () => {};
  let asked = () => {};
  const isAsked = new Promise<void>((resolve) => {
    asked = resolve;
  });
  // A definition list that takes as long as the test wants.
  const database: Database = {
    ...unreachableDatabase(t),
    query: () => {
      asked();
      return new Promise((resolve) => {
        release = () => resolve([]);
      });
    },
  };
  const { app } = await createTestApp(t, database);
  let requests = 0;
  app.server.on('request', () => {
    requests += 1;
  });
  await app.listen({ port: 0, host: '127.0.0.1' });
  const { port } = app.server.address() as { port: number };
  const socket = connect(port, '127.0.0.1');
  let text = '';
  socket.on('data', (chunk) => {
    text += chunk.toString();
  });
  const closed = new Promise((resolve) => socket.on('close', resolve));
  // The first request is being served when the close begins, the second comes after that.
  socket.write('GET /admin/queues HTTP/1.1\r\nHost: x\r\n\r\n');
  await isAsked;
  const closing = app.close();
  await eventually('the server takes no connections', () => !app.server.listening);
  socket.write('GET /livez HTTP/1.1\r\nHost: x\r\n\r\n');
  await eventually('the second request has come', () => requests === 2);
  release();
  await Promise.all([closing, closed]);
  const [first, second = ''] = text.split(/(?=HTTP\/1\.1 )/);
  t.match(first, /^HTTP\/1\.1 200 .*"items":\[\]/s, 'what was being served is served');
  t.match(second, /^HTTP\/1\.1 503 /);
  t.match(second.toLowerCase(), 'connection: close');
  t.match(second, '"code":"shutting_down"');
});

t.test('answers keep to their schema', async (t) => {
  const { app } = await setup(t);
  t.same((await app.inject({ url: '/livez' })).json(), { status: 'alive' });
  t.ok(
    z.object({ openapi: z.literal('3.1.1') }).safeParse((await app.inject({ url: '/openapi.json' })).json()).success,
  );
});

t.test('a refusal says in words which field is at fault', async (t) => {
  const { app } = await setup(t);
  const detailOf = async (method: 'GET' | 'POST', url: string, payload?: object) => {
    const response = await app.inject({ method, url, ...(payload && { payload }) });
    isProblem(t, response, 400, 'invalid_request');
    return response.json().detail;
  };
  t.equal(await detailOf('GET', '/v1/receipts'), 'the query parameters: key is required');
  t.equal(await detailOf('POST', '/v1/receipts/lookup', {}), 'the body: keys is required');
  t.equal(
    await detailOf('POST', '/admin/api-keys', { scopes: ['submit'], tenant: 5 }),
    'the body: name is required; tenant must be a string',
  );
  t.equal(await detailOf('POST', '/v1/batches', { queue: 5 }), 'the batch: queue must be a string; items is required');
});

t.test('a body that no route reads is refused, unless it is empty', async (t) => {
  const { app } = await setup(t);
  const id = '01a229d4-e669-74ea-9104-965b77a9264f';
  const routes = [
    ...['cancel', 'close', 'resume'].map((action) => `POST /v1/batches/${id}/${action}`),
    `POST /v1/jobs/${id}/cancel`,
    ...['pause', 'resume'].flatMap((action) => [`POST /admin/queues/a/${action}`, `POST /admin/upstreams/a/${action}`]),
    ...['upstreams', 'queues', 'rate-limits'].map((kind) => `DELETE /admin/${kind}/a`),
    `DELETE /admin/api-keys/${id}`,
    // Those that take a body know their fields.
    ...['pause', 'resume', 'reset'].map((action) => `POST /admin/rate-windows/a/${action}`),
    `POST /v1/jobs/${id}/retry`,
    'PUT /v1/receipts?key=a',
    'POST /admin/dead-letter/redrive',
  ];
  for (const route of routes) {
    const [method, url] = route.split(' ') as ['POST' | 'PUT' | 'DELETE', string];
    const send = (payload?: string) =>
      app.inject({ method, url, ...(payload && { payload, headers: { 'content-type': 'application/json' } }) });
    const refused = await send('{"x":1}');
    isProblem(t, refused, 400, 'invalid_request');
    t.match(refused.json(), {
      detail: 'the body: there is no field "x"',
      errors: [{ pointer: '/x', code: 'unknown_field' }],
    });
    for (const body of ['[]', '[1]', '"x"', '1', 'true']) isProblem(t, await send(body), 400, 'invalid_request');
    if (route.endsWith('redrive')) continue;
    // They get as far as the database, which is not there.
    for (const body of [undefined, '{}', ' { } ']) {
      t.equal((await send(body)).statusCode, 503, `${route} ${body}`);
    }
  }
});
