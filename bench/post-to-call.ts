/** How long a job takes from its POST to its call's arrival at the upstream, one job at a time. */
import { SluiceClient } from '../src/client/index.ts';
import type { UpstreamProcess } from '../src/simulator/upstream-process.ts';
import { systemClock as clock } from '../src/system/clock.ts';

const arrivesWithinMs = 10_000;
const pollMs = 2;

/**
 * Milliseconds, ascending, of one POST per item. Both ends read the wall clock of one machine, in whole milliseconds: a
 * figure may be one too large or too small.
 */
export async function postToCallMs(
  serviceUrl: string,
  upstream: UpstreamProcess,
  items: ReadonlyArray<{ readonly idempotency_key: string }>,
): Promise<number[]> {
  const api = new SluiceClient({ baseUrl: serviceUrl });
  const sentAt = new Map<string, number>();
  for (const item of items) {
    const before = await upstream.count();
    const now = clock.wallMs();
    sentAt.set(item.idempotency_key, now);
    await api.call('POST', '/v1/batches', { body: { defaults: { upstream: 'api', path: '/charges' }, items: [item] } });
    while ((await upstream.count()) === before) {
      if (clock.wallMs() - now > arrivesWithinMs) throw new Error(`${item.idempotency_key} did not arrive in time`);
      await clock.sleep(pollMs);
    }
  }
  const took = (await upstream.log()).requests.flatMap(({ key, arrivedAt }) => {
    const sent = key === null ? undefined : sentAt.get(key);
    return sent === undefined ? [] : [arrivedAt - sent];
  });
  return took.sort((a, b) => a - b);
}
