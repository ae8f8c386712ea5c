/** The bound on submissions: whom it counts, what it answers, and that it is off unless it is asked for. */
import t, { type Test } from 'tap';
import { createTestApp, type TestApp } from '../support/app.ts';
import { createTestDatabase } from '../support/database.ts';
import type { Answer, Problem } from '../support/intake.ts';
import { type TenantClient, tenantClient } from '../support/tenants.ts';

const limitHeaders = [
  'ratelimit-policy',
  'ratelimit',
  'ratelimit-limit',
  'ratelimit-remaining',
  'ratelimit-reset',
  'retry-after',
];

async function setup(t: Test, intakePerMinute: number | undefined) {
  const { database } = await createTestDatabase(t);
  const app = await createTestApp(t, database, { intakePerMinute });
  return { database, app };
}

/** A batch that is refused as empty: it gets as far as the handler, and costs nothing. */
const empty = { items: [] };

function submit(client: TenantClient): Promise<Answer<Problem>> {
  return client.send('POST', '/v1/batches', { body: empty });
}

async function submitFrom({ app }: TestApp, remoteAddress: string): Promise<number> {
  return (await app.inject({ method: 'POST', url: '/v1/batches', payload: empty, remoteAddress })).statusCode;
}

/** The wall clock as the plugin reads it, moved by hand. */
function stopClock(t: Test): { pass(ms: number): void } {
  let now = Date.now();
  t.intercept(Date, 'now', { value: () => now });
  return {
    pass(ms) {
      now += ms;
    },
  };
}

t.test('it is off unless it is configured', async (t) => {
  const { database, app } = await setup(t, undefined);
  const client = await tenantClient({ database, app }, 'acme');
  for (let i = 0; i < 200; i += 1) {
    const { status, headers } = await submit(client);
    if (status === 422 && !limitHeaders.some((name) => name in headers)) continue;
    t.fail(`submission ${i}: ${status}`);
  }
});

t.test(
  'a key gets so many a minute from its first on, and is told how many and when (sandbaseai/sandbase-harness#280)',
  async (t) => {
    const clock = stopClock(t);
    const { database, app } = await setup(t, 2);
    const client = await tenantClient({ database, app }, 'acme');
    const headersOf = ({ headers }: Answer<unknown>) =>
      Object.fromEntries(limitHeaders.map((name) => [name, headers[name]]));
    const first = await submit(client);
    t.equal(first.status, 422);
    t.same(headersOf(first), {
      'ratelimit-policy': '"intake";q=2;w=60',
      ratelimit: '"intake";r=1;t=60',
      'ratelimit-limit': '2',
      'ratelimit-remaining': '1',
      'ratelimit-reset': '60',
      'retry-after': undefined,
    });
    clock.pass(20_500);
    t.equal((await submit(client)).status, 422);
    const refused = await submit(client);
    t.match(refused, {
      status: 429,
      headers: { 'content-type': 'application/problem+json' },
      body: { status: 429, code: 'too_many_requests', detail: /more than 2 submissions a minute with this key/ },
    });
    t.same(headersOf(refused), {
      'ratelimit-policy': '"intake";q=2;w=60',
      ratelimit: '"intake";r=0;t=40',
      'ratelimit-limit': '2',
      'ratelimit-remaining': '0',
      'ratelimit-reset': '40',
      'retry-after': '40',
    });
    clock.pass(39_499);
    t.match(await submit(client), { status: 429, headers: { 'retry-after': '1' } }, 'a moment before');
    clock.pass(1);
    t.equal((await submit(client)).status, 422, 'a minute after its first');
    t.match(
      app.logLines().filter(({ code }) => code === 'too_many_requests'),
      [{ status: 429, tenant: 'acme' }, {}],
    );
  },
);

t.test('keys are counted apart, addresses where there is none, and nothing but submissions', async (t) => {
  const { database, app } = await setup(t, 1);
  const one = await tenantClient({ database, app }, 'acme');
  const same = await tenantClient({ database, app }, 'acme');
  t.equal((await submit(one)).status, 422);
  t.equal((await submit(one)).status, 429);
  t.equal((await submit(same)).status, 422, 'another key of the same tenant');
  t.equal(await submitFrom(app, '127.0.0.1'), 422, 'no key');
  t.equal(await submitFrom(app, '127.0.0.1'), 429);
  t.equal(await submitFrom(app, '127.0.0.2'), 422);
  t.equal(await submitFrom(app, '2001:db8::1'), 422);
  t.equal(await submitFrom(app, '2001:db8::2'), 429, 'a client has a whole /64');
  t.equal(await submitFrom(app, '2001:db8:0:1::1'), 422);
  for (let i = 0; i < 5; i += 1) {
    for (const url of ['/livez', '/readyz', '/openapi.json']) t.equal((await app.app.inject({ url })).statusCode, 200);
    t.match(await one.send('GET', '/v1/jobs'), { status: 200, headers: { ratelimit: undefined } });
  }
});

t.test('who is refused for his key is not counted, and a stream is counted once', async (t) => {
  const { database, app } = await setup(t, 1);
  const reader = await tenantClient({ database, app }, 'acme', ['read']);
  for (let i = 0; i < 3; i += 1) t.equal((await submit(reader)).status, 403);
  const client = await tenantClient({ database, app }, 'acme');
  const stream = () =>
    client.send<string>('POST', '/v1/batches?upstream=none&path=/x', {
      body: '{"idempotency_key":"a"}\n{"idempotency_key":"b"}\n',
      headers: { 'content-type': 'application/x-ndjson' },
    });
  const taken = await stream();
  t.match(taken, { status: 202, headers: { 'ratelimit-remaining': '0', location: /batches/ } });
  t.equal(String(taken.body).split('\n').length, 4, 'two verdicts and a summary');
  t.match(await stream(), { status: 429, headers: { 'content-type': 'application/problem+json' } });
});
