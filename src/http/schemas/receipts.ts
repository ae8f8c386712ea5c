/** Shapes of receipts: what became of a key, and what a receiver says about its effect. */
import { z } from 'zod';
import { instant, jobState } from './batches.ts';

export const receiptSchema = z
  .object({
    idempotency_key: z.string(),
    job_id: z.uuid(),
    state: jobState.describe('Of the job, also while it is unfinished'),
    reason: z.string().nullable().describe('Why it failed or is held'),
    attempts: z.number().int().describe('How many calls were made'),
    status: z.number().int().nullable().describe('Of the answer that ended the job, or as the receiver told it'),
    excerpt: z.string().nullable().describe('First 64 KiB of that answer'),
    truncated: z.boolean().describe('The answer had more than the excerpt'),
    sha256: z.string().nullable().describe('Over what was read of the answer, hex'),
    evidence: z
      .enum(['response', 'receipt', 'reconciled'])
      .nullable()
      .describe("What tells the end: the upstream's answer, the receiver's word, or what the upstream said when asked"),
    note: z.string().nullable().describe('What the receiver said with its evidence'),
    first_sent_at: instant.nullable().describe('First call that may have had an effect'),
    ended_at: instant.nullable(),
    expires_at: instant.nullable().describe('When the key is forgotten; null: the job has not ended'),
  })
  .meta({ id: 'Receipt', description: 'What became of an idempotency key; lives as long as the key' });

/** Most keys of one look-up. */
const mostKeys = 1000;

export const lookupSchema = z.strictObject({ keys: z.array(z.string()).max(mostKeys) });

export const lookupAnswerSchema = z.object({
  items: z
    .array(z.union([receiptSchema, z.object({ idempotency_key: z.string(), state: z.literal('unknown_key') })]))
    .describe('One for each key, in their order'),
});

export const evidenceSchema = z
  .strictObject({
    status: z.number().int().min(100).max(599).nullable().describe('HTTP status that the effect would have answered'),
    body: z.unknown().describe('What it would have answered: text as it is, any other value as JSON'),
    note: z.string().max(4000).nullable().describe('For people: where the evidence comes from'),
  })
  .partial()
  .meta({ id: 'Evidence', description: "The receiver's own evidence that the effect was applied" });
