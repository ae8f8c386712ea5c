/**
 * Shapes of batches: what is sent, and what comes back. The item and the envelope are apart, because each item is checked
 * alone (`http/read-submission.ts`): a bad one is rejected and sinks no other, while a bad envelope is refused as a whole.
 */
import { z } from 'zod';
import { definitionName } from '../../domain/definitions.ts';
import { keyFault, maxKeyLength } from '../../domain/idempotency.ts';
import { maxItems } from '../../domain/submission.ts';
import { faultSchema, problemSchema } from '../problem-details.ts';
import { integerParameter } from './lists.ts';

const int32Max = 2_147_483_647;
const verdict = z.enum(['accepted', 'duplicate', 'conflict', 'rejected']);
const keySource = z.enum(['given', 'derived']).describe('`derived`: the service made the key from the request');
export const jobState = z.enum([
  'scheduled',
  'ready',
  'running',
  'succeeded',
  'failed',
  'held',
  'cancelled',
  'expired',
]);
/** Times leave as RFC 3339 in UTC with milliseconds. */
export const instant = z.iso.datetime({ precision: 3 });

/** The rules of keys, for other names that a client gives. */
const name = z
  .string()
  .refine((text) => keyFault(text) === null, {
    error: ({ input }) => keyFault(String(input)) ?? 'is not valid',
  })
  .describe(
    `1 to ${maxKeyLength} Unicode code points; no control characters, no lone surrogates, no white space at the ends`,
  );

/** PostgreSQL's and RFC 3339's years in common. */
const firstInstant = Date.UTC(1970, 0, 1);
const lastInstant = Date.UTC(9999, 11, 31);
const sentInstant = z.iso
  .datetime({ offset: true, abort: true, error: 'must be a time with an offset, as RFC 3339 has it' })
  .refine((text) => Date.parse(text) >= firstInstant && Date.parse(text) <= lastInstant, {
    error: 'must be in the years 1970 to 9999',
  });

export const itemSchema = z.strictObject({
  idempotency_key: z
    .string()
    .nullable()
    .optional()
    .describe(
      `Names the intent, within the tenant: 1 to ${maxKeyLength} Unicode code points, no control characters, no lone surrogates, no white space at the ends; compared code point by code point. Required unless \`derive_keys\` is true`,
    ),
  upstream: definitionName.optional().describe('The upstream to call; required here or in `defaults`'),
  method: z.enum(['GET', 'POST', 'PUT', 'PATCH', 'DELETE']).optional().describe('Default: POST'),
  path: z
    .string()
    .max(8192)
    .optional()
    .describe(
      'Starts with `/`, may carry a query; appended to the base URL of the upstream. Required here or in `defaults`',
    ),
  headers: z
    .record(z.string(), z.string().max(8192))
    .optional()
    .describe(
      "Headers of the call. Not allowed: headers of the connection, `host`, `content-length`, `Sluice-*` and the upstream's idempotency header. Replaces those of `defaults` as a whole",
    ),
  body: z
    .unknown()
    .optional()
    .describe(
      'Any JSON, sent equal in value (numbers as doubles). An integer beyond 2^53-1 or a number beyond the range of a double is rejected as `unsafe_number`: use `body_text`. No body and `null` differ',
    ),
  body_text: z
    .string()
    .optional()
    .describe('Instead of `body`: sent byte for byte as UTF-8, with the `content-type` of `headers`'),
  queue: definitionName.optional().describe('Default: the queue of the batch'),
  partition_key: name.nullable().optional().describe('The account or credential that a quota belongs to'),
  priority: z
    .number()
    .int()
    .min(-32_768)
    .max(32_767)
    .optional()
    .describe('Higher first within a lane, then the order of acceptance. Default: 0. Not allowed in a fifo queue'),
  run_at: sentInstant.nullable().optional().describe('Not before this time; in the past: now, without a queue jump'),
  expires_at: sentInstant.nullable().optional().describe('Not started after this time'),
  cost: z
    .number()
    .int()
    .min(1)
    .max(int32Max)
    .optional()
    .describe('Taken from each rate limit that covers it. Default: 1'),
  max_attempts: z.number().int().min(1).max(1000).nullable().optional().describe("Default: the upstream's"),
  payload_version: z
    .string()
    .regex(/^[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?$/, 'must be 1 to 255 visible ASCII characters')
    .nullable()
    .optional()
    .describe('Goes out as `Sluice-Payload-Version`'),
});

export type SentItem = z.output<typeof itemSchema>;

export const defaultsSchema = itemSchema.omit({ idempotency_key: true });

export type SentDefaults = z.output<typeof defaultsSchema>;

/** The batch without a look into its items. */
export const envelopeSchema = z.strictObject({
  queue: definitionName.optional().describe('The queue of items that name none. Default: `default`'),
  correlation_id: name.nullable().optional().describe('Yours, kept with the batch and its jobs'),
  derive_keys: z
    .boolean()
    .optional()
    .describe('true: an item without a key gets `sluice-` and the hex of its fingerprint. Default: false'),
  defaults: defaultsSchema.optional().describe('Fills what an item leaves out, field by field'),
  items: z.array(z.unknown()),
});

/** For the OpenAPI document: the items are not checked as one. */
export const batchSchema = envelopeSchema
  .extend({
    items: z
      .array(itemSchema)
      .min(1)
      .max(maxItems)
      .describe('Each gets its own verdict; a bad item never sinks another'),
  })
  .meta({ id: 'Batch', description: 'A batch of calls to make' });

const countsSchema = z
  .object({
    total: z.number().int(),
    accepted: z.number().int(),
    duplicate: z.number().int(),
    conflict: z.number().int(),
    rejected: z.number().int(),
  })
  .describe('Items by verdict');

const verdictSchema = z.object({
  index: z.number().int().describe('Place in the batch, from 0'),
  idempotency_key: z.string().nullable().describe('null: none, or not a legal one'),
  key_source: keySource.optional(),
  verdict: verdict.describe(
    '`accepted`: durable, will run. `duplicate`: the key is known with the same request. `conflict`: the key is known with another request. `rejected`: see `errors`',
  ),
  job_id: z.uuid().optional().describe('Of the new job, or of the one that has the key'),
  job_state: jobState.optional(),
  needs_retry: z
    .literal(true)
    .optional()
    .describe('The existing job ended as failed, cancelled or expired; it does not run again by itself'),
  errors: z.array(faultSchema).optional(),
});

/** When a batch is expected to be done. */
export const etaSchema = z
  .object({
    at: instant.describe('When the last of its jobs is expected to end, as things stand'),
    limited_by: z
      .string()
      .nullable()
      .describe(
        'The rate limit that decides it, or the upstream whose cooldown does; null: neither does, but the time of the calls themselves, worker slots, an order, or a `run_at`',
      ),
  })
  .meta({
    id: 'Eta',
    description:
      'Worked out from the rate limits over its jobs and how much of them is used, what stands before it, cooldowns, `run_at` and how its calls have gone so far. It moves as these do',
    examples: [{ at: '2026-12-01T00:01:40.000Z', limited_by: 'stripe' }],
  });

export const batchAnswerSchema = z
  .object({
    batch_id: z.uuid(),
    status: z
      .enum(['processing', 'completed'])
      .describe(
        '`completed`: no job behind it is unfinished, as where all items are rejected; `counts` has the verdicts',
      ),
    created_at: instant,
    correlation_id: z.string().nullable(),
    replayed: z
      .boolean()
      .describe('The request was sent before under the same Idempotency-Key; this is the first answer again'),
    counts: countsSchema,
    items: z.array(verdictSchema).describe('In the order of the items sent'),
  })
  .meta({ id: 'BatchAnswer', description: 'One verdict per item, in order' });

export type BatchAnswer = z.output<typeof batchAnswerSchema>;

/** `?dry_run=true`: what would become of the batch. */
export const dryRunAnswerSchema = batchAnswerSchema
  .extend({
    dry_run: z.literal(true),
    batch_id: z.null().describe('There is none: nothing was stored'),
    replayed: z.literal(false),
    eta: etaSchema.nullable().describe('When it would be done, were it submitted now'),
    items: z
      .array(
        verdictSchema.extend({
          job_id: z
            .uuid()
            .nullable()
            .optional()
            .describe('Of the job that has the key; null where the batch itself would make it'),
        }),
      )
      .describe('In the order of the items sent'),
  })
  .meta({ id: 'DryRunAnswer', description: 'The verdicts that a batch would get, and when it would be done' });

export type DryRunAnswer = z.output<typeof dryRunAnswerSchema>;

/** Of POST /v1/batches. */
export const dryRunParameter = {
  dry_run: z
    .enum(['true', 'false'])
    .optional()
    .describe('true: say what would become of the batch, and store nothing. For JSON batches'),
};

const count = z.number().int().min(0);

const batchStatus = z
  .enum(['incomplete', 'processing', 'completed', 'cancelled'])
  .describe(
    '`incomplete`: it comes as a stream that has not been ended; more items may come. `completed`: all jobs behind it have ended; `held` is no end. `cancelled`: it was called off, and nothing that it has brought goes on',
  );

/** A batch in a list. */
export const batchSummarySchema = z
  .object({
    batch_id: z.uuid(),
    status: batchStatus,
    created_at: instant,
    cancelled_at: instant.nullable().describe('When it was called off'),
    correlation_id: z.string().nullable(),
    counts: countsSchema,
  })
  .meta({ id: 'BatchSummary', description: 'A batch, without what its jobs do' });

const heldBySchema = z
  .object({
    reason: z.literal('fuse').describe("An answer that the upstream's `fuse` lists"),
    job_id: z.uuid().describe('Whose call was answered so; its attempt has the answer'),
    status: z.number().int().describe('Of the answer'),
    at: instant,
  })
  .meta({
    id: 'HeldBy',
    description: 'What has stopped a batch',
    examples: [
      { reason: 'fuse', job_id: '01938f3a-2c4d-7e10-8f00-5a1b2c3d4e5f', status: 401, at: '2026-12-01T00:00:00.000Z' },
    ],
  });

export const batchProgressSchema = z
  .object({
    batch_id: z.uuid(),
    status: batchStatus,
    created_at: instant,
    completed_at: instant.nullable().describe('When the last of its jobs ended'),
    cancelled_at: instant.nullable().describe('When it was called off'),
    correlation_id: z.string().nullable(),
    counts: countsSchema,
    jobs: z
      .object({
        scheduled: count,
        ready: count,
        running: count,
        succeeded: count,
        failed: count,
        held: count,
        cancelled: count,
        expired: count,
      })
      .describe('Jobs behind its accepted and duplicate items, by state'),
    progress: z.number().min(0).max(1).describe('Ended jobs out of all; 1 where there is none'),
    held_by: heldBySchema
      .nullable()
      .describe(
        'The answer that has stopped it: what it has brought is `held` with the reason `fuse` until it is resumed. null: nothing has. Jobs that are held for other reasons, one by one, do not show here',
      ),
    eta: etaSchema
      .nullable()
      .describe(
        'When it is expected to be done. null: it is done; something in its way is paused, or a job of it is held, so that nobody can say; or nothing is known yet from which to tell (no rate limit, and no call made; no worker)',
      ),
  })
  .meta({ id: 'BatchProgress', description: 'How far a batch is' });

export const batchItemSchema = z
  .object({
    index: z.number().int().describe('Place in the batch, from 0'),
    idempotency_key: z.string().nullable(),
    key_source: keySource.nullable(),
    verdict,
    job_id: z.uuid().nullable(),
    job_state: jobState.nullable().describe('As it is now; null where no job is behind the item'),
    response_status: z.number().int().nullable().describe('Of the answer that ended the job'),
    errors: z.array(faultSchema),
  })
  .meta({ id: 'BatchItem', description: 'One item of a batch, and what became of it' });

/** The longest `wait`, in seconds: what the usual proxies let a connection be silent. */
export const maxWaitSeconds = 60;

/** Of GET /v1/batches/{batch_id}. */
export const waitParameter = {
  wait: integerParameter(0, maxWaitSeconds)
    .optional()
    .describe(
      'Seconds to wait for the end of the batch: answers when it is `completed` or `cancelled`, or the time is up, with the batch as it stands then',
    ),
};

/** What `/items` can be narrowed to. */
export const itemFilters = {
  verdict: verdict.optional().describe('Only items with this verdict'),
  state: jobState.optional().describe('Only items whose job is in this state'),
};

/** One line of a stream. */
export const streamLineSchema = itemSchema.meta({
  id: 'StreamLine',
  description: 'One item a line, each at most 1 MiB, any number of them; blank lines are passed over',
});

/** A line of the answer to a stream: a verdict for each line in order, then one that ends it. */
export const streamAnswerSchema = z
  .union([
    verdictSchema.extend({
      replayed: z.literal(true).optional().describe('The line was stored before; this is its first verdict again'),
    }),
    z.object({ summary: batchProgressSchema.describe('The last line of a stream that is complete') }),
    z.object({ error: problemSchema.describe('The last line of a stream that failed; what is stored can be resumed') }),
  ])
  .meta({ id: 'StreamAnswer', description: 'One line of the answer' });

/** A line of the export of `/items`. */
export const exportLineSchema = z
  .union([batchItemSchema, z.object({ error: problemSchema.describe('The last line of an export that broke off') })])
  .meta({ id: 'ExportLine', description: 'One item a line, in their order' });
