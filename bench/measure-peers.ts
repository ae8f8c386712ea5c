/** The service beside its peers: runs of all alternate, so that what else the machine does falls on each of them. */
import { type Contender, latencyOf, runContender } from './contender.ts';
import { percentile, type Spread, spread } from './figures.ts';
import { peers } from './peers.ts';
import { sluiceContenders } from './sluice-contender.ts';
import type { Stage } from './stage.ts';

export interface PeerFigures {
  readonly jobs: number;
  readonly latencyJobs: number;
  readonly contenders: readonly ContenderFigures[];
  readonly notMeasured: readonly string[];
}

export interface ContenderFigures extends Pick<Contender, 'name' | 'settings' | 'kind'> {
  /** Of a run. */
  readonly jobs: number;
  readonly callsPerSecond: Spread;
  readonly insertedPerSecond: Spread;
  /** Milliseconds from a send to its start, of one run each; null: not measured. */
  readonly p50Ms: Spread | null;
  readonly p99Ms: Spread | null;
}

export interface PeerRunOptions {
  readonly jobs: number;
  readonly runs: number;
  readonly latencyJobs: number;
}

export async function measurePeers(stage: Stage, { jobs, runs, latencyJobs }: PeerRunOptions): Promise<PeerFigures> {
  const { contenders: others, notMeasured } = peers();
  const all = [...sluiceContenders, ...others].map((contender) => ({
    contender,
    jobs: Math.ceil(jobs * (contender.share ?? 1)),
    calls: [] as number[],
    inserted: [] as number[],
    p50: [] as number[],
    p99: [] as number[],
  }));
  for (let run = 0; run < runs; run += 1) {
    for (const each of all) {
      const { callsPerSecond, insertedPerSecond } = await runContender(stage, each.contender, each.jobs);
      each.calls.push(callsPerSecond);
      each.inserted.push(insertedPerSecond);
    }
    for (const each of all.filter(({ contender }) => contender.timed)) {
      const took = await latencyOf(stage, each.contender, Math.ceil(latencyJobs * (each.contender.latencyShare ?? 1)));
      each.p50.push(percentile(took, 50));
      each.p99.push(percentile(took, 99));
    }
  }
  return {
    jobs,
    latencyJobs,
    notMeasured,
    contenders: all.map((each) => ({
      name: each.contender.name,
      settings: each.contender.settings,
      kind: each.contender.kind,
      jobs: each.jobs,
      callsPerSecond: spread(each.calls),
      insertedPerSecond: spread(each.inserted),
      p50Ms: each.contender.timed ? spread(each.p50) : null,
      p99Ms: each.contender.timed ? spread(each.p99) : null,
    })),
  };
}
