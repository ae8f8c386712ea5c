/** One job with all that is known of it, as a client may see it: its own headers are masked but for harmless ones. */
import { validate as isUuid } from 'uuid';
import type { Definitions } from '../domain/definitions.ts';
import { ProblemError } from '../domain/errors.ts';
import type { Database } from '../postgres/database.ts';
import { endedStates } from '../postgres/job-state.ts';
import { readAttempts, readJob, type StoredAttempt, type StoredJob } from '../postgres/read-jobs.ts';

export interface JobDependencies {
  readonly database: Database;
  readonly definitions: { current(): Promise<Definitions> };
}

export interface JobView extends Omit<StoredJob, 'headers' | 'maxAttempts'> {
  /** Masked. */
  readonly headers: Readonly<Record<string, string>>;
  /** The job's, else the upstream's as it is now; null: the upstream is gone. */
  readonly maxAttempts: number | null;
  readonly attempts: readonly StoredAttempt[];
  /** The attempt whose answer ended it. */
  readonly decidedBy: StoredAttempt | null;
}

/** Throws a ProblemError `not_found`, also for a job of another tenant. */
export async function getJob(
  { database, definitions }: JobDependencies,
  tenant: string,
  jobId: string,
): Promise<JobView> {
  const job = isUuid(jobId) ? await readJob(database, tenant, jobId) : null;
  if (job === null) throw new ProblemError('not_found', `there is no job ${jobId}`);
  const attempts = await readAttempts(database, jobId);
  const upstream = (await definitions.current()).upstreams.get(job.upstream);
  return {
    ...job,
    headers: job.headers === null ? {} : masked(JSON.parse(job.headers) as Record<string, string>),
    maxAttempts: job.maxAttempts ?? upstream?.retry.max_attempts ?? null,
    attempts,
    decidedBy: decidingAttempt(job, attempts),
  };
}

function decidingAttempt({ state, status }: StoredJob, attempts: readonly StoredAttempt[]): StoredAttempt | null {
  if (!endedStates.has(state) || status === null) return null;
  return attempts.findLast((attempt) => attempt.status === status) ?? null;
}

/** Shown as they are; any other header may be a credential, whatever its name (trv-enterprises/ts-store#163). */
const harmlessHeaders: ReadonlySet<string> = new Set([
  'accept',
  'accept-encoding',
  'accept-language',
  'content-language',
  'content-type',
  'user-agent',
]);
const mask = '***';

function masked(headers: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(
    Object.entries(headers).map(([name, value]) => [name, harmlessHeaders.has(name) ? value : mask]),
  );
}
