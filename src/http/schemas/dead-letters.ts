/** What narrows dead letters, and what a redrive takes and gives. */
import { z } from 'zod';

export const deadLetterFilters = {
  state: z.enum(['failed', 'held']).optional().describe('Only jobs in this state'),
  reason: z.string().optional().describe('Only jobs with this `reason`, as `attempts_exhausted` or `outcome_unknown`'),
  upstream: z.string().optional().describe('Only jobs of this upstream'),
  queue: z.string().optional().describe('Only jobs of this queue'),
  batch_id: z.uuid().optional().describe('Only jobs that this batch has brought'),
};

const filterSchema = z.strictObject(deadLetterFilters);

export type DeadLetterFilters = z.output<typeof filterSchema>;

/** A larger number is a matter for a filter. */
const mostJobIds = 10_000;

export const redriveRequestSchema = z
  .strictObject({
    filter: filterSchema.optional().describe('All dead letters that it fits; empty: all there are'),
    job_ids: z
      .array(z.uuid())
      .min(1)
      .max(mostJobIds)
      .optional()
      .describe('These jobs, as far as they are dead letters'),
    fresh_key: z
      .boolean()
      .default(false)
      .describe('Send a new idempotency key with each; jobs with a call whose outcome is not known are skipped'),
  })
  .refine(({ filter, job_ids }) => (filter === undefined) !== (job_ids === undefined), {
    error: 'give either a filter or job_ids',
  })
  .meta({ id: 'Redrive', description: 'Which dead letters go on their way again: either `filter` or `job_ids`' });

export const redriveAnswerSchema = z
  .object({
    redriven: z.number().int().describe('On their way again'),
    skipped: z
      .number()
      .int()
      .describe(
        'Left as they are: not dead letters (any more), or not to be retried as things are; retry one by itself to see why',
      ),
  })
  .meta({ id: 'Redriven', description: 'What a redrive has done' });
