/** Maintenance whose connection falls silent: jobs of dead workers do not wait for the usual limit of a statement. */
import t from 'tap';
import { DefinitionStore } from '../../src/application/definitions.ts';
import { openDatabase } from '../../src/postgres/database.ts';
import { systemClock } from '../../src/system/clock.ts';
import { createLogger } from '../../src/system/logger.ts';
import { Maintenance } from '../../src/worker/maintenance.ts';
import { useClaims } from '../support/claims.ts';
import { eventually } from '../support/eventually.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';

/** A silence that the driver does not see ends by the limit of a prompt statement, 5 s; the usual one is 35 s. */
const withinMs = 15_000;

t.test("a dead worker's job is taken back within seconds, though the connection fell silent", async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  const proxy = await startTcpProxy(t, store.connectionString);
  const database = openDatabase({
    connectionString: proxy.connectionString,
    max: 1,
    logger: createLogger('silent'),
    applicationName: 'maintenance',
  });
  t.teardown(() => database.close());
  const definitions = new DefinitionStore(store.database);
  const maintenance = new Maintenance({
    database,
    clock: systemClock,
    logger: createLogger('silent'),
    currentDefinitions: () => definitions.current(),
    retention: { retentionDays: 30, keyRetentionDays: 7 },
  });
  maintenance.start();
  t.teardown(() => maintenance.stop());
  const backends = () =>
    store.database.query(
      `select 1 from pg_stat_activity where datname = current_database() and application_name = 'maintenance'`,
    );
  await eventually('it to be at work', async () => (await backends()).length === 1);
  await store.addJobs({ count: 1 });
  await store.claim(1);
  t.equal(proxy.forget('maintenance'), 1);
  const silentMs = systemClock.monotonicMs();
  await store.database.query(`update sluice.workers set lease_expires_at = clock_timestamp() - interval '1 second'`);
  await eventually(
    'the job to be taken back',
    async () => (await store.database.query('select 1 from sluice.running_jobs')).length === 0,
    withinMs,
  );
  t.comment(`taken back ${Math.round(systemClock.monotonicMs() - silentMs)} ms after the silence began`);
});
