/**
 * The verdict on a run, from books that know nothing of each other: what the service answers, what its database has on record,
 * and what the upstream saw. Pure, so that its "no" can be tested.
 *
 * The bound at the upstream: a permit lets a call leave within `permitMs` of its admission, and the window absorbs `slackMs`
 * on the way, so calls that arrive within both are at most the limit in any period, whatever happens. A call that arrives
 * later was late by something no worker can see: the machine was busy, or the process was frozen between the last check and
 * the write. Late calls are counted, told apart by whether their worker stood still in between, and not held against the bound;
 * of one standstill there may be one frozen call, since check and write are one turn of the event loop.
 */
import { fullestInterval } from '../../../src/simulator/fullest-interval.ts';
import type { Books, RecordedCall } from './books.ts';

export interface Terms {
  /** Keys that were submitted. */
  readonly keys: ReadonlySet<string>;
  /** Batches that were submitted. */
  readonly batches: number;
  readonly limit: number;
  readonly periodMs: number;
  readonly permitMs: number;
  readonly slackMs: number;
}

export interface Figures {
  readonly accepted: number;
  /** Accepted, and in a state that is an end. */
  readonly ended: number;
  readonly succeeded: number;
  readonly effects: number;
  /** Keys and jobs with two effects, jobs under two keys, jobs with two successes on record. */
  readonly doubles: number;
  readonly lost: number;
  readonly batchesEnded: number;
  /** Most starts in any period by the stamps of the workers, and what is allowed. */
  readonly starts: number;
  readonly startsBound: number;
  /** Most arrivals in any period: of the calls that were not late, and of all. */
  readonly arrivals: number;
  readonly arrivalsOfAll: number;
  /** Late by the machine, and frozen between the last check and the write. */
  readonly late: number;
  readonly frozen: number;
  readonly latestMs: number;
  readonly calls: number;
  readonly replayed: number;
  readonly overQuota: number;
}

export interface Verdict {
  readonly figures: Figures;
  /** What is wrong, in words; empty: all of it held. */
  readonly faults: readonly string[];
}

const endedStates = new Set(['succeeded', 'failed', 'cancelled', 'expired']);
const mostNamed = 5;

export function judge(books: Books, terms: Terms): Verdict {
  const { accepted, log, calls, batches } = books;
  const faults: string[] = [];
  const wrong = (what: string, named: readonly string[]) => {
    if (named.length > 0) faults.push(`${named.length} ${what}: ${inShort(named)}`);
  };

  const jobsByKey = new Map<string, Set<string>>();
  for (const { key, jobId } of accepted) jobsByKey.set(key, (jobsByKey.get(key) ?? new Set()).add(jobId));
  wrong(
    'keys that were never accepted',
    [...terms.keys].filter((key) => !jobsByKey.has(key)),
  );
  wrong(
    'keys that were accepted more than once',
    [...jobsByKey].filter(([, jobs]) => jobs.size > 1).map(([key]) => key),
  );
  if (books.storedBatches !== terms.batches) {
    faults.push(`${books.storedBatches} batches are stored, of ${terms.batches} that were submitted`);
  }
  if (books.storedJobs !== terms.keys.size) {
    faults.push(`${books.storedJobs} jobs are stored, of ${terms.keys.size} keys`);
  }

  const effects = log.effectsByKey();
  const ended = accepted.filter(({ state }) => endedStates.has(state ?? ''));
  const succeeded = accepted.filter(({ state }) => state === 'succeeded');
  const lost = accepted.filter(({ key, state }) => state !== 'succeeded' || !effects.get(key));
  wrong(
    'items lost (not ended as succeeded, or without an effect)',
    lost.map(({ key, state }) => `${key} (${state})`),
  );
  wrong('answers that are not true', untrueAnswers(books));

  const doubles = [
    ...log.doubles().map(({ by, id, effects }) => `${by} ${id} (${effects} effects)`),
    ...jobsUnderTwoKeys(books),
    ...doneAgain(calls),
  ];
  wrong('doubles', doubles);
  wrong(
    'effects that nobody submitted',
    [...effects].filter(([key, count]) => count > 0 && !terms.keys.has(key)).map(([key]) => key),
  );

  const arrivals = matchArrivals(books, terms);
  wrong('calls that are on no record', arrivals.unrecorded);
  wrong('calls that were written twice', arrivals.repeated);
  wrong('standstills that let out more than one frozen call', arrivals.crowded);
  const inTime = fullestInterval(arrivals.inTime, terms.periodMs).count;
  if (inTime > terms.limit) faults.push(`${inTime} calls arrived in one period in time, of ${terms.limit} allowed`);
  if (books.audit.max_starts > books.audit.bound) {
    faults.push(`${books.audit.max_starts} starts in one period by the stamps, of ${books.audit.bound} allowed`);
  }

  const batchesEnded = batches.filter(({ status }) => status === 'completed').length;
  if (batchesEnded < terms.batches) faults.push(`${terms.batches - batchesEnded} batches have not ended`);
  faults.push(...books.holdUps);
  for (const { rule, count, subject, detail } of books.broken) {
    faults.push(`the invariant ${rule} is broken (${count}): ${subject} ${detail}`);
  }

  const sum = log.summary();
  return {
    figures: {
      accepted: jobsByKey.size,
      ended: ended.length,
      succeeded: succeeded.length,
      effects: sum.effects,
      doubles: doubles.length,
      lost: lost.length + [...terms.keys].filter((key) => !jobsByKey.has(key)).length,
      batchesEnded,
      starts: books.audit.max_starts,
      startsBound: books.audit.bound,
      arrivals: inTime,
      arrivalsOfAll: log.maxStartsInAny(terms.periodMs),
      late: arrivals.late,
      frozen: arrivals.frozen,
      latestMs: arrivals.latestMs,
      calls: sum.requests,
      replayed: sum.replayed,
      overQuota: sum.overQuota,
    },
    faults,
  };
}

/** The upstream's answer names the key, and numbers its effects: what is on record must be the answer to that very item. */
function untrueAnswers({ accepted }: Books): string[] {
  const seen = new Set<number>();
  const untrue: string[] = [];
  for (const { key, state, status, excerpt } of accepted) {
    if (state !== 'succeeded') continue;
    const answer = parse(excerpt);
    if (status !== 200 || answer?.key !== key || typeof answer.effect !== 'number' || seen.has(answer.effect)) {
      untrue.push(`${key} (${status} ${excerpt})`);
    } else {
      seen.add(answer.effect);
    }
  }
  return untrue;
}

function parse(excerpt: string | null): { effect?: unknown; key?: unknown } | null {
  try {
    return excerpt === null ? null : (JSON.parse(excerpt) as { effect?: unknown; key?: unknown });
  } catch {
    return null;
  }
}

/** Where the key that goes out changes, the upstream cannot know that it is the same call. */
function jobsUnderTwoKeys({ log }: Books): string[] {
  const keys = new Map<string, string>();
  const changed = new Set<string>();
  for (const { jobId, key } of log.requests) {
    if (jobId === null || key === null) continue;
    const first = keys.get(jobId);
    if (first === undefined) keys.set(jobId, key);
    else if (first !== key) changed.add(jobId);
  }
  return [...changed].map((jobId) => `job ${jobId} went out under two keys`);
}

function doneAgain(calls: readonly RecordedCall[]): string[] {
  const successes = new Map<string, number>();
  for (const { jobId, outcome } of calls) {
    if (outcome === 'success') successes.set(jobId, (successes.get(jobId) ?? 0) + 1);
  }
  return [...successes].filter(([, count]) => count > 1).map(([jobId]) => `job ${jobId} succeeded twice on record`);
}

interface Arrivals {
  /** Monotonic milliseconds at the upstream. */
  readonly inTime: readonly number[];
  readonly late: number;
  readonly frozen: number;
  /** Of the latest, after its admission. */
  readonly latestMs: number;
  readonly unrecorded: readonly string[];
  readonly repeated: readonly string[];
  readonly crowded: readonly string[];
}

function matchArrivals({ log, calls, standstills }: Books, { permitMs, slackMs }: Terms): Arrivals {
  const recorded = new Map(calls.map((call) => [`${call.jobId} ${call.number}`, call]));
  const inTime: number[] = [];
  const unrecorded: string[] = [];
  const repeated: string[] = [];
  const seen = new Set<string>();
  const frozenBy = new Map<object, number>();
  let late = 0;
  let frozen = 0;
  let latestMs = 0;
  for (const { jobId, attempt, arrivedAt, arrivedMs } of log.requests) {
    const name = `${jobId} ${attempt}`;
    const call = recorded.get(name);
    if (seen.has(name)) repeated.push(name);
    seen.add(name);
    if (call === undefined) {
      unrecorded.push(name);
      continue;
    }
    const afterMs = arrivedAt - call.admittedAt;
    latestMs = Math.max(latestMs, afterMs);
    if (afterMs <= permitMs + slackMs) {
      inTime.push(arrivedMs);
      continue;
    }
    // Admitted before or while its worker stood still, and written when that went on.
    const standstill = standstills.find(
      ({ workerId, untilMs }) => workerId === call.workerId && call.admittedAt <= untilMs && untilMs <= arrivedAt,
    );
    if (standstill === undefined) late += 1;
    else {
      frozen += 1;
      frozenBy.set(standstill, (frozenBy.get(standstill) ?? 0) + 1);
    }
  }
  const crowded = [...frozenBy.values()].filter((count) => count > 1).map((count) => `${count} calls`);
  return { inTime, late, frozen, latestMs: Math.round(latestMs), unrecorded, repeated, crowded };
}

function inShort(named: readonly string[]): string {
  const more = named.length > mostNamed ? `, and ${named.length - mostNamed} more` : '';
  return named.slice(0, mostNamed).join(', ') + more;
}
