/** When batches are expected to be done: what is stored, or what would be, judged by `domain/eta.ts`. */
import { projectEnd } from '../domain/eta.ts';
import type { RequestedJob } from '../domain/submission.ts';
import type { Database } from '../postgres/database.ts';
import { type AddedWork, type EtaQuestion, readEtaFacts } from '../postgres/read-eta.ts';

export interface Eta {
  readonly at: Date;
  /** The rate limit, or the cooling upstream, that decides it; null: neither does. */
  readonly limitedBy: string | null;
}

/** Of a batch with unfinished jobs. null: it stands still, or nobody can say. @param items how many it has */
export function estimateBatch(
  database: Database,
  { tenant, batchId, items }: { readonly tenant: string; readonly batchId: string; readonly items: number },
): Promise<Eta | null> {
  return estimate(database, { tenant, jobs: { batchId, items }, added: [] });
}

/** Of a batch that is not stored. @param jobIds jobs that are there and would be behind it */
export function estimateSubmission(
  database: Database,
  {
    tenant,
    jobs,
    jobIds,
    nowUs,
  }: {
    readonly tenant: string;
    readonly jobs: readonly RequestedJob[];
    readonly jobIds: readonly string[];
    readonly nowUs: number;
  },
): Promise<Eta | null> {
  return estimate(database, { tenant, jobs: { ids: jobIds }, added: byLane(jobs, nowUs) });
}

async function estimate(database: Database, question: EtaQuestion): Promise<Eta | null> {
  const end = projectEnd(await readEtaFacts(database, question));
  return end === null ? null : { at: new Date(Math.ceil(end.atUs / 1_000)), limitedBy: end.limitedBy };
}

function byLane(jobs: readonly RequestedJob[], nowUs: number): AddedWork[] {
  const lanes = new Map<string, AddedWork>();
  for (const { queue, upstream, partitionKey, cost, runAt } of jobs) {
    const lane = { queue, upstream, partitionKey: partitionKey ?? '' };
    const name = JSON.stringify(lane);
    const { count, cost: sum, scheduled } = lanes.get(name) ?? { count: 0, cost: 0, scheduled: null };
    const atUs = runAt === null ? 0 : Date.parse(runAt) * 1_000;
    const later = scheduled ?? { count: 0, cost: 0, firstUs: atUs, lastUs: atUs };
    lanes.set(name, {
      ...lane,
      count: count + 1,
      cost: sum + cost,
      scheduled:
        atUs <= nowUs
          ? scheduled
          : {
              count: later.count + 1,
              cost: later.cost + cost,
              firstUs: Math.min(later.firstUs, atUs),
              lastUs: Math.max(later.lastUs, atUs),
            },
    });
  }
  return [...lanes.values()];
}
