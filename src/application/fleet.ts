/** The fleet as operators see it: its workers and what they run, and how the whole store stands. */
import type { Database } from '../postgres/database.ts';
import { readStats, type Stats } from '../postgres/read-stats.ts';
import { type LiveWorker, readWorkers } from '../postgres/read-workers.ts';

interface FleetDependencies {
  readonly database: Database;
}

/** Live workers by id; `next`: pass as `after` for the rest, null where there is none. */
export async function listWorkers(
  { database }: FleetDependencies,
  { after, limit }: { readonly after: string | null; readonly limit: number },
): Promise<{ readonly items: readonly LiveWorker[]; readonly next: string | null }> {
  const workers = await readWorkers(database, after, limit + 1);
  if (workers.length <= limit) return { items: workers, next: null };
  const items = workers.slice(0, limit);
  return { items, next: items.at(-1)!.workerId };
}

/** Counts, rates and ages, of all tenants. */
export function getStats({ database }: FleetDependencies): Promise<Stats> {
  return readStats(database);
}
