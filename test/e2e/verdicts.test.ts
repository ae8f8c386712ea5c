import t from 'tap';
import type { BatchAnswer } from '../support/client.ts';
import { assertOneEffectEach, startFleet } from '../support/fleet.ts';
import type { Service } from '../support/service.ts';

t.setTimeout(60_000);

const verdictsOf = (batch: BatchAnswer) => batch.items.map(({ verdict }) => verdict);

t.test('two replicas give one verdict per item, and the same key means the same job in both', async (t) => {
  const { services, upstream } = await startFleet(t, { replicas: 2 });
  const [a, b] = services as [Service, Service];
  const items = [
    { idempotency_key: 'K1', body: { call: 'p' } },
    { idempotency_key: 'K2', body: { call: 'q' } },
    { idempotency_key: 'K1', body: { call: 'p' } },
    { idempotency_key: 'K1', body: { call: 'r' } },
    { idempotency_key: 'K3', body: { call: 's' } },
  ];

  const first = await a.client.submit('api', items);
  t.same(verdictsOf(first), ['accepted', 'accepted', 'duplicate', 'conflict', 'accepted']);
  t.equal(first.items[2]?.job_id, first.items[0]?.job_id, 'the duplicate names the job of index 0');
  t.same(
    first.items[3]?.errors?.map(({ code }) => code),
    ['idempotency_key_reused'],
  );
  t.same(first.counts, { total: 5, accepted: 3, duplicate: 1, conflict: 1, rejected: 0 });

  const again = await b.client.submit('api', items);
  t.same(verdictsOf(again), ['duplicate', 'duplicate', 'duplicate', 'conflict', 'duplicate']);
  for (const index of [0, 1, 2, 4]) t.equal(again.items[index]?.job_id, first.items[index]?.job_id, `item ${index}`);

  await a.client.waitForBatch(first.batch_id, 20_000);
  await b.client.waitForBatch(again.batch_id, 20_000);
  const log = await upstream.log();
  assertOneEffectEach(t, log, ['K1', 'K2', 'K3']);
  t.same(log.forKey('K1')[0]?.body, '{"call":"p"}', 'the conflicting call left the first one untouched');
});

t.test('50 posts of one new key at once through two replicas: one accepted, the rest duplicates of it', async (t) => {
  const { services, client, upstream } = await startFleet(t, { replicas: 2 });
  const body = {
    defaults: { upstream: 'api', path: '/charges' },
    items: [{ idempotency_key: 'new', body: { amount: 5 } }],
  };
  const answers = await Promise.all(
    Array.from({ length: 50 }, (_, i) => {
      const service = services[i % services.length] as Service;
      return service.client.send<BatchAnswer>('POST', '/v1/batches', { body });
    }),
  );
  t.same([...new Set(answers.map(({ status }) => status))], [202], 'every answer is a 202');
  const verdicts = answers.map((answer) => answer.body.items[0]?.verdict);
  t.equal(verdicts.filter((verdict) => verdict === 'accepted').length, 1);
  t.equal(verdicts.filter((verdict) => verdict === 'duplicate').length, 49);
  t.equal(new Set(answers.map((answer) => answer.body.items[0]?.job_id)).size, 1, 'one job id');
  t.equal(new Set(answers.map((answer) => answer.body.batch_id)).size, 50, 'and a batch each');

  for (const answer of answers) await client.waitForBatch(answer.body.batch_id, 20_000);
  assertOneEffectEach(t, await upstream.log(), ['new']);
  const errors = services.flatMap(({ lines }) => lines.filter(({ level }) => (level ?? 0) >= 50));
  t.same(errors, [], 'nothing went wrong in the logs');
});
