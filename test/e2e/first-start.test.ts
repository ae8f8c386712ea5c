import t from 'tap';
import { numberedItems } from '../support/client.ts';
import { createEmptyDatabase } from '../support/database.ts';
import { assertOneEffectEach } from '../support/fleet.ts';
import { type Service, startReplicas } from '../support/service.ts';
import { useUpstreamProcess } from '../support/upstream.ts';

t.setTimeout(120_000);

t.test('five replicas starting at once on an empty database all become ready and share the work', async (t) => {
  const { connectionString } = await createEmptyDatabase(t);
  const services = await startReplicas(t, 5, { databaseUrl: connectionString, env: { SLUICE_POOL_MAX: '3' } });
  t.equal(new Set(services.map(({ workerId }) => workerId)).size, 5, 'five workers');
  for (const { client } of services) t.equal((await client.send('GET', '/readyz')).status, 200);
  const errors = services.flatMap(({ lines }) => lines.filter(({ level }) => (level ?? 0) >= 50));
  t.same(errors, [], 'none of them met an error on the way');

  const upstream = await useUpstreamProcess(t);
  const { client } = services[0] as Service;
  await client.putUpstream('api', upstream.url);
  const items = numberedItems('order', 50);
  const batch = await client.submit('api', items);
  await (services[4] as Service).client.waitForBatch(batch.batch_id, 20_000);
  assertOneEffectEach(
    t,
    await upstream.log(),
    items.map((item) => item.idempotency_key),
  );
});
