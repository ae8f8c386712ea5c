/** From POST to call on a service that has nothing else to do, without a limit and under a fleet window far above the speed. */
import { items } from './calls-to-make.ts';
import { percentile } from './figures.ts';
import { timePosts } from './post-to-call.ts';
import { declareRateLimit, declareUpstream } from './service-client.ts';
import type { Stage } from './stage.ts';

export interface LatencyFigures {
  readonly jobs: number;
  readonly toCall: Latency;
  /** Of the POST itself. */
  readonly toAnswer: Latency;
  /** Under a sliding window of 1,000,000 per second. */
  readonly windowed: { readonly toCall: Latency; readonly toAnswer: Latency };
}

export interface Latency {
  readonly p50Ms: number;
  readonly p99Ms: number;
  readonly mostMs: number;
}

const warmUps = 50;

export async function measureLatency(stage: Stage, jobs: number): Promise<LatencyFigures> {
  const target = await stage.createDatabase('latency');
  const upstream = await stage.startUpstream();
  const service = await stage.startService(target);
  await declareUpstream(service.url, 'api', upstream.url);
  // What the parts before this one have written is not to be on its way to the disk.
  await target.database.query('checkpoint');
  const measure = async (label: string) => {
    await timePosts(service.url, upstream, items(`${label}-warm`, warmUps));
    const { toCall, toAnswer } = await timePosts(service.url, upstream, items(label, jobs));
    return { toCall: figuresOf(toCall), toAnswer: figuresOf(toAnswer) };
  };
  const free = await measure('free');
  await declareRateLimit(service.url, 'far-above', { limit: 1_000_000, per: 1, upstreams: ['api'] });
  const windowed = await measure('windowed');
  await service.stop();
  await upstream.close();
  return { jobs, ...free, windowed };
}

const figuresOf = (ms: number[]): Latency => ({
  p50Ms: percentile(ms, 50),
  p99Ms: percentile(ms, 99),
  mostMs: ms.at(-1)!,
});
