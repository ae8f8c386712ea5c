/** Rate windows as the admin API shows them, and what its levers take. */
import { z } from 'zod';

const partitionKey = z.string().min(1).max(255);

export const windowCooldownSchema = z.object({
  until: z.iso.datetime(),
  reason: z.string(),
  status: z.number().int().nullable().describe('The answer that closed it; null: an operator did'),
  header: z.string().nullable().describe('The Retry-After that was seen'),
  job_id: z.uuid().nullable().describe('The job that met it; null: none did, or it is of another tenant'),
  at: z.iso.datetime(),
});

export const rateWindowSchema = z
  .object({
    limit: z.string().describe('Name of the rate limit'),
    partition_key: z.string().nullable(),
    state: z
      .enum(['open', 'exhausted', 'cooling', 'probing', 'paused'])
      .describe(
        'exhausted: no room now; cooling: it, or every upstream it covers, is closed until a time; probing: the rate is coming back after that; paused: by an operator, or limit 0',
      ),
    algorithm: z.enum(['sliding_window', 'fixed_window', 'token_bucket']),
    capacity: z.number().int().nullable().describe('The limit, or the size of the bucket; null: no start limit'),
    per: z.number().int().describe('Seconds'),
    used: z.number().int().describe('Cost that counts now'),
    remaining: z.number().int().nullable().describe('Cost that would be admitted now'),
    window_started_at: z.iso.datetime().nullable().describe('Of an open fixed window'),
    resets_at: z.iso.datetime().nullable().describe('When room next grows; null while nothing is used'),
    in_flight: z.number().int().describe('Leased calls of the jobs it covers'),
    cooldown_until: z.iso.datetime().nullable(),
    cooldown: windowCooldownSchema.nullable(),
    waiting_jobs: z.number().int().describe('Jobs that are due under it'),
    permit_ms: z.number().describe('How long an admission may be used'),
  })
  .meta({ id: 'RateWindow' });

export const rateWindowAuditSchema = z
  .object({
    limit: z.string(),
    partition_key: z.string().nullable(),
    per: z.number().int().describe('Seconds'),
    max_starts: z
      .number()
      .int()
      .describe('Largest cost of starts in any interval of one period; their number where each costs 1'),
    at: z.iso.datetime().nullable().describe('Start of the fullest interval; null: nothing was started'),
    bound: z
      .number()
      .int()
      .nullable()
      .describe('Most that the algorithm allows in any interval of one period, wherever it lies'),
    since: z.iso.datetime().describe('From when on starts were counted: as asked for, or as the default came out'),
  })
  .meta({ id: 'RateWindowAudit' });

export const windowTargetSchema = z
  .strictObject({
    partition_key: partitionKey.nullable().optional().describe('Which window of a limit by partition'),
  })
  .nullish();

export const windowCooldownRequestSchema = z.strictObject({
  seconds: z.number().positive().max(2_678_400).describe('From now on; an earlier cooldown is never shortened'),
  reason: z.string().min(1).max(500).default('closed by an operator'),
  partition_key: partitionKey.nullable().optional().describe('Left out of a limit by partition: everything under it'),
});

export const partitionParameter = partitionKey.optional().describe('One window of a limit by partition');
