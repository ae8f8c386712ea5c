/** Real processes that die or lose an answer, and an upstream that can be asked what became of it. */
import t from 'tap';
import { numberedItems } from '../support/client.ts';
import { assertOneEffectEach, startFleet, waitForLog } from '../support/fleet.ts';
import { crash, type Service, startService } from '../support/service.ts';

t.setTimeout(90_000);

const lookupPath = '/lookup?key=';
const definition = { reconcile: { path: `${lookupPath}{key}` } };

/** Calls that should do the work, and questions, for a key. */
function callsOf(log: Awaited<ReturnType<typeof waitForLog>>, key: string): string {
  return log.requests
    .filter((request) => request.key === key || request.path === `${lookupPath}${key}`)
    .map(({ method }) => method)
    .join(' ');
}

t.test('kill -9 with calls in flight: what had its effect is not called again, what had not is, once', async (t) => {
  const { client, services, upstream, database } = await startFleet(t, {
    definition: { ...definition, timeout_ms: 60_000 },
    upstream: {
      lookupPath,
      rules: [
        { key: 'done', times: 1, answer: { gate: 'never' } },
        { key: 'lost', times: 1, answer: { status: 500, gate: 'never' } },
      ],
    },
  });
  const batch = await client.submit('api', [{ idempotency_key: 'done' }, { idempotency_key: 'lost' }]);
  await waitForLog(upstream, ({ requests }) => requests.length === 2);
  await crash(services[0] as Service);

  const next = await startService(t, { databaseUrl: database.connectionString });
  await next.client.waitForBatch(batch.batch_id, 40_000);
  const log = await upstream.log();
  t.equal(callsOf(log, 'done'), 'POST GET');
  t.equal(callsOf(log, 'lost'), 'POST GET POST');
  assertOneEffectEach(t, log, ['done', 'lost']);

  const [done, lost] = await Promise.all(batch.items.map((item) => next.client.job(item.job_id as string)));
  t.match(done, {
    state: 'succeeded',
    evidence: 'reconciled',
    response: null,
    attempts_used: 1,
    attempts: [{ number: 1, outcome: 'unknown' }],
    reconciliations: [{ at: /^\d{4}-.*Z$/, status: 200, verdict: 'applied' }],
  });
  t.match(lost, {
    state: 'succeeded',
    evidence: 'response',
    response: { status: 200 },
    attempts_used: 2,
    attempts: [
      { number: 1, outcome: 'unknown' },
      { number: 2, outcome: 'success' },
    ],
    reconciliations: [{ status: 404, verdict: 'absent' }],
  });
  const receipt = await next.client.call<{ evidence: string; attempts: number }>('GET', '/v1/receipts?key=done');
  t.match(receipt, { state: 'succeeded', evidence: 'reconciled', attempts: 1, status: null });
});

t.test(
  'an upstream that deduplicates nothing loses calls before their effect: nothing is held, each is done once',
  async (t) => {
    const { client, upstream } = await startFleet(t, {
      replicas: 2,
      definition: { ...definition, idempotency_header: null },
      upstream: {
        idempotencyHeader: null,
        rules: [
          { path: `${lookupPath}*`, answer: { status: 404 } },
          { path: '/charges', skip: 5, times: 10, answer: { reset: 'before_effect' } },
        ],
      },
    });
    const batch = await client.submit('api', numberedItems('order', 40));
    await client.waitForBatch(batch.batch_id, 40_000);
    const log = await upstream.log();
    t.equal(log.requests.filter(({ method }) => method === 'GET').length, 10);
    t.equal(log.summary().effects, 40);
    t.same(log.doubles(), []);
  },
);

t.test('the receiver ends a running job: what its call answers later is kept, and changes nothing', async (t) => {
  const { client, upstream } = await startFleet(t, {
    definition: { timeout_ms: 60_000 },
    upstream: { rules: [{ answer: { gate: 'slow' } }] },
  });
  const batch = await client.submit('api', [{ idempotency_key: 'k' }]);
  await waitForLog(upstream, ({ requests }) => requests.length === 1);
  const receipt = await client.call<{ state: string }>('PUT', '/v1/receipts?key=k', {
    body: { status: 201, note: 'seen' },
  });
  t.match(receipt, { state: 'succeeded', evidence: 'receipt', attempts: 1, status: 201, note: 'seen' });
  t.match(
    await client.batch(batch.batch_id),
    { status: 'completed', jobs: { succeeded: 1 } },
    'the batch need not wait',
  );
  await upstream.release('slow');
  const id = batch.items[0]?.job_id as string;
  const job = await client.waitForJob(id, 10_000, ({ attempts }) => attempts[0]?.late != null);
  t.match(job, {
    state: 'succeeded',
    evidence: 'receipt',
    response: { status: 201 },
    attempts_used: 0,
    attempts: [{ number: 1, outcome: 'unknown', charged: 'none', late: { outcome: 'success', status: 200 } }],
  });
  t.equal((await upstream.log()).effects('k'), 1);
});
