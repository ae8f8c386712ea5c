/**
 * The use case of POST /v1/batches: what the definitions forbid is added to each item's own faults, then the store decides
 * and keeps. Durable when it returns; sent again under the same request key it gives the first answer again.
 */
import { coveringLimits, type Definitions, largestCost } from '../domain/definitions.ts';
import { type Fault, ProblemError } from '../domain/errors.ts';
import { didYouMean } from '../domain/near-name.ts';
import { checkItemHeaders } from '../domain/outbound-request.ts';
import type { BatchVerdict, JobTerms, RequestKey, Submission, SubmittedItem } from '../domain/submission.ts';
import type { Database } from '../postgres/database.ts';
import { insertBatch } from '../postgres/insert-batch.ts';
import type { IntakeClaimer } from '../postgres/intake-reservation.ts';
import { readReplay } from '../postgres/read-replay.ts';

export interface SubmitDependencies {
  readonly database: Database;
  readonly definitions: { current(): Promise<Definitions>; lastKnown(): Promise<Definitions> };
  /** Told as soon as jobs are stored: the worker of this process need not wait to hear it from PostgreSQL. */
  readonly workCame?: (() => void) | undefined;
  /** That worker, where it may have the jobs in the commit that stores them. */
  readonly claimer?: IntakeClaimer | undefined;
}

/** Definitions can change between the check and the store; a change is rare, so a few tries are many. */
export const maxTries = 5;

/**
 * Throws a ProblemError `idempotency_key_reused` where the request key is known with another body, and
 * DatabaseUnavailableError where PostgreSQL is away: then nobody knows whether it is stored, and sending it again tells.
 */
export async function submitBatch(
  { database, definitions, workCame, claimer }: SubmitDependencies,
  tenant: string,
  { correlationId, items }: Submission,
  requestKey: RequestKey | null,
): Promise<{ readonly batch: BatchVerdict; readonly replayed: boolean }> {
  for (let tries = 1; ; tries++) {
    const first = requestKey === null ? null : await findReplay(database, tenant, requestKey);
    if (first !== null) return { batch: first, replayed: true };
    // The store says where they are others by now, so that they need not be asked for each time.
    const known = await (tries === 1 ? definitions.lastKnown() : definitions.current());
    const check = createDefinitionCheck(known);
    const checked = items.map((item, index) => check(item, `/items/${index}`));
    const batch = { tenant, correlationId, requestKey, definitionsVersion: known.version, items: checked };
    const inserted = await insertBatch(database, batch, claimer);
    if (inserted.kind === 'inserted') {
      if (!inserted.claimed) workCame?.();
      return { batch: inserted.batch, replayed: false };
    }
    if (tries === maxTries) {
      throw new ProblemError('not_ready', 'the definitions keep changing; try again', { retryAfterSeconds: 1 });
    }
  }
}

/** The first answer to a request under this key; null: there was none. Throws where it stands for another request. */
export async function findReplay(
  database: Database,
  tenant: string,
  requestKey: RequestKey,
): Promise<BatchVerdict | null> {
  const replay = await readReplay(database, tenant, requestKey);
  if (replay === null) return null;
  if (replay.kind === 'other') throw reusedRequestKey(replay.batchId);
  return replay.batch;
}

export function reusedRequestKey(batchId: string): ProblemError {
  const detail = `the Idempotency-Key was used for batch ${batchId}, whose request was another; use a new key`;
  return new ProblemError('idempotency_key_reused', detail);
}

/** Adds what these definitions forbid; the pointer is that of the item. Kept per upstream and queue, because the items of a batch mostly share them. */
export function createDefinitionCheck(
  definitions: Definitions,
): (item: SubmittedItem, pointer: string) => SubmittedItem {
  const checks = new Map<string, (terms: JobTerms) => Fault[]>();
  const checkOf = ({ queue, upstream }: JobTerms) => {
    const name = `${queue}/${upstream}`;
    const check = checks.get(name) ?? createCheck(definitions, upstream, queue);
    checks.set(name, check);
    return check;
  };
  let before: { readonly terms: JobTerms; readonly check: (terms: JobTerms) => Fault[] } | undefined;
  return (item, pointer) => {
    const terms = item.job ?? item.terms;
    if (terms === undefined) return item;
    if (terms.queue !== before?.terms.queue || terms.upstream !== before.terms.upstream) {
      before = { terms, check: checkOf(terms) };
    }
    const faults = before.check(terms);
    if (faults.length === 0) return item;
    const placed = faults.map((fault) => ({ ...fault, pointer: `${pointer}${fault.pointer}` }));
    return { ...item, faults: [...item.faults, ...placed] };
  };
}

function createCheck(definitions: Definitions, upstreamName: string, queueName: string): (terms: JobTerms) => Fault[] {
  const upstream = definitions.upstreams.get(upstreamName);
  const queue = definitions.queues.get(queueName);
  const always: Fault[] = [];
  if (upstream === undefined) {
    const hint = didYouMean(upstreamName, [...definitions.upstreams.keys()]);
    const message = `there is no upstream ${upstreamName}${hint}`;
    always.push({ pointer: '/upstream', code: 'unknown_upstream', message });
  }
  if (queue === undefined) {
    const hint = didYouMean(queueName, [...definitions.queues.keys()]);
    always.push({ pointer: '/queue', code: 'unknown_queue', message: `there is no queue ${queueName}${hint}` });
  }
  const limits = coveringLimits(definitions, upstreamName, queueName).map((name) => ({
    name,
    largest: largestCost(definitions.rateLimits.get(name)!) ?? Number.POSITIVE_INFINITY,
  }));

  return ({ cost, priority, headers }) => {
    const faults = [...always];
    for (const { name, largest } of limits) {
      if (cost <= largest) continue;
      const message = `a cost of ${cost} can never fit into the rate limit ${name}, which admits ${largest} at most`;
      faults.push({ pointer: '/cost', code: 'cost_exceeds_limit', message });
    }
    if (queue?.ordering === 'fifo' && priority !== 0) {
      const message = `the queue ${queueName} is fifo, so its items have no priority`;
      faults.push({ pointer: '/priority', code: 'priority_in_fifo_queue', message });
    }
    if (upstream !== undefined && headers !== null) {
      faults.push(...checkItemHeaders(headers, upstream.idempotency_header));
    }
    return faults;
  };
}
