/**
 * The one table of what a client sees when a request is refused: code → status and title (RFC 9457). Everything that fails
 * leaves the service through `problemDocument`, so that every error has the same shape and none has a stack trace.
 */
import { z } from 'zod';
import type { Fault, ProblemCode } from '../domain/errors.ts';

export const problemMediaType = 'application/problem+json';

export const problems: Readonly<Record<ProblemCode, { readonly status: number; readonly title: string }>> = {
  invalid_request: { status: 400, title: 'The request is not valid' },
  malformed_json: { status: 400, title: 'The body is not JSON' },
  unauthorized: { status: 401, title: 'A valid key is needed' },
  forbidden: { status: 403, title: 'The key does not allow this' },
  not_found: { status: 404, title: 'There is no such thing' },
  method_not_allowed: { status: 405, title: 'The path does not take this method' },
  conflict: { status: 409, title: 'The state does not allow this' },
  in_use: { status: 409, title: 'Something depends on it' },
  stream_in_progress: { status: 409, title: 'Another stream brings the same batch' },
  payload_too_large: { status: 413, title: 'The body is too large' },
  too_many_items: { status: 413, title: 'The batch has too many items' },
  unsupported_media_type: { status: 415, title: 'The content type is not supported' },
  idempotency_key_reused: { status: 422, title: 'The Idempotency-Key was used with another request' },
  resume_mismatch: { status: 422, title: 'The stream is not the one that is stored' },
  invalid_definition: { status: 422, title: 'The definition is not valid' },
  empty_batch: { status: 422, title: 'The batch has no items' },
  too_many_requests: { status: 429, title: 'Too many submissions' },
  overloaded: { status: 503, title: 'The service has too much to do' },
  database_unavailable: { status: 503, title: 'The database cannot be reached' },
  not_ready: { status: 503, title: 'The service is not ready' },
  shutting_down: { status: 503, title: 'The service is shutting down' },
  internal_error: { status: 500, title: 'Something went wrong on our side' },
};

export const faultSchema = z.object({
  pointer: z
    .string()
    .optional()
    .describe('JSON pointer (RFC 6901) into what was sent; absent where the whole is at fault'),
  code: z.string().describe('Stable, for programs'),
  message: z.string().describe('For people'),
});

/** RFC 9457, with the members that Sluice adds: `code`, `errors`, `request_id` and `state`. */
export const problemSchema = z
  .object({
    type: z.string().describe('URI that names the kind of problem'),
    title: z.string(),
    status: z.number().int(),
    detail: z.string().describe('What happened, with which value, and what is allowed'),
    code: z.string().describe('Stable, for programs'),
    errors: z.array(faultSchema).describe('Each thing that is wrong, all of them at once'),
    request_id: z.string().describe('Names this request in the log'),
    state: z.string().optional().describe('Of the job or the batch, where that does not allow it (409)'),
  })
  .meta({ id: 'Problem' });

export type ProblemDocument = z.output<typeof problemSchema>;

export function problemDocument(
  code: ProblemCode,
  detail: string,
  requestId: string,
  errors: readonly Fault[] = [],
  state?: string,
): ProblemDocument {
  const { status, title } = problems[code];
  return {
    type: `urn:sluice:problem:${code}`,
    title,
    status,
    detail,
    code,
    errors: [...errors],
    request_id: requestId,
    ...(state === undefined ? {} : { state }),
  };
}
