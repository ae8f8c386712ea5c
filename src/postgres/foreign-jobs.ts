/** Which of some jobs are another tenant's: what is shown of the whole (cooldowns, workers) names jobs of all. Index used: jobs_pkey. */
import type { Database } from './database.ts';

export async function foreignJobs(
  database: Database,
  tenant: string,
  jobIds: readonly string[],
): Promise<ReadonlySet<string>> {
  if (jobIds.length === 0) return new Set();
  const rows = await database.query<{ id: string }>(
    'select j.id from sluice.jobs j where j.id = any ($1::uuid[]) and j.tenant <> $2',
    [jobIds, tenant],
  );
  return new Set(rows.map(({ id }) => id));
}
