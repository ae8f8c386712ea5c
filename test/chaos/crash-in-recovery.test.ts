/**
 * Workers are killed while PostgreSQL crashes and recovers, and one new worker starts meanwhile (graphile/worker#449: LISTEN
 * during recovery, lock columns left behind, and jobs that only a purge of the table brought back).
 */
import t from 'tap';
import { systemClock } from '../../src/system/clock.ts';
import { numberedItems } from '../support/client.ts';
import { eventually } from '../support/eventually.ts';
import { assertOneEffectEach, waitForLog } from '../support/fleet.ts';
import { brokenInvariants } from '../support/invariants.ts';
import { useOwnPostgres } from '../support/own-postgres.ts';
import { crash, startReplicas, startService } from '../support/service.ts';
import { useUpstreamProcess } from '../support/upstream.ts';

t.setTimeout(180_000);

const leaseSeconds = 2;
const slots = 8;

t.test(
  'two workers and the server die at once: one new worker ends every job, and no row is left behind',
  async (t) => {
    const postgres = await useOwnPostgres(t);
    const upstream = await useUpstreamProcess(t, { rules: [{ skip: 20, answer: { gate: 'recovered' } }] });
    const options = {
      databaseUrl: postgres.connectionString,
      env: { SLUICE_LEASE_SECONDS: String(leaseSeconds), SLUICE_CONCURRENCY: String(slots) },
    };
    const workers = await startReplicas(t, 2, options);
    const { client } = workers[0]!;
    await client.putUpstream('api', upstream.url, { timeout_ms: 60_000 });
    const items = numberedItems('order', 100);
    const { batch_id } = await client.submit('api', items);
    await waitForLog(upstream, (log) => log.requests.length === 20 + 2 * slots);

    await Promise.all([postgres.stop('immediate'), ...workers.map(crash)]);
    const started = startService(t, options);
    await postgres.start();
    const next = await started;
    const readyMs = systemClock.monotonicMs();
    await upstream.release('recovered');
    const batch = await eventually(
      'every job to end within the lease and 10 s',
      async () => {
        const now = await next.client.batch(batch_id);
        return now.status === 'completed' && now;
      },
      (leaseSeconds + 10) * 1000,
    );
    t.comment(`all ended ${Math.round(systemClock.monotonicMs() - readyMs)} ms after the new worker was ready`);
    t.match(batch, { counts: { accepted: 100 }, jobs: { succeeded: 100 } });
    const log = await upstream.log();
    assertOneEffectEach(
      t,
      log,
      items.map((item) => item.idempotency_key),
    );
    t.ok(log.summary().replayed > 0, 'calls were lost in flight');
    t.same(await brokenInvariants(postgres.connectionString), [], 'nothing is left that looks ready and is not');
  },
);
