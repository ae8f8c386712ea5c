/**
 * Jobs that are named where operators look at the whole: the one that met a throttle, those that workers run. Of another
 * tenant's job, which could not be read anyway, the id is null.
 */
import type { Database } from '../postgres/database.ts';
import { foreignJobs } from '../postgres/foreign-jobs.ts';

/** Gives an id back, or null if it is of another tenant. */
export type JobName = (jobId: string | null) => string | null;

/** @param jobIds those that are to be shown; null: none */
export async function jobNames(
  { database }: { readonly database: Database },
  tenant: string,
  jobIds: Iterable<string | null>,
): Promise<JobName> {
  const asked = [...new Set(jobIds)].filter((id) => id !== null);
  const foreign = await foreignJobs(database, tenant, asked);
  return (jobId) => (jobId === null || foreign.has(jobId) ? null : jobId);
}
