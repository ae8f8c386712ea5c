/**
 * What one claim of 64 jobs touches and how long it takes, by how much waits in closed lanes and by how many lanes are
 * closed. Each claim is explained and rolled back, so that the next one finds the same.
 */
import { randomUUID } from 'node:crypto';
import { putDefinition } from '../src/application/manage-definitions.ts';
import type { Database } from '../src/postgres/database.ts';
import { withClient } from '../src/postgres/database.ts';
import { registerWorker } from '../src/postgres/leases.ts';
import { systemClock as clock } from '../src/system/clock.ts';
import { type ClosedWork, fillClosedLanes, fillOpenLane, perHour, settleDown } from './closed-lanes.ts';
import { type Spread, spread } from './figures.ts';
import type { BenchDatabase, Stage } from './stage.ts';

export interface ClaimCost extends ClosedWork {
  readonly claimed: number;
  /** Pages hit or read by one claim. */
  readonly buffers: Spread;
  /** Milliseconds in the database. */
  readonly ms: Spread;
}

export interface ClaimCosts {
  readonly slots: number;
  /** The same number of lanes, ever more jobs. */
  readonly byBacklog: readonly ClaimCost[];
  /** Ever more lanes. */
  readonly byLanes: readonly ClaimCost[];
  /** Holds the last of `byLanes`. */
  readonly lastDatabase: BenchDatabase;
}

const slots = 64;
/** PostgreSQL settles for a plan after five executions. */
const warmUps = 10;
const claims = 21;

export async function measureClaimCosts(
  stage: Stage,
  { byBacklog, byLanes }: { byBacklog: readonly ClosedWork[]; byLanes: readonly ClosedWork[] },
): Promise<ClaimCosts> {
  const backlog = await prepare(stage, 'backlog');
  const lanes = await prepare(stage, 'lanes');
  return {
    slots,
    byBacklog: await costs(backlog, byBacklog),
    byLanes: await costs(lanes, byLanes),
    lastDatabase: lanes,
  };
}

/** A database with one upstream, under a limit per partition key. */
async function prepare(stage: Stage, name: string): Promise<BenchDatabase> {
  const target = await stage.createDatabase(name);
  const deps = { database: target.database, clock, secrets: new Set<string>() };
  await putDefinition(deps, 'upstreams', 'api', { base_url: 'http://127.0.0.1:9', allow_private_addresses: true });
  await putDefinition(deps, 'rate_limits', 'each', {
    limit: perHour,
    per: 3600,
    by_partition: true,
    upstreams: ['api'],
  });
  return target;
}

async function costs(target: BenchDatabase, steps: readonly ClosedWork[]): Promise<ClaimCost[]> {
  const workerId = randomUUID();
  await registerWorker(target.database, { workerId, host: 'bench', pid: process.pid, concurrency: slots }, 86_400);
  const found: ClaimCost[] = [];
  for (const [i, step] of steps.entries()) {
    await fillClosedLanes(target, step);
    if (i === 0) await fillOpenLane(target, 10 * slots);
    await settleDown(target);
    found.push({ ...step, ...(await costOfClaims(target.database, workerId)) });
  }
  return found;
}

interface Explained {
  readonly 'Execution Time': number;
  readonly Plan: {
    readonly 'Actual Rows': number;
    readonly 'Shared Hit Blocks': number;
    readonly 'Shared Read Blocks': number;
  };
}

async function costOfClaims(
  database: Database,
  workerId: string,
): Promise<Pick<ClaimCost, 'claimed' | 'buffers' | 'ms'>> {
  return withClient(database, async (client) => {
    const explain = async (): Promise<Explained> => {
      await client.query('begin');
      const { rows } = await client.query<{ 'QUERY PLAN': [Explained] }>(
        `explain (analyze, buffers, format json) select * from sluice.claim_jobs('${workerId}'::uuid, ${slots})`,
      );
      await client.query('rollback');
      return rows[0]!['QUERY PLAN'][0];
    };
    for (let i = 0; i < warmUps; i += 1) await explain();
    const plans: Explained[] = [];
    for (let i = 0; i < claims; i += 1) plans.push(await explain());
    return {
      // The last row is the summary.
      claimed: plans[0]!.Plan['Actual Rows'] - 1,
      buffers: spread(plans.map(({ Plan }) => Plan['Shared Hit Blocks'] + Plan['Shared Read Blocks'])),
      ms: spread(plans.map((plan) => plan['Execution Time'])),
    };
  });
}
