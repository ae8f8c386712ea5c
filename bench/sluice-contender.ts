/**
 * The service among its peers: taken in over HTTP, with verdicts, while the upstream is paused; worked off with 64
 * slots by the same process, as it is for whoever just starts it, or by several.
 */

import type { Replica } from '../src/cli/demo/replica.ts';
import { systemClock as clock } from '../src/system/clock.ts';
import { batches, items } from './calls-to-make.ts';
import type { Contender } from './contender.ts';
import { postAll } from './measure-intake.ts';
import { timePosts } from './post-to-call.ts';
import { declareRateLimit, declareUpstream, setPaused } from './service-client.ts';

const slots = 64;
const pollMs = 20;

interface SluiceOptions {
  readonly limits?: Readonly<Record<string, object>>;
  /** Processes; the first one takes the jobs in. */
  readonly replicas?: number;
}

export const sluiceContenders: readonly Contender[] = [
  sluice('no limit', {}),
  sluice('a fleet window far above the speed', {
    limits: { 'far-above': { limit: 1_000_000, per: 1, upstreams: ['api'] } },
  }),
];

let databases = 0;

export function sluice(settings: string, { limits = {}, replicas = 1 }: SluiceOptions): Contender {
  return {
    name: 'Sluice',
    settings,
    kind: 'ours',
    timed: Object.keys(limits).length === 0,
    async open(stage, upstream) {
      databases += 1;
      const target = await stage.createDatabase(`sluice_${databases}`);
      const env = { SLUICE_CONCURRENCY: String(slots) };
      const services: Replica[] = [];
      for (let i = 0; i < replicas; i += 1) services.push(await stage.startService(target, { env }));
      const { url } = services[0]!;
      await declareUpstream(url, 'api', upstream.url);
      for (const [name, limit] of Object.entries(limits)) await declareRateLimit(url, name, limit);
      return {
        async insert(label, count) {
          await setPaused(url, 'api', true);
          const bodies = batches('api', label, count);
          const startMs = clock.monotonicMs();
          await postAll(url, bodies, 1);
          return (clock.monotonicMs() - startMs) / 1000;
        },
        async drain(count) {
          const goal = (await upstream.count()) + count;
          await setPaused(url, 'api', false);
          while ((await upstream.count()) < goal) await clock.sleep(pollMs);
        },
        latency: async (label, count) => (await timePosts(url, upstream, items(label, count))).toCall,
        async close() {
          await Promise.all(services.map((service) => service.stop()));
        },
      };
    },
  };
}
