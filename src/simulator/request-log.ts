/**
 * The upstream's own books: every call that arrived and what it did, and the sums that judge a rate limiter from outside.
 * Knows nothing about how the calls were answered; it can be rebuilt in another process from its records.
 */
import { type FullestInterval, fullestInterval } from './fullest-interval.ts';

/**
 * `pending`: no answer yet. `effect`: it did its work. `replayed`: the key was known, the stored result was sent. `throttled`:
 * a 429 or 503 by script or chance. `over_quota`: refused by the upstream's own quota. `refused`: another answer without an
 * effect. `reset`: the connection ended before an effect. `told`: it asked whether a key had taken effect.
 */
export type RequestOutcome =
  | 'pending'
  | 'effect'
  | 'replayed'
  | 'throttled'
  | 'over_quota'
  | 'refused'
  | 'reset'
  | 'told';

export interface ArrivedRequest {
  /** Order of arrival, from 1. */
  readonly number: number;
  /** When its head had been read: monotonic milliseconds of the simulator's process, and milliseconds since 1970. */
  readonly arrivedMs: number;
  readonly arrivedAt: number;
  readonly method: string;
  /** With the query. */
  readonly path: string;
  readonly key: string | null;
  readonly jobId: string | null;
  /** From the header Sluice-Attempt. */
  readonly attempt: number | null;
  /** Names in lower case; empty where the simulator runs lean. */
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  /** As UTF-8; empty where the simulator runs lean. */
  body: string;
  /** Number of the connection it came on, from 1. */
  readonly connection: number;
  outcome: RequestOutcome;
  /** What was sent; null: nothing (yet). */
  status: number | null;
  /** When the answer began to leave, monotonic milliseconds. */
  answeredMs: number | null;
  /** Seconds of the Retry-After that a throttle carried, where it was a number. */
  retryAfterSeconds: number | null;
}

/** Something that took effect more than once. */
export interface Double {
  readonly by: 'key' | 'job';
  readonly id: string;
  readonly effects: number;
}

export interface LogSummary {
  readonly requests: number;
  readonly keys: number;
  readonly effects: number;
  readonly replayed: number;
  readonly throttled: number;
  readonly overQuota: number;
  readonly refused: number;
  readonly reset: number;
  readonly pending: number;
  readonly doubles: number;
  readonly connections: number;
}

export class RequestLog {
  readonly requests: ArrivedRequest[];

  constructor(requests: ArrivedRequest[] = []) {
    this.requests = requests;
  }

  /** The largest number of calls that arrived in any interval of this length, refused ones included. */
  maxStartsInAny(lengthMs: number): number {
    return this.fullestInterval(lengthMs).count;
  }

  fullestInterval(lengthMs: number): FullestInterval {
    return fullestInterval(
      this.requests.map((request) => request.arrivedMs),
      lengthMs,
    );
  }

  forKey(key: string): ArrivedRequest[] {
    return this.requests.filter((request) => request.key === key);
  }

  /** How often this key took effect. */
  effects(key: string): number {
    return this.forKey(key).filter((request) => request.outcome === 'effect').length;
  }

  /** Effects of every key that arrived, 0 included. */
  effectsByKey(): Map<string, number> {
    return this.#effectsBy((request) => request.key);
  }

  /** Every key and every job with more than one effect: a job that went out under two keys is a double too. */
  doubles(): Double[] {
    const doubles: Double[] = [];
    for (const [id, effects] of this.effectsByKey()) if (effects > 1) doubles.push({ by: 'key', id, effects });
    for (const [id, effects] of this.#effectsBy((request) => request.jobId)) {
      if (effects > 1) doubles.push({ by: 'job', id, effects });
    }
    return doubles;
  }

  /**
   * Calls that arrived while the upstream had said "not before", later than `graceMs` after it said so (those were on their
   * way already).
   */
  startsInCooldowns(graceMs: number): ArrivedRequest[] {
    const closed: Array<{ from: number; until: number }> = [];
    for (const { answeredMs, retryAfterSeconds } of this.requests) {
      if (answeredMs === null || retryAfterSeconds === null) continue;
      closed.push({ from: answeredMs + graceMs, until: answeredMs + retryAfterSeconds * 1000 });
    }
    return this.requests.filter(({ arrivedMs }) =>
      closed.some(({ from, until }) => arrivedMs > from && arrivedMs < until),
    );
  }

  summary(): LogSummary {
    const count = (outcome: RequestOutcome) => this.requests.filter((request) => request.outcome === outcome).length;
    return {
      requests: this.requests.length,
      keys: this.effectsByKey().size,
      effects: count('effect'),
      replayed: count('replayed'),
      throttled: count('throttled'),
      overQuota: count('over_quota'),
      refused: count('refused'),
      reset: count('reset'),
      pending: count('pending'),
      doubles: this.doubles().length,
      connections: new Set(this.requests.map((request) => request.connection)).size,
    };
  }

  #effectsBy(identity: (request: ArrivedRequest) => string | null): Map<string, number> {
    const effects = new Map<string, number>();
    for (const request of this.requests) {
      const id = identity(request);
      if (id === null) continue;
      effects.set(id, (effects.get(id) ?? 0) + (request.outcome === 'effect' ? 1 : 0));
    }
    return effects;
  }
}
