/**
 * What an operator declares: upstreams, rate limits and queues, in one shape for the config file and the admin API.
 * Owns their fields, defaults and bounds (zod), and nothing that needs the other definitions: that is `check-definitions.ts`.
 */
import { z } from 'zod';

export const definitionNamePattern = /^[a-z0-9][a-z0-9._-]{0,62}$/;
export const definitionName = z
  .string()
  .regex(definitionNamePattern, 'must match [a-z0-9][a-z0-9._-]{0,62}')
  .describe('1 to 63 characters: lower case letters, digits, dot, underscore, hyphen; starts with a letter or digit');

/** 31 days in seconds: the longest period of a rate limit. */
export const maxPeriodSeconds = 2_678_400;
const maxTimeoutMs = 900_000;
const int32Max = 2_147_483_647;

const status = z.number().int().min(100).max(599);
const headerName = z.string().regex(/^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/, 'must be a header name (RFC 9110 token)');

export const retryPolicySchema = z.strictObject({
  max_attempts: z
    .number()
    .int()
    .min(1)
    .max(1000)
    .default(5)
    .describe('Attempts a job may spend; throttles are counted apart'),
  base_ms: z
    .number()
    .int()
    .min(1)
    .max(86_400_000)
    .default(500)
    .describe('First backoff, in milliseconds, before jitter'),
  cap_ms: z.number().int().min(1).max(86_400_000).default(30_000).describe('Longest backoff, in milliseconds'),
  max_throttles: z.number().int().min(0).max(1_000_000).default(100).describe('Throttled answers a job may get'),
  retry_after_cap_s: z
    .number()
    .int()
    .min(1)
    .max(maxPeriodSeconds)
    .default(86_400)
    .describe('Longest Retry-After that is believed, in seconds'),
});

export const reconcileSchema = z.strictObject({
  path: z
    .string()
    .regex(/^\//, 'must start with /')
    .describe('GET of this path asks; `{key}` is replaced by the outbound key, percent-encoded'),
  applied_when: z.array(status).min(1).default([200]).describe('The effect is there: the job has succeeded'),
  absent_when: z.array(status).min(1).default([404]).describe('It is not: the job is sent again'),
});

export const upstreamSchema = z.strictObject({
  base_url: z
    .url({ protocol: /^https?$/, error: 'must be an http or https URL' })
    .describe("A job's path is appended and cannot leave it"),
  headers: z
    .record(headerName, z.string().max(8192))
    .default({})
    .describe(
      'Sent with every call. Stored and shown as written, so a credential goes in as `${NAME}` only, which is read from the environment of the process at the time of the call',
    ),
  idempotency_header: headerName
    .nullable()
    .default('Idempotency-Key')
    .describe('Header that carries the key; null: the API knows none'),
  key_ttl_s: z
    .number()
    .int()
    .min(1)
    .max(315_360_000)
    .default(86_400)
    .describe('How long the API remembers a key, in seconds'),
  timeout_ms: z
    .number()
    .int()
    .min(1)
    .max(maxTimeoutMs)
    .default(15_000)
    .describe('For the whole call, body included, in milliseconds'),
  connect_timeout_ms: z.number().int().min(1).max(maxTimeoutMs).default(5_000),
  retry: retryPolicySchema.default(() => retryPolicySchema.parse({})),
  success_statuses: z.array(status).nullable().default(null).describe('Replaces the default (2xx)'),
  retry_statuses: z
    .array(status)
    .nullable()
    .default(null)
    .describe('Replaces the default (408, 425, 5xx); 429 is always a throttle'),
  on_unknown: z
    .enum(['resend', 'hold'])
    .nullable()
    .default(null)
    .describe(
      'What to do when a call was sent and its answer never seen; null: hold for POST and PATCH without an idempotency header, else resend',
    ),
  reconcile: reconcileSchema
    .nullable()
    .default(null)
    .describe(
      'Asks, before anything is sent again, what became of a call whose answer was never seen; spends no attempt. An answer that is neither applied nor absent is asked again with backoff, at most `retry.max_throttles` times in a row; then the job is held',
    ),
  fuse: z
    .strictObject({
      statuses: z
        .array(status)
        .default([401])
        .describe(
          'Statuses of such an answer; `[]`: none. `success_statuses` go before them, and 429 is always a throttle',
        ),
    })
    .default({ statuses: [401] })
    .describe(
      'Answers after which no call of the same batch would do, such as 401 for credentials: the job and the rest of what its batch has brought go on hold, unspent, until `POST /v1/batches/{batch_id}/resume`',
    ),
  paused: z.boolean().default(false),
  allow_private_addresses: z.boolean().default(false),
});

export const rateLimitSchema = z.strictObject({
  limit: z.number().int().min(0).max(int32Max).nullable().describe('Starts per period; 0 pauses; null: no start limit'),
  per: z.number().int().min(1).max(maxPeriodSeconds).default(1).describe('Period in seconds'),
  algorithm: z.enum(['sliding_window', 'fixed_window', 'token_bucket']).default('sliding_window'),
  burst: z.number().int().min(0).max(int32Max).default(0).describe('token_bucket: most tokens; 0: ceil(limit / per)'),
  slack_ms: z
    .number()
    .int()
    .min(0)
    .max(10_000)
    .default(25)
    .describe('Jitter between start and arrival that the bound absorbs, in milliseconds'),
  max_in_flight: z.number().int().min(1).max(1_000_000).nullable().default(null).describe('Leased calls, fleet-wide'),
  by_partition: z.boolean().default(false).describe('One window per partition key'),
  scope: z.enum(['fleet']).default('fleet').describe('Shared by all replicas through the database'),
  shares_cooldown: z.boolean().default(false).describe('A throttle under this limit closes everything under it'),
  upstreams: z.array(definitionName).default([]),
  queues: z.array(definitionName).default([]),
});

export const queueSchema = z.strictObject({
  paused: z.boolean().default(false),
  ordering: z.enum(['none', 'fifo']).default('none'),
});

export type Upstream = z.output<typeof upstreamSchema>;
export type Reconcile = z.output<typeof reconcileSchema>;
export type RetryPolicy = z.output<typeof retryPolicySchema>;
export type RateLimit = z.output<typeof rateLimitSchema>;
export type Queue = z.output<typeof queueSchema>;

/** The three kinds, as paths of the admin API and members of the config file name them. */
export type DefinitionKind = 'upstreams' | 'rate_limits' | 'queues';

/** All definitions in force at one version; `version` grows with every change. */
export interface Definitions {
  readonly version: number;
  readonly upstreams: ReadonlyMap<string, Upstream>;
  readonly rateLimits: ReadonlyMap<string, RateLimit>;
  readonly queues: ReadonlyMap<string, Queue>;
}

/** Names of the limits that cover a job of this upstream and queue, sorted. */
export function coveringLimits(definitions: Definitions, upstream: string, queue: string): string[] {
  const names: string[] = [];
  for (const [name, limit] of definitions.rateLimits) {
    if (limit.upstreams.includes(upstream) || limit.queues.includes(queue)) names.push(name);
  }
  return names.sort();
}

/** Most that one admission can take from a limit: a job with a higher cost can never run. null: anything fits. */
export function largestCost(limit: Pick<RateLimit, 'limit' | 'algorithm' | 'per' | 'burst'>): number | null {
  if (limit.limit === null || limit.limit === 0) return null;
  return limit.algorithm === 'token_bucket' ? tokenBucketBurst(limit.limit, limit.per, limit.burst) : limit.limit;
}

/** Size of a token bucket; 0 stands for one second's worth, rounded up. */
export function tokenBucketBurst(limit: number, perSeconds: number, burst: number): number {
  return burst > 0 ? burst : Math.ceil(limit / perSeconds);
}
