import t from 'tap';
import { fullestInterval } from '../../src/simulator/fullest-interval.ts';
import { type Job, numberedItems, type TestClient } from '../support/client.ts';
import { assertOneEffectEach, startFleet, waitForLog } from '../support/fleet.ts';
import { crash, type Service, startService } from '../support/service.ts';

t.setTimeout(120_000);

/** Every job of the batch with its attempts. */
async function jobsOf(client: TestClient, batchId: string): Promise<Job[]> {
  const jobs: Job[] = [];
  for (const { job_id } of await client.items(batchId)) jobs.push(await client.job(job_id as string));
  return jobs;
}

/** The send times that the workers themselves put on record. */
function sendTimes(jobs: readonly Job[]): number[] {
  return jobs.flatMap(({ attempts }) =>
    attempts.flatMap(({ sent_at }) => (sent_at === null ? [] : [Date.parse(sent_at)])),
  );
}

t.test('three replicas, 50 a second, two killed on the way: never more than 50 in any second', async (t) => {
  const { client, services, upstream, database } = await startFleet(t, {
    replicas: 3,
    perSecond: 50,
    upstream: { faults: { slow: 0.2, slowMs: [50, 400] } },
  });
  const items = numberedItems('order', 300);
  const batch = await client.submit('api', items);
  for (const [victim, after] of [
    [1, 75],
    [2, 175],
  ] as const) {
    await waitForLog(upstream, (log) => log.requests.length >= after);
    await crash(services[victim] as Service);
    await startService(t, { databaseUrl: database.connectionString });
  }
  await client.waitForBatch(batch.batch_id, 60_000);

  const log = await upstream.log();
  assertOneEffectEach(
    t,
    log,
    items.map((item) => item.idempotency_key),
  );
  const times = sendTimes(await jobsOf(client, batch.batch_id));
  t.ok(times.length >= 300, `${times.length} starts on record`);
  const byWorkers = fullestInterval(times, 1000).count;
  t.ok(byWorkers <= 50, `${byWorkers} starts in the fullest second by the stamps of the workers`);
  t.ok(log.maxStartsInAny(1000) <= 50, `${log.maxStartsInAny(1000)} in the fullest second at the upstream`);
  t.ok(byWorkers > 25, 'the limit was reached for');
});

t.test('1 a second over three replicas: no two starts within a second', async (t) => {
  const { client, upstream } = await startFleet(t, { replicas: 3, perSecond: 1 });
  const items = numberedItems('order', 5);
  const batch = await client.submit('api', items);
  await client.waitForBatch(batch.batch_id, 30_000);
  const log = await upstream.log();
  assertOneEffectEach(
    t,
    log,
    items.map((item) => item.idempotency_key),
  );
  t.equal(log.maxStartsInAny(1000), 1);
});

t.test('a token bucket over three replicas: at most its burst plus what flows in', async (t) => {
  const [limit, burst] = [20, 10];
  const { client, upstream } = await startFleet(t, { replicas: 3 });
  await client.putRateLimit('api', { limit, per: 1, algorithm: 'token_bucket', burst, upstreams: ['api'] });
  const items = numberedItems('order', 70);
  const batch = await client.submit('api', items);
  await client.waitForBatch(batch.batch_id, 30_000);
  const log = await upstream.log();
  // The permit is 40 ms; 25 ms more for the way to the upstream.
  for (const seconds of [0.1, 0.5, 1, 2]) {
    const bound = Math.floor(burst + limit * (seconds + 0.04 + 0.025));
    const most = log.maxStartsInAny(seconds * 1000);
    t.ok(most <= bound, `${most} starts in the fullest ${seconds} s, of ${bound} allowed`);
  }
});
