/**
 * The service among its peers: taken in over HTTP, with verdicts, while the upstream is paused; worked off by one replica
 * with 64 slots, which is the same process, as it is for whoever just starts it.
 */

import { systemClock as clock } from '../src/system/clock.ts';
import { batches, items } from './calls-to-make.ts';
import type { Contender } from './contender.ts';
import { postAll } from './measure-intake.ts';
import { postToCallMs } from './post-to-call.ts';
import { declareRateLimit, declareUpstream, setPaused } from './service-client.ts';

const slots = 64;
const pollMs = 20;

export const sluiceContenders: readonly Contender[] = [
  sluice('no limit', {}),
  sluice('a fleet window far above the speed', {
    'far-above': { limit: 1_000_000, per: 1, upstreams: ['api'] },
  }),
];

function sluice(settings: string, limits: Readonly<Record<string, object>>): Contender {
  const windowed = Object.keys(limits).length > 0;
  let made = 0;
  return {
    name: 'Sluice',
    settings,
    kind: 'ours',
    timed: !windowed,
    async open(stage, upstream) {
      made += 1;
      const target = await stage.createDatabase(`sluice_${windowed ? 'windowed' : 'free'}_${made}`);
      const service = await stage.startService(target, { env: { SLUICE_CONCURRENCY: String(slots) } });
      await declareUpstream(service.url, 'api', upstream.url);
      for (const [name, limit] of Object.entries(limits)) await declareRateLimit(service.url, name, limit);
      return {
        async insert(label, count) {
          await setPaused(service.url, 'api', true);
          const bodies = batches('api', label, count);
          const startMs = clock.monotonicMs();
          await postAll(service.url, bodies, 1);
          return (clock.monotonicMs() - startMs) / 1000;
        },
        async drain(count) {
          const goal = (await upstream.count()) + count;
          await setPaused(service.url, 'api', false);
          while ((await upstream.count()) < goal) await clock.sleep(pollMs);
        },
        latency: (label, count) => postToCallMs(service.url, upstream, items(label, count)),
        async close() {
          await service.stop();
        },
      };
    },
  };
}
