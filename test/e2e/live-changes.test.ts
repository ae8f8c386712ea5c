/** Changes of limits while jobs wait, and restarts in the middle of a window, with real processes. */
import { randomUUID } from 'node:crypto';
import t from 'tap';
import { numberedItems } from '../support/client.ts';
import { type Fleet, startFleet, waitForLog } from '../support/fleet.ts';
import { crash, startService } from '../support/service.ts';
import type { ArrivedRequest, RequestLog } from '../support/upstream.ts';

t.setTimeout(120_000);

/** Calls to the upstream under test; the markers of `stays` apart. */
function calls(log: RequestLog): readonly ArrivedRequest[] {
  return log.requests.filter((request) => !request.path.startsWith('/marker'));
}

/**
 * Whether the number of calls stays while other work is claimed and done: jobs of another upstream, submitted now one after
 * the other, that no limit covers. Nothing is waited for but them.
 */
async function stays({ client, upstream }: Fleet, count: number): Promise<boolean> {
  await client.putUpstream('marker', `${upstream.url}/marker`);
  for (let i = 0; i < 5; i += 1) {
    const marker = await client.submit('marker', [{ idempotency_key: `marker-${randomUUID()}` }]);
    await client.waitForBatch(marker.batch_id, 10_000);
    if (calls(await upstream.log()).length !== count) return false;
  }
  return true;
}

t.test('limit 0 holds, a raise is used at once, a lowering stops at once; all of it in two replicas', async (t) => {
  const fleet = await startFleet(t, { replicas: 2 });
  const { client, upstream, services } = fleet;
  await client.putRateLimit('api', { limit: 0, per: 60, upstreams: ['api'] });
  const batch = await client.submit('api', numberedItems('order', 120));
  t.ok(await stays(fleet, 0), 'limit 0: nothing starts');

  await client.putRateLimit('api', { limit: 40, per: 60, upstreams: ['api'] });
  await waitForLog(upstream, (log) => calls(log).length >= 40, 5_000);
  t.ok(await stays(fleet, 40), 'and no more than 40');

  await (services[1] as (typeof services)[number]).client.putRateLimit('api', {
    limit: 5,
    per: 60,
    upstreams: ['api'],
  });
  t.ok(await stays(fleet, 40), 'lowered under what is used: nothing starts');
  const window = await client.call<{ remaining: number; state: string }>('GET', '/admin/rate-windows/api');
  t.match(window, { remaining: 0, state: 'exhausted' });

  await client.putRateLimit('api', { limit: 100, per: 60, upstreams: ['api'] });
  await waitForLog(upstream, (log) => calls(log).length >= 100, 5_000);
  t.ok(await stays(fleet, 100), 'raised: the difference, at once');

  await client.call('POST', '/admin/rate-windows/api/reset');
  await client.waitForBatch(batch.batch_id, 20_000);
  t.same((await upstream.log()).doubles(), []);
});

t.test('a restart in mid-window keeps the count, and parked work wakes by itself when the window opens', async (t) => {
  const { client, upstream, services, database } = await startFleet(t, { replicas: 1 });
  await client.putRateLimit('api', { limit: 10, per: 5, upstreams: ['api'] });
  await client.submit('api', numberedItems('order', 20));
  await waitForLog(upstream, (log) => calls(log).length === 10, 5_000);
  await crash(services[0] as (typeof services)[number]);
  const restarted = await startService(t, { databaseUrl: database.connectionString });
  const window = await restarted.client.call<{ used: number }>('GET', '/admin/rate-windows/api');
  t.equal(window.used, 10, 'the count is in the database');
  const log = await waitForLog(upstream, (each) => calls(each).length === 20, 20_000);
  const [tenth, eleventh] = [log.requests[9], log.requests[10]];
  t.ok(
    eleventh!.arrivedAt - tenth!.arrivedAt >= 4_900,
    `${Math.round(eleventh!.arrivedAt - tenth!.arrivedAt)} ms apart`,
  );
});

t.test('a pause by hand holds everything under the limit, a resume goes on within a second', async (t) => {
  const fleet = await startFleet(t, { replicas: 1 });
  const { client, upstream } = fleet;
  await client.putRateLimit('api', { limit: 1000, per: 1, upstreams: ['api'] });
  await client.call('POST', '/admin/rate-windows/api/pause');
  const batch = await client.submit('api', numberedItems('order', 5));
  t.ok(await stays(fleet, 0));
  await client.call('POST', '/admin/rate-windows/api/resume');
  await waitForLog(upstream, (log) => calls(log).length === 5, 1_000);
  await client.waitForBatch(batch.batch_id, 5_000);
});
