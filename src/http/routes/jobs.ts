/** Jobs: all that is known of one. */
import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import { getJob, type JobDependencies, type JobView } from '../../application/jobs.ts';
import type { StoredAttempt } from '../../postgres/read-jobs.ts';
import { type attemptSchema, jobSchema } from '../schemas/jobs.ts';

export function jobRoutes(app: FastifyInstance, deps: JobDependencies): void {
  app.withTypeProvider<ZodTypeProvider>().get(
    '/v1/jobs/:job_id',
    {
      config: { scope: 'read' },
      schema: {
        summary: 'Read a job',
        description: 'With the calls made for it so far.',
        tags: ['jobs'],
        params: z.object({ job_id: z.string() }),
        response: { 200: jobSchema.describe('As it stands') },
      },
    },
    async (request) => showJob(await getJob(deps, request.principal.tenant, request.params.job_id)),
  );
}

/** A job as GET and its levers show it. */
export function showJob(job: JobView): z.output<typeof jobSchema> {
  return {
    job_id: job.jobId,
    batch_id: job.batchId,
    idempotency_key: job.idempotencyKey,
    key_source: job.keySource,
    queue: job.queue,
    upstream: job.upstream,
    partition_key: job.partitionKey,
    method: job.method,
    path: job.path,
    headers: { ...job.headers },
    ...(job.body === null ? {} : { [job.bodyIsText ? 'body_text' : 'body']: JSON.parse(job.body) as unknown }),
    state: job.state,
    reason: job.reason,
    // The store keeps the rank, which grows as the priority falls; -0 is no number of JSON.
    priority: 0 - job.rank,
    cost: job.cost,
    payload_version: job.payloadVersion,
    correlation_id: job.correlationId,
    run_at: iso(job.runAt),
    expires_at: iso(job.expiresAt),
    next_eligible_at: iso(job.nextEligibleAt),
    lease_expires_at: iso(job.leaseExpiresAt),
    max_attempts: job.maxAttempts,
    attempts_used: job.attemptsUsed,
    throttles: job.throttles,
    evidence: job.evidence,
    response: showResponse(job.response),
    created_at: job.createdAt.toISOString(),
    ended_at: iso(job.endedAt),
    attempts: job.attempts.map(showAttempt),
    reconciliations: job.reconciliations.map(({ at, status, verdict }) => ({ at: at.toISOString(), status, verdict })),
  };
}

function showResponse(response: JobView['response']): z.output<typeof jobSchema>['response'] {
  if (response === null) return null;
  const { status, excerpt, truncated, sha256 } = response;
  return { status, excerpt, truncated, sha256 };
}

function showAttempt(attempt: StoredAttempt): z.output<typeof attemptSchema> {
  return {
    number: attempt.number,
    epoch: attempt.epoch,
    worker_id: attempt.workerId,
    outcome: attempt.outcome,
    charged: attempt.charged,
    status: attempt.status,
    started_at: attempt.startedAt.toISOString(),
    sent_at: iso(attempt.sentAt),
    ended_at: attempt.endedAt.toISOString(),
    slot_wait_ms: attempt.slotWaitMs,
    retry_after_ms: attempt.retryAfterMs,
    retry_after_capped: attempt.retryAfterCapped,
    excerpt: attempt.excerpt,
    truncated: attempt.truncated,
    sha256: attempt.sha256,
    error: attempt.error,
    late: showLate(attempt),
  };
}

function showLate({ lateOutcome, lateStatus, lateAt }: StoredAttempt): z.output<typeof attemptSchema>['late'] {
  if (lateOutcome === null || lateAt === null) return null;
  return { outcome: lateOutcome, status: lateStatus, at: lateAt.toISOString() };
}

function iso(time: Date | null): string | null {
  return time?.toISOString() ?? null;
}
