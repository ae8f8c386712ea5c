/** Jobs: all that is known of one, and lists of them. */
import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import { getJob, type JobDependencies, type JobView } from '../../application/jobs.ts';
import { listJobs } from '../../application/lists.ts';
import type { JobSummary } from '../../postgres/job-summary.ts';
import type { ListedJob } from '../../postgres/list-jobs.ts';
import type { StoredAttempt } from '../../postgres/read-jobs.ts';
import { idInPath } from '../schemas/ids.ts';
import { type attemptSchema, jobFilters, jobSchema, jobSummarySchema } from '../schemas/jobs.ts';
import { decodeCursor, encodeCursor, listOf, listParameters, shortPages } from '../schemas/lists.ts';

export function jobRoutes(app: FastifyInstance, deps: JobDependencies): void {
  app.withTypeProvider<ZodTypeProvider>().get(
    '/v1/jobs/:job_id',
    {
      config: { scope: 'read' },
      schema: {
        summary: 'Read a job',
        description: 'With the calls made for it so far.',
        tags: ['jobs'],
        params: z.object({ job_id: idInPath }),
        response: { 200: jobSchema.describe('As it stands') },
      },
    },
    async (request) => showJob(await getJob(deps, request.principal.tenant, request.params.job_id)),
  );

  app.withTypeProvider<ZodTypeProvider>().get(
    '/v1/jobs',
    {
      config: { scope: 'read' },
      schema: {
        summary: 'List jobs',
        description: `Newest first. ${shortPages}`,
        tags: ['jobs'],
        querystring: z.strictObject({ ...listParameters, ...jobFilters }),
        response: { 200: listOf(jobSummarySchema).describe('A page of jobs') },
      },
    },
    async (request) => {
      const { state, queue, upstream, batch_id, idempotency_key, correlation_id, cursor, limit } = request.query;
      const filter = {
        states: state === undefined ? null : [state],
        reason: null,
        queue: queue ?? null,
        upstream: upstream ?? null,
        batchId: batch_id ?? null,
        key: idempotency_key ?? null,
        correlationId: correlation_id ?? null,
      };
      const before = decodeCursor(z.uuid(), cursor) ?? null;
      const { items, next } = await listJobs(deps, { tenant: request.principal.tenant, filter, before, limit });
      return { items: items.map(showSummary), next_cursor: next === null ? null : encodeCursor(next) };
    },
  );
}

/** A job as GET and its levers show it. */
export function showJob(job: JobView): z.output<typeof jobSchema> {
  return {
    ...showCommon(job),
    headers: { ...job.headers },
    ...(job.body === null ? {} : { [job.bodyIsText ? 'body_text' : 'body']: JSON.parse(job.body) as unknown }),
    response: showResponse(job.response),
    attempts: job.attempts.map(showAttempt),
    reconciliations: job.reconciliations.map(({ at, status, verdict }) => ({ at: at.toISOString(), status, verdict })),
  };
}

/** A job in a list. */
export function showSummary(job: ListedJob): z.output<typeof jobSummarySchema> {
  const { status, response } = job;
  return {
    ...showCommon(job),
    response:
      status === null ? null : { status, truncated: response?.truncated ?? false, sha256: response?.sha256 ?? null },
  };
}

function showCommon(job: JobSummary): Omit<z.output<typeof jobSummarySchema>, 'response'> {
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
    created_at: job.createdAt.toISOString(),
    ended_at: iso(job.endedAt),
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
