/** The same drain by one, two and three replicas: on one machine they share its processors, so this shows what they cost. */
import { runContender } from './contender.ts';
import { type Spread, spread } from './figures.ts';
import { sluice } from './sluice-contender.ts';
import type { Stage } from './stage.ts';

export interface ReplicaFigures {
  readonly jobs: number;
  readonly byReplicas: ReadonlyArray<{ readonly replicas: number; readonly callsPerSecond: Spread }>;
}

export async function measureReplicas(
  stage: Stage,
  { jobs, runs }: { jobs: number; runs: number },
): Promise<ReplicaFigures> {
  const all = [1, 2, 3].map((replicas) => ({
    replicas,
    contender: sluice(`${replicas} replicas`, { replicas }),
    rates: [] as number[],
  }));
  for (let run = 0; run < runs; run += 1) {
    for (const { contender, rates } of all) rates.push((await runContender(stage, contender, jobs)).callsPerSecond);
  }
  return { jobs, byReplicas: all.map(({ replicas, rates }) => ({ replicas, callsPerSecond: spread(rates) })) };
}
