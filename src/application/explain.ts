/** Why a job has not run: its rows, windows and cooldowns under the definitions in force, judged by `domain/explain.ts`. */
import { validate as isUuid } from 'uuid';
import { coveringLimits, type Definitions } from '../domain/definitions.ts';
import { ProblemError } from '../domain/errors.ts';
import { type Explanation, explainWait } from '../domain/explain.ts';
import type { JobState } from '../domain/job.ts';
import { readWait } from '../postgres/read-waits.ts';
import type { JobDependencies } from './jobs.ts';

export interface JobExplanation extends Explanation {
  readonly jobId: string;
  readonly state: JobState;
}

/** Changes nothing. Throws a ProblemError `not_found`, also for a job of another tenant. */
export async function explainJob(deps: JobDependencies, tenant: string, jobId: string): Promise<JobExplanation> {
  const definitions = await deps.definitions.current();
  const wait = isUuid(jobId)
    ? await readWait(deps.database, { tenant, jobId }, (upstream, queue) => rulesOf(definitions, upstream, queue))
    : null;
  if (wait === null) throw new ProblemError('not_found', `there is no job ${jobId}`);
  const { queue, upstream, partitionKey, order, windows } = wait;
  const explanation = explainWait({
    ...wait,
    queuePaused: definitions.queues.get(queue)?.paused ?? false,
    upstreamPaused: definitions.upstreams.get(upstream)?.paused ?? false,
    fifo: isFifo(definitions, queue) ? order : null,
    windows: windows.map(({ limit, state, paused, inFlight }) => {
      const rule = definitions.rateLimits.get(limit)!;
      return {
        name: limit,
        partitionKey: rule.by_partition ? partitionKey : null,
        rule,
        stored: state,
        paused,
        inFlight,
      };
    }),
  });
  return { ...explanation, jobId, state: wait.state };
}

function rulesOf(definitions: Definitions, upstream: string, queue: string) {
  const limits = coveringLimits(definitions, upstream, queue);
  return {
    fifo: isFifo(definitions, queue),
    limits: limits.map((name) => ({ name, byPartition: definitions.rateLimits.get(name)!.by_partition })),
  };
}

function isFifo(definitions: Definitions, queue: string): boolean {
  return definitions.queues.get(queue)?.ordering === 'fifo';
}
