import t from 'tap';
import { numberedItems } from '../support/client.ts';
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

t.test('a second signal does not wait for the grace', async (t) => {
  const { service, upstream, database, batch, keys } = await setup(t, { SLUICE_SHUTDOWN_SECONDS: '600' });
  service.kill('SIGTERM');
  await service.waitForLine(saysShutdown);
  service.kill('SIGTERM');
  await service.exited;

  const next = await startService(t, { databaseUrl: database.connectionString });
  await next.client.waitForBatch(batch.batch_id, 30_000);
  assertOneEffectEach(t, await upstream.log(), keys);
});
