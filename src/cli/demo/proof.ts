/**
 * The demo's verdict on the service, from two sets of books that know nothing of each other: what the service says became of
 * every item, and what arrived at the upstream. Pure, so that its "no" can be tested.
 */
import type { RequestLog } from '../../simulator/request-log.ts';

/** An item of a batch, as the service reports it at the end. */
export interface ReportedItem {
  readonly idempotency_key: string | null;
  readonly verdict: string;
  readonly job_state: string | null;
}

export interface Proof {
  readonly passed: boolean;
  /** Keys that the service accepted. */
  readonly keys: number;
  /** Accepted, and not both succeeded here and done there. */
  readonly lost: readonly string[];
  /** Keys and jobs that took effect more than once. */
  readonly doubled: readonly string[];
  /** Effects that no accepted item asked for. */
  readonly strange: readonly string[];
  readonly mostStarts: number;
  readonly limit: number;
  readonly periodMs: number;
}

export function prove(items: readonly ReportedItem[], log: RequestLog, limit: number, periodMs: number): Proof {
  const effects = log.effectsByKey();
  const accepted = new Map<string, boolean>();
  for (const { verdict, idempotency_key: key, job_state } of items) {
    if (verdict === 'accepted' && key !== null) accepted.set(key, job_state === 'succeeded');
  }
  const lost = [...accepted].filter(([key, succeeded]) => !succeeded || !effects.get(key)).map(([key]) => key);
  const strange = [...effects].filter(([key, count]) => count > 0 && !accepted.has(key)).map(([key]) => key);
  const doubled = log.doubles().map(({ by, id, effects }) => `${by} ${id} (${effects} effects)`);
  const mostStarts = log.maxStartsInAny(periodMs);
  const nothingWrong = lost.length + strange.length + doubled.length === 0;
  return {
    passed: nothingWrong && accepted.size > 0 && mostStarts <= limit,
    keys: accepted.size,
    lost,
    doubled,
    strange,
    mostStarts,
    limit,
    periodMs,
  };
}
