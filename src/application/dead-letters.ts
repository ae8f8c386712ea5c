/**
 * Dead letters: jobs that need a person, because they failed or are held. They are listed like any jobs, and sent on their way
 * again in bulk; each step is a transaction of its own, so a redrive that is broken off has done what it has done, and to ask
 * again does the rest.
 */
import type { Database } from '../postgres/database.ts';
import { type JobFilter, type ListedJob, listJobIds } from '../postgres/list-jobs.ts';
import { retryJobs } from '../postgres/retry-jobs.ts';
import type { JobDependencies } from './jobs.ts';
import { listJobs, type Page } from './lists.ts';

type DeadState = 'failed' | 'held';

/** Which of them; null: any. */
export interface DeadLetterFilter {
  readonly state: DeadState | null;
  readonly reason: string | null;
  readonly upstream: string | null;
  readonly queue: string | null;
  readonly batchId: string | null;
}

const deadStates: readonly DeadState[] = ['failed', 'held'];
/** Jobs of one transaction. */
const stepSize = 200;

/** Newest first. @param before null: from the newest */
export function listDeadLetters(
  deps: JobDependencies,
  tenant: string,
  filter: DeadLetterFilter,
  { before, limit }: { readonly before: string | null; readonly limit: number },
): Promise<Page<ListedJob>> {
  return listJobs(deps, { tenant, filter: jobFilterOf(filter), before, limit });
}

/** Which dead letters are to go on their way again. */
export type RedriveSelection = { readonly filter: DeadLetterFilter } | { readonly jobIds: readonly string[] };

export interface Redriven {
  readonly redriven: number;
  /** Not dead, not the tenant's, without an upstream, or (with a fresh key) with a call whose outcome is not known. */
  readonly skipped: number;
}

/** Sends them on their way again, with new budgets and their keys, or each with a fresh one. */
export async function redrive(
  { database }: { readonly database: Database },
  tenant: string,
  selection: RedriveSelection,
  { freshKey }: { readonly freshKey: boolean },
): Promise<Redriven> {
  let redriven = 0;
  let seen = 0;
  for await (const jobIds of steps(database, tenant, selection)) {
    const outcomes = await retryJobs(database, { tenant, jobIds, from: deadStates, freshKey });
    redriven += outcomes.filter(({ kind }) => kind === 'retried').length;
    seen += jobIds.length;
  }
  return { redriven, skipped: seen - redriven };
}

async function* steps(database: Database, tenant: string, selection: RedriveSelection): AsyncGenerator<string[]> {
  if ('jobIds' in selection) {
    const all = [...new Set(selection.jobIds)];
    for (let from = 0; from < all.length; from += stepSize) yield all.slice(from, from + stepSize);
    return;
  }
  const filter = jobFilterOf(selection.filter);
  // Downwards by age: what fails again meanwhile is above, and is not met twice.
  for (let before: string | null = null, first = true; first || before !== null; first = false) {
    const { items, next } = await listJobIds(database, { tenant, filter, before, limit: stepSize });
    if (items.length > 0) yield items;
    before = next;
  }
}

function jobFilterOf({ state, reason, upstream, queue, batchId }: DeadLetterFilter): JobFilter {
  const states = state === null ? deadStates : [state];
  return { states, reason, queue, upstream, batchId, key: null, correlationId: null };
}
