/**
 * Faults as values: where, which, and in words. The edge (`http/problem-details.ts`) turns a code into a status; nothing
 * below it knows HTTP statuses of our own answers.
 */

/** One thing that is wrong with what a client or an operator sent. */
export interface Fault {
  /** JSON pointer (RFC 6901) into what was sent; absent where the whole is at fault. */
  readonly pointer?: string;
  /** Stable, for programs. */
  readonly code: string;
  /** For people: what happened, with which value, and what is allowed. */
  readonly message: string;
}

/** Codes of refused requests; `http/problem-details.ts` has the status and title of each. */
export type ProblemCode =
  | 'invalid_request'
  | 'malformed_json'
  | 'unauthorized'
  | 'forbidden'
  | 'not_found'
  | 'method_not_allowed'
  | 'conflict'
  | 'in_use'
  | 'stream_in_progress'
  | 'payload_too_large'
  | 'too_many_items'
  | 'unsupported_media_type'
  | 'idempotency_key_reused'
  | 'resume_mismatch'
  | 'invalid_definition'
  | 'empty_batch'
  | 'too_many_requests'
  | 'overloaded'
  | 'database_unavailable'
  | 'not_ready'
  | 'shutting_down'
  | 'internal_error';

/** A request that is refused as a whole. Thrown by use cases, answered as problem+json. */
export class ProblemError extends Error {
  readonly code: ProblemCode;
  readonly errors: readonly Fault[];
  /** Seconds for a Retry-After header, where coming back later makes sense. */
  readonly retryAfterSeconds: number | undefined;
  /** What the thing is that does not allow it: the state of a job or a batch. */
  readonly state: string | undefined;

  constructor(
    code: ProblemCode,
    detail: string,
    options: { errors?: readonly Fault[]; retryAfterSeconds?: number; state?: string } = {},
  ) {
    super(detail);
    this.name = 'ProblemError';
    this.code = code;
    this.errors = options.errors ?? [];
    this.retryAfterSeconds = options.retryAfterSeconds;
    this.state = options.state;
  }
}
