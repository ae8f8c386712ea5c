import t from 'tap';
import { fullestInterval } from '../../src/simulator/fullest-interval.ts';
import type { RequestLog } from '../../src/simulator/request-log.ts';
import { type Job, numberedItems, type TestClient } from '../support/client.ts';
import { assertOneEffectEach, startFleet, waitForLog } from '../support/fleet.ts';
import { crash, type Service, startService } from '../support/service.ts';

t.setTimeout(120_000);

/** Of a rate limit that names none. */
const defaultSlackMs = 25;

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

/**
 * Least and most that calls were on their way, in milliseconds. Only the difference matters to a bound at the upstream: what
 * arrives within some time left within that time and the difference.
 */
function journeys(jobs: readonly Job[], log: RequestLog): { leastMs: number; mostMs: number; spreadMs: number } {
  const arrivals = new Map(log.requests.map(({ jobId, attempt, arrivedAt }) => [`${jobId} ${attempt}`, arrivedAt]));
  const times = jobs.flatMap(({ job_id, attempts }) =>
    attempts.flatMap(({ number, sent_at }) => {
      const arrived = arrivals.get(`${job_id} ${number}`);
      return sent_at === null || arrived === undefined ? [] : [arrived - Date.parse(sent_at)];
    }),
  );
  const [leastMs, mostMs] = [Math.min(...times), Math.max(...times)];
  // A stamp of the API is cut to whole milliseconds, at either end.
  return { leastMs, mostMs, spreadMs: mostMs - leastMs + 2 };
}

t.test('three replicas, 50 a second, two killed on the way: never more than 50 in any second', async (t) => {
  const { client, services, upstream, database } = await startFleet(t, {
    replicas: 3,
    perSecond: 50,
    slackMs: defaultSlackMs,
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
  const jobs = await jobsOf(client, batch.batch_id);
  const times = sendTimes(jobs);
  t.ok(times.length >= 300, `${times.length} starts on record`);
  const byWorkers = fullestInterval(times, 1000).count;
  t.ok(byWorkers <= 50, `${byWorkers} starts in the fullest second by the stamps of the workers`);
  const { leastMs, mostMs, spreadMs } = journeys(jobs, log);
  t.comment(`calls were on their way for ${Math.round(leastMs)} to ${Math.round(mostMs)} ms`);
  // A busy machine delays calls by more than the slack absorbs; the rest comes off the interval in which they are counted.
  const lengthMs = 1000 - Math.max(0, spreadMs - defaultSlackMs);
  const atUpstream = log.maxStartsInAny(lengthMs);
  t.ok(atUpstream <= 50, `${atUpstream} in the fullest ${Math.round(lengthMs)} ms at the upstream`);
  t.ok(byWorkers > 25, 'the limit was reached for');
});

t.test(
  'single jobs, each posted to one of three replicas, 50 a second: never more than 50 in any second',
  async (t) => {
    const { services, client, upstream } = await startFleet(t, { replicas: 3, perSecond: 50, slackMs: defaultSlackMs });
    const items = numberedItems('single', 150);
    const batchIds: string[] = [];
    const postAll = async (poster: TestClient, own: typeof items) => {
      for (const item of own) batchIds.push((await poster.submit('api', [item])).batch_id);
    };
    await Promise.all(
      services.map(({ client: poster }, n) =>
        postAll(
          poster,
          items.filter((_, at) => at % 3 === n),
        ),
      ),
    );
    const jobs: Job[] = [];
    for (const id of batchIds) {
      await client.waitForBatch(id, 30_000);
      jobs.push(...(await jobsOf(client, id)));
    }

    const log = await upstream.log();
    assertOneEffectEach(
      t,
      log,
      items.map((item) => item.idempotency_key),
    );
    const byWorkers = fullestInterval(sendTimes(jobs), 1000).count;
    t.ok(byWorkers <= 50, `${byWorkers} starts in the fullest second by the stamps of the workers`);
    t.ok(byWorkers > 25, 'the limit was reached for');
    const lengthMs = 1000 - Math.max(0, journeys(jobs, log).spreadMs - defaultSlackMs);
    const atUpstream = log.maxStartsInAny(lengthMs);
    t.ok(atUpstream <= 50, `${atUpstream} in the fullest ${Math.round(lengthMs)} ms at the upstream`);
  },
);

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
  const { spreadMs } = journeys(await jobsOf(client, batch.batch_id), log);
  const permitMs = 40;
  for (const lengthMs of [100, 500, 1000, 2000]) {
    const bound = Math.floor(burst + (limit * (lengthMs + permitMs + spreadMs)) / 1000);
    const most = log.maxStartsInAny(lengthMs);
    t.ok(most <= bound, `${most} starts in the fullest ${lengthMs} ms, of ${bound} allowed`);
  }
});
