/**
 * Jobs that are named where operators look at the whole: the one that met a throttle, those that workers run. Their ids are
 * shown to the tenant that has them; to others, who could not read such a job either, they are null.
 */
import type { Database } from '../postgres/database.ts';
import { ownJobs } from '../postgres/own-jobs.ts';

/** Gives an id back if it is the tenant's, else null. */
export type JobName = (jobId: string | null) => string | null;

/** @param jobIds those that are to be shown; null: none */
export async function jobNames(
  { database }: { readonly database: Database },
  tenant: string,
  jobIds: Iterable<string | null>,
): Promise<JobName> {
  const asked = [...new Set(jobIds)].filter((id) => id !== null);
  const own = await ownJobs(database, tenant, asked);
  return (jobId) => (jobId !== null && own.has(jobId) ? jobId : null);
}
