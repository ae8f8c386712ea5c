/**
 * A primary that dies for good, and its standby that takes its place (streaming replication; both servers are made by the
 * test). What was acknowledged is there where the standby is synchronous, and where it is not that cannot be promised.
 */
import t from 'tap';
import { systemClock } from '../../src/system/clock.ts';
import { numberedItems } from '../support/client.ts';
import { eventually } from '../support/eventually.ts';
import { assertOneEffectEach } from '../support/fleet.ts';
import { openStage, survive } from '../support/outage.ts';
import { useOwnPostgres, useStandby } from '../support/own-postgres.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';

t.setTimeout(180_000);

t.test('the primary is killed under load, the standby promoted: nothing that was acknowledged is lost', async (t) => {
  const primary = await useOwnPostgres(t);
  const standby = await useStandby(t, primary, { synchronous: true });
  // The address that stays, as a name or a virtual address would.
  const proxy = await startTcpProxy(t, primary.connectionString);
  const stage = await openStage(t, proxy.connectionString);
  await survive(t, stage, {
    name: 'failover',
    databaseUrl: standby.connectionString,
    async begin() {
      await primary.stop('killed');
      return async () => {
        await standby.promote();
        proxy.pointTo(standby.connectionString);
      };
    },
  });
});

for (const synchronous of [true, false]) {
  const name = synchronous
    ? 'while a synchronous standby is away nothing is acknowledged, so nothing is lost with the primary'
    : 'with an asynchronous standby what was acknowledged may be lost with the primary: the control';
  t.test(name, async (t) => {
    const primary = await useOwnPostgres(t);
    const standby = await useStandby(t, primary, { synchronous });
    const proxy = await startTcpProxy(t, primary.connectionString);
    const { services, upstream } = await openStage(t, proxy.connectionString, {
      replicas: 1,
      env: { SLUICE_ROLES: 'api' },
    });
    const { client } = services[0]!;
    await standby.stop('fast');

    const items = numberedItems('order', 5);
    let status: number | null = null;
    const body = { defaults: { upstream: 'api', path: '/charges' }, items };
    const first = client.send<{ batch_id: string }>('POST', '/v1/batches', { body }).then(
      (answer) => {
        status = answer.status;
        return answer.body.batch_id;
      },
      () => null,
    );
    if (synchronous) {
      await eventually('the commit to wait for the standby', async () => {
        const rows = await primary.admin(`select 1 from pg_stat_activity where wait_event = 'SyncRep'`);
        return rows.length > 0;
      });
      await systemClock.sleep(1_000);
      t.equal(status, null, 'no answer');
      // PostgreSQL then says that it is committed, and only warns that the standby does not have it.
      await primary.admin(`select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'`);
      await first;
      t.equal(status, 503, 'a wait that somebody cancels is no success');
    } else {
      await first;
      t.equal(status, 202);
    }

    await primary.stop('killed');
    await standby.start();
    await standby.promote();
    proxy.pointTo(standby.connectionString);
    await eventually('it to be ready', async () => (await client.send('GET', '/readyz')).status === 200);
    if (!synchronous) {
      t.equal(
        (await client.send('GET', `/v1/batches/${await first}`)).status,
        404,
        'it is lost, and this test sees it',
      );
      return;
    }
    const { counts } = await client.submit('api', items);
    t.match(counts, { accepted: 5 }, 'asked again it is accepted, where it is now');
    t.equal(await upstream.count(), 0);
    assertOneEffectEach(t, await upstream.log(), []);
  });
}
