/** Load shedding with a real busy loop and a real heap: what is refused, what is not, and that it ends by itself. */
import t, { type Test } from 'tap';
import { dearRoutes, type LoadLimits } from '../../src/http/load-shedding.ts';
import { systemClock } from '../../src/system/clock.ts';
import { createTestApp } from '../support/app.ts';
import { createTestDatabase } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';

async function setup(t: Test, loadLimits: LoadLimits) {
  const { database } = await createTestDatabase(t);
  return createTestApp(t, database, { loadLimits });
}

/** Holds the event loop, as work without a pause would. */
function hold(forMs: number): void {
  const end = systemClock.monotonicMs() + forMs;
  while (systemClock.monotonicMs() < end);
}

const batch = { method: 'POST', url: '/v1/batches', payload: { items: [] } } as const;

t.test(
  'while the event loop lags, what is dear is refused, what watches and steers is not; then it is over',
  async (t) => {
    const { app, logLines } = await setup(t, { loopDelayMs: 100 });
    t.equal((await app.inject(batch)).statusCode, 422, 'the control: taken as far as it can be');
    const refused = await eventually('it is refused', async () => {
      hold(300);
      const answer = await app.inject(batch);
      return answer.statusCode === 503 && answer;
    });
    t.match(refused, { statusCode: 503, headers: { 'retry-after': '2', 'content-type': 'application/problem+json' } });
    t.match(refused.json(), { code: 'overloaded', status: 503, detail: /too busy/ });
    t.match(logLines().at(-1), { msg: 'request', status: 503, code: 'overloaded' });
    t.equal((await app.inject('/v1/jobs')).statusCode, 503);
    t.equal((await app.inject({ method: 'HEAD', url: '/v1/jobs' })).statusCode, 503);
    for (const url of ['/livez', '/readyz', '/openapi.json', '/admin/queues', '/admin/stats', '/admin/workers']) {
      t.equal((await app.inject(url)).statusCode, 200, url);
    }
    t.equal((await app.inject({ method: 'POST', url: '/admin/queues/default/pause' })).statusCode, 200, 'a lever');
    t.equal((await app.inject('/no-such-path')).statusCode, 404);
    await eventually('submissions are taken again', async () => (await app.inject(batch)).statusCode === 422);
  },
);

t.test('a heap that is nearly full refuses what is dear', async (t) => {
  const { app } = await setup(t, { loopDelayMs: 60_000, heapBytes: 1 });
  await eventually('submissions are refused', async () => (await app.inject(batch)).statusCode === 503);
  t.match((await app.inject(batch)).json(), { code: 'overloaded', detail: /memory/ });
  t.equal((await app.inject('/livez')).statusCode, 200);
  t.equal((await app.inject('/readyz')).statusCode, 200);
});

t.test('batches of 10,000 items, four at a time, are far from it', async (t) => {
  const { app } = await setup(t, { loopDelayMs: 2_000 });
  const items = (round: number) =>
    Array.from({ length: 10_000 }, (_, i) => ({
      idempotency_key: `${round}-${i}`,
      upstream: 'none',
      path: '/x',
      body: { i },
    }));
  let worst = 0;
  for (const round of [0, 1]) {
    const answers = await Promise.all(
      [0, 1, 2, 3].map((each) => app.inject({ ...batch, payload: { items: items(4 * round + each) } })),
    );
    t.same(
      answers.map(({ statusCode }) => statusCode),
      [202, 202, 202, 202],
    );
    worst = Math.max(worst, app.memoryUsage().eventLoopDelay);
  }
  t.comment(`worst delay seen: ${worst} ms`);
});

t.test('what is said to be dear are routes of the document', async (t) => {
  const { app } = await setup(t, { loopDelayMs: 2_000 });
  const { paths } = (await app.inject('/openapi.json')).json<{ paths: Record<string, Record<string, unknown>> }>();
  const routes = Object.entries(paths).flatMap(([path, methods]) =>
    Object.keys(methods).map((method) => `${method.toUpperCase()} ${path.replaceAll(/\{(\w+)\}/g, ':$1')}`),
  );
  t.same(
    [...dearRoutes].filter((route) => !routes.includes(route)),
    [],
  );
});
