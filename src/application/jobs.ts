/** One job with all that is known of it, as a client may see it: its own headers are masked but for harmless ones. */
import { validate as isUuid } from 'uuid';
import type { Definitions } from '../domain/definitions.ts';
import { ProblemError } from '../domain/errors.ts';
import { isEnded } from '../domain/state-machine.ts';
import type { Database } from '../postgres/database.ts';
import {
  readAttempts,
  readJob,
  readReconciliations,
  type StoredAttempt,
  type StoredJob,
  type StoredReconciliation,
} from '../postgres/read-jobs.ts';
import { readReceipts } from '../postgres/receipts.ts';

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
  /** Calls that asked what became of an attempt. */
  readonly reconciliations: readonly StoredReconciliation[];
  /** The answer that ended it: of an attempt, or as the receiver told it. */
  readonly response: Response | null;
}

type Response = Pick<StoredAttempt, 'excerpt' | 'truncated' | 'sha256'> & { readonly status: number };

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
    reconciliations: await readReconciliations(database, jobId),
    response: await responseOf(database, tenant, job, attempts),
  };
}

async function responseOf(
  database: Database,
  tenant: string,
  { state, status, evidence, idempotencyKey, jobId }: StoredJob,
  attempts: readonly StoredAttempt[],
): Promise<Response | null> {
  if (!isEnded(state) || status === null) return null;
  if (evidence === 'receipt') {
    const [receipt] = await readReceipts(database, tenant, [idempotencyKey]);
    // The receipt goes with its key, before the job.
    return receipt?.jobId === jobId
      ? { ...receipt, status }
      : { status, excerpt: null, truncated: false, sha256: null };
  }
  const attempt = attempts.findLast((each) => each.status === status);
  return attempt === undefined ? null : { ...attempt, status };
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
