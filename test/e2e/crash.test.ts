import t from 'tap';
import { numberedItems } from '../support/client.ts';
import { assertOneEffectEach, startFleet, waitForLog } from '../support/fleet.ts';
import { crash, type Service, startService } from '../support/service.ts';

t.setTimeout(90_000);

t.test(
  'kill -9 in mid-batch with calls in flight, then a new start: the batch completes, each key done once',
  async (t) => {
    const heldCalls = 8;
    const { client, services, upstream, database } = await startFleet(t, {
      perSecond: 25,
      // Ten calls go well, then some take effect and are never answered: these are in flight when the process dies.
      upstream: { rules: [{ skip: 10, times: heldCalls, answer: { gate: 'never' } }] },
      definition: { timeout_ms: 60_000 },
    });
    const items = numberedItems('order', 100);
    const batch = await client.submit('api', items);
    await waitForLog(upstream, (log) => log.requests.length >= 30);
    await crash(services[0] as Service);

    const atCrash = await upstream.log();
    const unanswered = atCrash.requests.filter(({ status }) => status === null);
    t.ok(unanswered.length >= heldCalls, `${unanswered.length} calls were in flight`);
    t.ok(atCrash.summary().effects < 100, 'the batch was not done yet');

    const next = await startService(t, { databaseUrl: database.connectionString });
    const done = await next.client.waitForBatch(batch.batch_id, 40_000);
    t.match(done, { counts: { total: 100, accepted: 100 }, jobs: { succeeded: 100 }, progress: 1 });

    const log = await upstream.log();
    assertOneEffectEach(
      t,
      log,
      items.map((item) => item.idempotency_key),
    );
    t.ok(log.maxStartsInAny(1000) <= 25, `${log.maxStartsInAny(1000)} starts in the fullest second, across the crash`);

    const reported = await next.client.items(batch.batch_id);
    t.equal(reported.length, 100, 'no item is missing');
    const held = log.requests.filter(({ number }) => number > 10 && number <= 10 + heldCalls);
    for (const { jobId, key } of held) {
      const job = await next.client.job(jobId as string);
      t.same(
        job.attempts.map(({ outcome }) => outcome),
        ['unknown', 'success'],
        `${key}: the call that was in flight is told apart, and the key was sent again`,
      );
    }
  },
);

t.test('kill -9 right after the answer of POST: what was accepted is there', async (t) => {
  const { client, services, upstream, database } = await startFleet(t, { env: { SLUICE_ROLES: 'api' } });
  const items = numberedItems('order', 50);
  const batch = await client.submit('api', items);
  await crash(services[0] as Service);

  const next = await startService(t, { databaseUrl: database.connectionString });
  const again = await next.client.submit('api', items);
  t.match(again.counts, { accepted: 0, duplicate: 50 });
  await next.client.waitForBatch(batch.batch_id, 30_000);
  assertOneEffectEach(
    t,
    await upstream.log(),
    items.map((item) => item.idempotency_key),
  );
});
