import t from 'tap';
import { numberedItems, type VerdictItem } from '../support/client.ts';
import { assertOneEffectEach, startFleet } from '../support/fleet.ts';
import type { Service } from '../support/service.ts';

t.setTimeout(60_000);

t.test(
  'two replicas with one database connection each: intake, reads, definitions and work all get their turn',
  async (t) => {
    const { client, services, upstream } = await startFleet(t, {
      replicas: 2,
      perSecond: 100,
      env: { SLUICE_POOL_MAX: '1' },
      upstream: { faults: { failed: 0.1 } },
    });
    const big = numberedItems('big', 200);
    const batch = await client.submit('api', big);

    // While the workers are busy: forty posts, as many reads, and a change of a definition, all at once.
    const small = numberedItems('small', 40);
    const api = (i: number) => (services[i % services.length] as Service).client;
    const [batches] = await Promise.all([
      Promise.all(small.map((item, i) => api(i).submit('api', [item]))),
      Promise.all(small.map((_, i) => api(i).batch(batch.batch_id))),
      Promise.all(small.map((_, i) => api(i).call('GET', `/v1/batches/${batch.batch_id}/items?limit=10`))),
      client.putRateLimit('api', { limit: 90, per: 1, upstreams: ['api'] }),
    ]);
    t.same([...new Set(batches.map(({ items }) => (items[0] as VerdictItem).verdict))], ['accepted']);

    await client.waitForBatch(batch.batch_id, 30_000);
    for (const { batch_id } of batches) await client.waitForBatch(batch_id, 30_000);
    assertOneEffectEach(
      t,
      await upstream.log(),
      [...big, ...small].map((item) => item.idempotency_key),
    );

    for (const service of services) {
      t.same(await service.stop(20_000), { code: 0, signal: null }, 'and it ends in order');
    }
  },
);
