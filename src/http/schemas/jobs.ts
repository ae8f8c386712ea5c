/** Shapes of jobs and their attempts, as they come back. */
import { z } from 'zod';
import { instant, jobState } from './batches.ts';

const outcome = z.enum(['success', 'rejected', 'throttled', 'error', 'timeout', 'not_sent', 'unknown']);

export const attemptSchema = z
  .object({
    number: z.number().int().describe('From 1; every call counts. Goes out as `Sluice-Attempt`'),
    epoch: z.number().int().describe('Of the lease it was made under'),
    worker_id: z.uuid(),
    outcome,
    charged: z.enum(['attempt', 'throttle', 'none']).describe('What it took from the budgets of the job'),
    status: z.number().int().nullable(),
    started_at: instant,
    sent_at: instant.nullable().describe('When the request left the worker'),
    ended_at: instant,
    slot_wait_ms: z.number().int().nullable().describe('From eligible to admitted'),
    retry_after_ms: z.number().int().nullable().describe('The wait that the answer asked for'),
    retry_after_capped: z.boolean(),
    excerpt: z.string().nullable().describe('First 64 KiB of the answer'),
    truncated: z.boolean().describe('The answer had more than was read'),
    sha256: z.string().nullable().describe('Over what was read of the answer, hex'),
    error: z.string().nullable(),
    late: z
      .object({ outcome, status: z.number().int().nullable(), at: instant })
      .nullable()
      .describe('What its worker saw after the job had gone on without it: evidence, which changes nothing'),
  })
  .meta({ id: 'Attempt', description: 'One call made for a job' });

export const jobSchema = z
  .object({
    job_id: z.uuid(),
    batch_id: z.uuid().describe('The batch that brought it'),
    idempotency_key: z.string(),
    key_source: z.enum(['given', 'derived']),
    queue: z.string(),
    upstream: z.string(),
    partition_key: z.string().nullable(),
    method: z.enum(['GET', 'POST', 'PUT', 'PATCH', 'DELETE']),
    path: z.string(),
    headers: z.record(z.string(), z.string()).describe("The item's own, masked but for a short list of harmless ones"),
    body: z.unknown().optional().describe('Absent where there is none, or where it is `body_text`'),
    body_text: z.string().optional(),
    state: jobState,
    reason: z.string().nullable().describe('Why it failed or is held'),
    priority: z.number().int(),
    cost: z.number().int(),
    payload_version: z.string().nullable(),
    correlation_id: z.string().nullable(),
    run_at: instant.nullable(),
    expires_at: instant.nullable(),
    next_eligible_at: instant
      .nullable()
      .describe('When it may run next; null where it runs, has ended, is held or paused'),
    lease_expires_at: instant.nullable().describe('While it runs'),
    max_attempts: z.number().int().nullable().describe("The job's own, else the upstream's"),
    attempts_used: z.number().int(),
    throttles: z.number().int().describe('Throttled answers, which spend no attempt'),
    evidence: z
      .enum(['response', 'receipt', 'reconciled'])
      .nullable()
      .describe(
        "What tells the end. `response`: the upstream's answer to the call, a success or one that failed the job at once; `receipt`: the receiver's word; `reconciled`: what the upstream said when asked. null: it has not ended, or no answer decided it (a budget was spent, it was cancelled, it expired, its cost fits no limit)",
      ),
    response: z
      .object({
        status: z.number().int(),
        excerpt: z.string().nullable(),
        truncated: z.boolean(),
        sha256: z.string().nullable(),
      })
      .nullable()
      .describe('The answer that ended it'),
    created_at: instant,
    ended_at: instant.nullable(),
    attempts: z.array(attemptSchema),
    reconciliations: z
      .array(
        z.object({
          at: instant,
          status: z.number().int().nullable().describe('null: no answer came'),
          verdict: z
            .enum(['applied', 'absent', 'throttled', 'unclear'])
            .describe('`applied` ends the job, `absent` has it sent again; with the others it is asked again'),
        }),
      )
      .describe('Calls that asked the upstream what became of an attempt; charged nothing'),
  })
  .meta({ id: 'Job', description: 'The call behind an accepted item' });

/** A job in a list: without its headers, its body, its calls, and the text of the answer. */
export const jobSummarySchema = jobSchema
  .omit({ headers: true, body: true, body_text: true, attempts: true, reconciliations: true })
  .extend({
    response: z
      .object({ status: z.number().int(), truncated: z.boolean(), sha256: z.string().nullable() })
      .nullable()
      .describe('The answer that ended it; its excerpt is with the job'),
  })
  .meta({ id: 'JobSummary', description: 'A job, without what can be large' });

/** What a list of jobs can be narrowed to. */
export const jobFilters = {
  state: jobState.optional().describe('Only jobs in this state'),
  queue: z.string().optional().describe('Only jobs of this queue'),
  upstream: z.string().optional().describe('Only jobs of this upstream'),
  batch_id: z.uuid().optional().describe('Only jobs that this batch has brought'),
  idempotency_key: z
    .string()
    .optional()
    .describe('Only jobs with this key: one, or more where a key was forgotten in between'),
  correlation_id: z.string().optional().describe('Only jobs of batches with this correlation id'),
};

/** What `/retry` takes; nothing at all is fine. */
export const retryRequestSchema = z
  .strictObject({
    fresh_key: z
      .boolean()
      .default(false)
      .describe(
        'Send a new idempotency key, for an API that replays the errors it has stored under the old one. Refused while the outcome of a call is not known',
      ),
  })
  .nullish();
