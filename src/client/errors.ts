/**
 * What a call can fail with: an answer that is a problem (`SluiceError`), or no answer (`SluiceConnectionError`). A call that
 * its signal stopped rejects with the signal's reason, and a wrong argument with a TypeError or RangeError.
 */
import type { Problem } from './api-types.ts';

/** The service answered, but with a problem (RFC 9457). */
export class SluiceError extends Error {
  /** HTTP status; of a stream that failed half way, the problem's. */
  readonly status: number;
  /** Stable, for programs: `idempotency_key_reused`, `not_found`, …; `http_502` where something in between answered. */
  readonly code: string;
  /** All that was said: each fault with its pointer, and the id under which the log knows the request. */
  readonly problem: Problem;
  /** What Retry-After asked for, in milliseconds; undefined: there was none. */
  readonly retryAfterMs: number | undefined;

  constructor(request: string, problem: Problem, retryAfterMs?: number) {
    const faults = problem.errors.map(({ pointer, message }) => `\n  ${pointer ?? ''} ${message}`).join('');
    super(`${request} was answered ${problem.status}: ${problem.detail}${faults}`);
    this.name = 'SluiceError';
    this.status = problem.status;
    this.code = problem.code;
    this.problem = problem;
    this.retryAfterMs = retryAfterMs;
  }
}

/** No answer came, or it broke off: nobody listens there, the connection was cut, or what came is not the API. */
export class SluiceConnectionError extends Error {
  constructor(message: string, options: { cause?: unknown } = {}) {
    super(message, options);
    this.name = 'SluiceConnectionError';
  }
}

/** Longest piece of a text that is no problem document which goes into a message, in characters. */
const excerptLength = 200;

/** The problem in a body; made up from the status where something else than the service answered. */
export function asProblem(status: number, body: unknown): Problem {
  if (typeof body === 'object' && body !== null) {
    const { type, title, detail, code, errors, request_id, ...others } = body as Partial<Problem>;
    if (typeof code === 'string') {
      return {
        ...others,
        type: type ?? 'about:blank',
        title: title ?? code,
        status,
        detail: detail ?? title ?? code,
        code,
        errors: Array.isArray(errors) ? errors : [],
        request_id: request_id ?? '',
      };
    }
  }
  const text = typeof body === 'string' ? body : JSON.stringify(body ?? '');
  const detail = text.length > excerptLength ? `${text.slice(0, excerptLength)}…` : text;
  return {
    type: 'about:blank',
    title: `HTTP ${status}`,
    status,
    detail: detail === '' ? 'an answer without a body' : detail,
    code: `http_${status}`,
    errors: [],
    request_id: '',
  };
}
