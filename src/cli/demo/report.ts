/**
 * What the demo prints beside its progress: the table of verdicts, and the proof in words. Text only; nothing is decided here.
 */
import type { RequestLog } from '../../simulator/request-log.ts';
import type { Proof } from './proof.ts';
import type { Replica } from './replica.ts';
import { table } from './table.ts';

export interface BatchAnswer {
  readonly batch_id: string;
  readonly counts: Readonly<Record<string, number>>;
  readonly items: ReadonlyArray<{
    readonly index: number;
    readonly idempotency_key: string | null;
    readonly verdict: string;
    readonly job_id?: string | null;
    readonly job_state?: string | null;
    readonly errors?: ReadonlyArray<{ readonly code: string; readonly message: string }>;
  }>;
}

/** How many of what is wrong are named. */
const mostNamed = 5;

export function verdictTable(batch: BatchAnswer): string {
  const first = new Map<string, number>();
  const rows = batch.items.map((item) => {
    const error = item.errors?.[0];
    let why = error === undefined ? '' : `${error.code}: ${error.message}`;
    if (item.verdict === 'duplicate') why = `the same call as item ${first.get(item.job_id ?? '') ?? '?'}`;
    if (item.verdict === 'accepted' && item.job_id) first.set(item.job_id, item.index);
    return [item.index, item.idempotency_key ?? '', item.verdict, why];
  });
  return table([['item', 'key', 'verdict'], ...rows]);
}

export function proofTable(proof: Proof, log: RequestLog): string {
  const { mostStarts, limit, periodMs, keys, lost, doubled, strange } = proof;
  const ok = (holds: boolean) => (holds ? 'ok' : 'WRONG');
  const calls = log.summary();
  const rows = [
    [ok(mostStarts <= limit), `most starts in any ${periodMs} ms`, mostStarts, `of ${limit} allowed`],
    [ok(calls.effects === keys && keys > 0), 'effects', calls.effects, `of ${keys} keys accepted`],
    [ok(lost.length === 0), 'lost', lost.length, named(lost)],
    [ok(doubled.length === 0), 'done twice', doubled.length, named(doubled)],
    [ok(strange.length === 0), 'done unasked', strange.length, named(strange)],
    ['', 'calls', calls.requests, callsInWords(calls)],
  ];
  return table(rows);
}

/** Calls of each replica; workers of other processes on the same database are named by their id. */
export function spreadTable(calls: ReadonlyMap<string, number>, replicas: readonly Replica[]): string {
  const rest = new Map(calls);
  const rows = replicas.map(({ url, workerId }): [string, number] => {
    const count = rest.get(workerId ?? '') ?? 0;
    rest.delete(workerId ?? '');
    return [url, count];
  });
  return table([...rows, ...rest]);
}

function named(ids: readonly string[]): string {
  const more = ids.length > mostNamed ? `, and ${ids.length - mostNamed} more` : '';
  return ids.slice(0, mostNamed).join(', ') + more;
}

function callsInWords(calls: ReturnType<RequestLog['summary']>): string {
  const parts = [
    [calls.effects, 'effects'],
    [calls.refused, 'failures (500)'],
    [calls.throttled, 'throttles (429)'],
    [calls.replayed, 'answered from its own store'],
    [calls.reset + calls.pending, 'cut off'],
  ] as const;
  return parts
    .filter(([count]) => count > 0)
    .map(([count, what]) => `${count} ${what}`)
    .join(' + ');
}
