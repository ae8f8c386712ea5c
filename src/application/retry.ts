/**
 * A person sends jobs on their way again: one by its id, or dead letters in bulk. Budgets start anew, the key stays unless a
 * fresh one is asked for; see postgres/retry-jobs.ts for what the store makes sure of.
 */
import { ProblemError } from '../domain/errors.ts';
import { type RetryableState, type RetryOutcome, retryJobs } from '../postgres/retry-jobs.ts';
import { getJob, type JobDependencies, type JobView } from './jobs.ts';

const retryable: readonly RetryableState[] = ['failed', 'cancelled', 'expired', 'held'];

/**
 * Makes an ended or held job ready again. Throws ProblemError `not_found`, and `conflict` with its state where that makes no
 * sense: it has succeeded, or goes on by itself; a fresh key is asked for and the outcome of a call is not known; its upstream
 * is gone; its key was forgotten and is another job's.
 */
export async function retryJob(
  deps: JobDependencies,
  tenant: string,
  jobId: string,
  { freshKey }: { readonly freshKey: boolean },
): Promise<JobView> {
  await getJob(deps, tenant, jobId);
  const [outcome] = await retryJobs(deps.database, { tenant, jobIds: [jobId], from: retryable, freshKey });
  const job = await getJob(deps, tenant, jobId);
  if (outcome!.kind === 'retried') return job;
  throw new ProblemError('conflict', `the job is ${job.state}: ${whyNot(outcome!)}`, { state: job.state });
}

function whyNot(outcome: Exclude<RetryOutcome, { kind: 'retried' }>): string {
  switch (outcome.kind) {
    case 'elsewhere':
      return `only jobs that are ${retryable.join(', ')} can be sent on their way again`;
    case 'outcome_unknown':
      return 'a call was sent and its answer never seen, so a fresh key could do its work twice; retry it with its own key, or put a receipt';
    case 'undefined':
      return `the queue "${outcome.queue}" or the upstream "${outcome.upstream}" is not defined any more`;
    case 'key_taken':
      return 'its key was forgotten after its retention, and has been taken by another job since';
  }
}
