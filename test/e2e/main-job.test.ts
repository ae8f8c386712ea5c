import t from 'tap';
import { numberedItems } from '../support/client.ts';
import { assertOneEffectEach, startFleet } from '../support/fleet.ts';

t.setTimeout(90_000);

t.test('500 items under 50 a second against random 429 and 500: each done once, never over the limit', async (t) => {
  const { client, upstream } = await startFleet(t, {
    perSecond: 50,
    upstream: { faults: { throttled: 0.01, retryAfterSeconds: 1, failed: 0.1 } },
  });
  const items = numberedItems('order', 500);
  const batch = await client.submit('api', items);
  t.same(batch.counts, { total: 500, accepted: 500, duplicate: 0, conflict: 0, rejected: 0 });

  const done = await client.waitForBatch(batch.batch_id, 60_000);
  t.match(done, { status: 'completed', progress: 1, jobs: { succeeded: 500 } });

  const log = await upstream.log();
  const keys = items.map((item) => item.idempotency_key);
  assertOneEffectEach(t, log, keys);
  t.ok(log.maxStartsInAny(1000) <= 50, `${log.maxStartsInAny(1000)} starts in the fullest second at the upstream`);
  t.match(log.summary(), { effects: 500, overQuota: 0 });
  const { throttled, refused } = log.summary();
  t.ok(throttled > 0 && refused > 20, `the upstream did misbehave: ${throttled} times 429, ${refused} times 500`);

  const reported = await client.items(batch.batch_id);
  t.same(
    reported.map(({ index, idempotency_key, job_state }) => [index, idempotency_key, job_state]),
    keys.map((key, index) => [index, key, 'succeeded']),
    'every item is there, in order, and succeeded',
  );
});
