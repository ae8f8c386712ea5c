/** From POST to call on a service that has nothing else to do. */
import { items } from './calls-to-make.ts';
import { percentile } from './figures.ts';
import { postToCallMs } from './post-to-call.ts';
import { declareUpstream } from './service-client.ts';
import type { Stage } from './stage.ts';

export interface LatencyFigures {
  readonly jobs: number;
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
  await postToCallMs(service.url, upstream, items('warm', warmUps));
  const took = await postToCallMs(service.url, upstream, items('call', jobs));
  await service.stop();
  await upstream.close();
  return { jobs, p50Ms: percentile(took, 50), p99Ms: percentile(took, 99), mostMs: took.at(-1)! };
}
