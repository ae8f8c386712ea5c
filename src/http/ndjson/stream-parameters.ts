/**
 * What a stream has instead of an envelope: query parameters that stand for what all its lines share. They are texts, and
 * follow the rules of the fields of the same names.
 */
import { createHash } from 'node:crypto';
import { z } from 'zod';
import { ProblemError } from '../../domain/errors.ts';
import { defaultQueue } from '../../domain/submission.ts';
import { envelopeSchema, itemSchema, type SentDefaults } from '../schemas/batches.ts';
import { integerParameter } from '../schemas/lists.ts';
import type { LineContext } from './read-line.ts';

const { correlation_id: correlationId } = envelopeSchema.shape;
const { upstream, method, path, queue, partition_key: partitionKey, run_at: runAt } = itemSchema.shape;
const { expires_at: expiresAt, payload_version: payloadVersion } = itemSchema.shape;
const int32Max = 2_147_483_647;
const only = 'Of a stream (`application/x-ndjson`)';

/** Query parameters of POST /v1/batches that belong to a stream. */
export const streamParameters = {
  queue: queue.describe(`${only}: the queue of lines that name none. Default: \`default\``),
  correlation_id: text(correlationId).describe(`${only}: yours, kept with the batch and its jobs`),
  derive_keys: z
    .enum(['true', 'false'])
    .optional()
    .describe(`${only}: true: a line without a key gets \`sluice-\` and the hex of its fingerprint`),
  upstream: upstream.describe(`${only}: default of the lines`),
  method: method.describe(`${only}: default of the lines`),
  path: path.describe(`${only}: default of the lines`),
  partition_key: text(partitionKey).describe(`${only}: default of the lines`),
  priority: integerParameter(-32_768, 32_767).optional().describe(`${only}: default of the lines`),
  run_at: text(runAt).describe(`${only}: default of the lines`),
  expires_at: text(expiresAt).describe(`${only}: default of the lines`),
  cost: integerParameter(1, int32Max).optional().describe(`${only}: default of the lines`),
  max_attempts: integerParameter(1, 1000).optional().describe(`${only}: default of the lines`),
  payload_version: text(payloadVersion).describe(`${only}: default of the lines`),
};

/** Without null, which a query has not. */
function text<T extends z.ZodType>(field: z.ZodOptional<z.ZodNullable<T>>): z.ZodOptional<T> {
  return field.unwrap().unwrap().optional();
}

export type StreamParameters = z.output<z.ZodObject<typeof streamParameters>>;

export interface ReadParameters {
  readonly correlationId: string | null;
  readonly context: LineContext;
  /** Hex SHA-256: two streams under one Idempotency-Key must agree in it. */
  readonly fingerprint: string;
}

export function readParameters(query: StreamParameters): ReadParameters {
  const { queue = defaultQueue, correlation_id: correlationId = null, derive_keys: deriveKeys, ...others } = query;
  const defaults = Object.fromEntries(Object.entries(others).filter(([, value]) => value !== undefined));
  const form = JSON.stringify(Object.entries(query).sort(([a], [b]) => (a < b ? -1 : 1)));
  return {
    correlationId,
    context: { queue, deriveKeys: deriveKeys === 'true', defaults: defaults as SentDefaults },
    // No JSON batch has this form.
    fingerprint: createHash('sha256').update(`application/x-ndjson ${form}`).digest('hex'),
  };
}

/** A JSON batch says these things in its body; here they would be overlooked. Throws a ProblemError `invalid_request`. */
export function refuseStreamParameters(query: StreamParameters): void {
  const name = Object.keys(query).find((each) => Object.hasOwn(streamParameters, each));
  if (name === undefined) return;
  const message = 'is for streams (application/x-ndjson); a JSON batch has it in its body';
  throw new ProblemError('invalid_request', `the query parameters: ${name} ${message}`, {
    errors: [{ pointer: `/query/${name}`, code: 'invalid', message }],
  });
}
