import t from 'tap';
import { inTransaction } from '../../src/postgres/transaction.ts';
import { systemClock } from '../../src/system/clock.ts';
import { numberedItems } from '../support/client.ts';
import { eventually } from '../support/eventually.ts';
import { assertOneEffectEach, startFleet, waitForLog } from '../support/fleet.ts';
import { type LogLine, type Service, startService } from '../support/service.ts';

t.setTimeout(90_000);

const saysShutdown = ({ msg }: LogLine) => /shutdown|shutting down/i.test(msg ?? '');
const slots = 5;

/** One replica with five calls in flight, which wait at the gate `open`, and fifteen jobs that wait for a slot. */
async function setup(t: Parameters<typeof startFleet>[0], env: Record<string, string>) {
  const fleet = await startFleet(t, {
    env: { SLUICE_CONCURRENCY: String(slots), ...env },
    upstream: { rules: [{ times: slots, answer: { gate: 'open' } }] },
    definition: { timeout_ms: 120_000 },
  });
  const items = numberedItems('order', 20);
  const batch = await fleet.client.submit('api', items);
  await waitForLog(fleet.upstream, (log) => log.requests.length === slots);
  const keys = items.map((item) => item.idempotency_key);
  return { ...fleet, batch, keys, service: fleet.services[0] as Service };
}

t.test('SIGTERM with calls in flight: they end and are written, nothing new is started, exit 0', async (t) => {
  const { service, upstream, database, batch, keys } = await setup(t, { SLUICE_SHUTDOWN_SECONDS: '30' });
  service.kill('SIGTERM');
  await service.waitForLine(saysShutdown);
  await upstream.release('open');
  t.same(await service.exited, { code: 0, signal: null });
  t.equal(await upstream.count(), slots, 'no call was started after the signal');

  const reader = await startService(t, { databaseUrl: database.connectionString, env: { SLUICE_ROLES: 'api' } });
  const { jobs } = await reader.client.batch(batch.batch_id);
  t.match(jobs, { succeeded: slots, ready: keys.length - slots }, 'the answers are on record, the rest is untouched');
  t.notOk(jobs.running, 'nothing is left running');

  const worker = await startService(t, { databaseUrl: database.connectionString });
  await worker.client.waitForBatch(batch.batch_id, 20_000);
  assertOneEffectEach(t, await upstream.log(), keys);
});

t.test(
  'SIGTERM with calls that outlast the grace: handed back at once, another replica goes on, one effect each',
  async (t) => {
    // A lease far longer than the test: only a hand-back explains that the jobs run again.
    const { service, upstream, database, batch, keys } = await setup(t, {
      SLUICE_SHUTDOWN_SECONDS: '1',
      SLUICE_LEASE_SECONDS: '600',
    });
    service.kill('SIGTERM');
    t.same(await service.exited, { code: 0, signal: null });

    const next = await startService(t, { databaseUrl: database.connectionString });
    t.match(await next.client.waitForBatch(batch.batch_id, 20_000), { jobs: { succeeded: keys.length } });
    const log = await upstream.log();
    assertOneEffectEach(t, log, keys);
    for (const { jobId, key } of log.requests.slice(0, slots)) {
      const { attempts } = await next.client.job(jobId as string);
      t.match(
        attempts.map(({ outcome, charged, worker_id }) => ({ outcome, charged, worker_id })),
        [
          { outcome: 'unknown', charged: 'attempt', worker_id: service.workerId },
          { outcome: 'success', charged: 'attempt', worker_id: next.workerId },
        ],
        `${key}: the request had left, so it is charged, and its outcome stays unknown`,
      );
    }
  },
);

t.test('over the grace, a replica that runs beside it takes the jobs at once', async (t) => {
  // Neither the lease nor a poll explains how soon: the lease is far longer than the test, the poll takes 4 s and more.
  const { service, upstream, database, batch, keys } = await setup(t, {
    SLUICE_SHUTDOWN_SECONDS: '1',
    SLUICE_LEASE_SECONDS: '600',
  });
  const other = await startService(t, { databaseUrl: database.connectionString });
  await waitForLog(upstream, (log) => log.summary().effects === keys.length);
  await eventually('only the calls in flight to be left', async () => {
    const { jobs } = await other.client.batch(batch.batch_id);
    return jobs.running === slots && jobs.succeeded === keys.length - slots;
  });
  service.kill('SIGTERM');
  await service.exited;
  const gone = systemClock.monotonicMs();
  await other.client.waitForBatch(batch.batch_id, 3_000);
  t.comment(`done ${Math.round(systemClock.monotonicMs() - gone)} ms after the end of the other`);
  assertOneEffectEach(t, await upstream.log(), keys);
});

// fastify/help#200, hemerajs/fastify-graceful-shutdown#56: a pool that is closed before the requests are through.
t.test('SIGTERM in the middle of a POST: it is committed and answered, and only then the process ends', async (t) => {
  const { client, services, database, upstream } = await startFleet(t, { env: { SLUICE_SHUTDOWN_SECONDS: '30' } });
  const service = services[0] as Service;
  const items = numberedItems('order', 3);
  const { post, late } = await inTransaction(database.database, async (transaction) => {
    // Somebody else is about to take one of the keys, so the POST has to wait in its transaction.
    await transaction.query(
      `insert into sluice.idempotency_keys (tenant, key, fingerprint, job_id)
       values ('default', 'order-0002', '\\x00', gen_random_uuid())`,
    );
    const post = client.submit('api', items);
    await eventually('the POST to wait', async () => {
      const waiting = await transaction.query(
        `select 1 from pg_stat_activity where datname = current_database() and wait_event = 'transactionid'`,
      );
      return waiting.length === 1;
    });
    service.kill('SIGTERM');
    await service.waitForLine(saysShutdown);
    const late = await client.send('GET', '/livez').then(
      ({ status, headers }) => ({ status, connection: headers.get('connection') }),
      () => 'refused' as const,
    );
    await transaction.query('delete from sluice.idempotency_keys');
    return { post, late };
  });
  const batch = await post;
  t.match(batch.counts, { accepted: 3 });
  t.ok(
    late === 'refused' || (late.status === 503 && late.connection === 'close'),
    `a request that came after the signal: ${JSON.stringify(late)}`,
  );
  t.same(await service.exited, { code: 0, signal: null });
  const said = service.lines.map(({ msg }) => msg ?? '').filter((msg) => /shutting down|drained|stopped/.test(msg));
  t.match(said[0], /shutting down/);
  t.ok(said.includes('HTTP is drained') && said.includes('the worker is drained'));
  t.match(said.at(-1), /stopped/);

  const next = await startService(t, { databaseUrl: database.connectionString });
  await next.client.waitForBatch(batch.batch_id, 20_000);
  assertOneEffectEach(
    t,
    await upstream.log(),
    items.map((item) => item.idempotency_key),
  );
});

t.test('a second signal does not wait for the grace', async (t) => {
  const { service, upstream, database, batch, keys } = await setup(t, { SLUICE_SHUTDOWN_SECONDS: '600' });
  service.kill('SIGTERM');
  await service.waitForLine(saysShutdown);
  const secondMs = systemClock.monotonicMs();
  service.kill('SIGTERM');
  t.same(await service.exited, { code: 143, signal: null }, 'by convention 128 and the number of the signal');
  t.ok(systemClock.monotonicMs() - secondMs < 3_000, 'at once');

  const next = await startService(t, { databaseUrl: database.connectionString });
  await next.client.waitForBatch(batch.batch_id, 30_000);
  assertOneEffectEach(t, await upstream.log(), keys);
});
