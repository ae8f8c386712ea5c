/**
 * Does it matter how much waits? The same drain and the same latency with 1,000 and with 1,000,000 jobs left waiting: in lanes
 * of the same queue and upstream that are closed, and in the very lane that is worked off. Lanes are closed and opened by
 * SQL, since a pause would open the others when it ends. Runs of both amounts alternate.
 * Pages are those that the service's statements found or read, from the resume to the last call.
 */
import type { Replica } from '../src/cli/demo/replica.ts';
import type { UpstreamProcess } from '../src/simulator/upstream-process.ts';
import { systemClock as clock } from '../src/system/clock.ts';
import { batches, items } from './calls-to-make.ts';
import { closeOpenLane, fillClosedLanes, fillOpenLane, openKey, reopenOpenLane, settleDown } from './closed-lanes.ts';
import { percentile, type Spread, spread } from './figures.ts';
import { postAll } from './measure-intake.ts';
import { timePosts } from './post-to-call.ts';
import { declareUpstream } from './service-client.ts';
import type { BenchDatabase, Stage } from './stage.ts';
import { countStatements, statementCosts, stopCounting } from './statement-costs.ts';

export type Place = 'other lanes' | 'same lane';

export interface BacklogFigures {
  readonly jobs: number;
  readonly latencyJobs: number;
  readonly cases: readonly BacklogCase[];
}

export interface BacklogCase {
  readonly place: Place;
  readonly waiting: number;
  readonly callsPerSecond: Spread;
  readonly buffersPerJob: Spread;
  /** From POST to call, of one run each; null: behind those that wait in its own lane it has no time of its own. */
  readonly p50Ms: Spread | null;
  readonly p99Ms: Spread | null;
}

export interface BacklogOptions {
  readonly jobs: number;
  readonly runs: number;
  readonly latencyJobs: number;
  readonly few: number;
  readonly many: number;
}

const slots = 64;
const closedLanes = 100;
const warmUpJobs = 5_000;
const pollMs = 10;

export async function measureBacklog(stage: Stage, options: BacklogOptions): Promise<BacklogFigures> {
  const { jobs, latencyJobs, few, many } = options;
  const cases: BacklogCase[] = [];
  for (const place of ['other lanes', 'same lane'] as const) cases.push(...(await measurePlace(stage, place, options)));
  return { jobs, latencyJobs, cases: cases.filter(({ waiting }) => waiting === few || waiting === many) };
}

interface Prepared {
  readonly waiting: number;
  readonly target: BenchDatabase;
  readonly upstream: UpstreamProcess;
  readonly service: Replica;
  readonly rates: number[];
  readonly buffers: number[];
  readonly p50: number[];
  readonly p99: number[];
}

async function measurePlace(
  stage: Stage,
  place: Place,
  { jobs, runs, latencyJobs, few, many }: BacklogOptions,
): Promise<BacklogCase[]> {
  const both: Prepared[] = [];
  for (const waiting of [few, many]) both.push(await prepare(stage, place, waiting));
  for (const each of both) await drain(each, 'warm', warmUpJobs);
  for (let run = 0; run < runs; run += 1) {
    for (const each of both) {
      const { callsPerSecond, buffersPerJob } = await drain(each, `run-${run}`, jobs);
      each.rates.push(callsPerSecond);
      each.buffers.push(buffersPerJob);
    }
    if (place === 'same lane') continue;
    for (const { service, upstream, p50, p99 } of both) {
      await timePosts(service.url, upstream, items(`latency-warm-${run}`, 20));
      const { toCall: took } = await timePosts(service.url, upstream, items(`latency-${run}`, latencyJobs));
      p50.push(percentile(took, 50));
      p99.push(percentile(took, 99));
    }
  }
  for (const { service, upstream, target } of both) {
    await service.stop();
    await upstream.close();
    await stage.dropDatabase(target);
  }
  return both.map(({ waiting, rates, buffers, p50, p99 }) => ({
    place,
    waiting,
    callsPerSecond: spread(rates),
    buffersPerJob: spread(buffers),
    p50Ms: p50.length === 0 ? null : spread(p50),
    p99Ms: p99.length === 0 ? null : spread(p99),
  }));
}

async function prepare(stage: Stage, place: Place, waiting: number): Promise<Prepared> {
  const target = await stage.createDatabase(`${place.replace(' ', '_')}_${waiting}`);
  const upstream = await stage.startUpstream();
  const service = await stage.startService(target, { env: { SLUICE_CONCURRENCY: String(slots) } });
  await declareUpstream(service.url, 'api', upstream.url);
  // Closed before there is anything in it: the service runs already.
  await fillOpenLane(target, 0);
  await closeOpenLane(target);
  if (place === 'same lane') await fillOpenLane(target, waiting);
  else await fillClosedLanes(target, { lanes: closedLanes, jobsPerLane: waiting / closedLanes });
  await settleDown(target);
  return { waiting, target, upstream, service, rates: [], buffers: [], p50: [], p99: [] };
}

/** Adds jobs, works off as many, and leaves as many waiting as before (but for those under way when the lane is closed). */
async function drain(
  { target, upstream, service }: Prepared,
  label: string,
  jobs: number,
): Promise<{ callsPerSecond: number; buffersPerJob: number }> {
  await postAll(service.url, batches('api', label, jobs, { defaults: { partition_key: openKey } }), 1);
  const before = await upstream.count();
  await countStatements(target);
  await reopenOpenLane(target);
  while ((await upstream.count()) < before + jobs) await clock.sleep(pollMs);
  await closeOpenLane(target);
  await idle(target);
  const costs = await statementCosts(target);
  await stopCounting(target);
  const { requests } = await upstream.log();
  const calls = requests.slice(before);
  const buffers = costs.reduce((sum, cost) => sum + cost.buffers, 0);
  return {
    callsPerSecond: (jobs * 1000) / (calls[jobs - 1]!.arrivedMs - calls[0]!.arrivedMs),
    buffersPerJob: buffers / calls.length,
  };
}

async function idle({ database }: BenchDatabase): Promise<void> {
  while ((await database.query('select from sluice.running_jobs limit 1')).length > 0) await clock.sleep(pollMs);
}
