/**
 * Follows a batch to its end for `watch` and `submit --wait`: by Server-Sent Events, and by asking now and then where those do
 * not come through. Shows how far it is, tells each job that did not succeed, and gives the batch as it was at the end.
 */
import type { BatchProgress, SluiceClient } from '../client/index.ts';
import { SluiceConnectionError, SluiceError } from '../client/index.ts';
import { systemClock } from '../system/clock.ts';
import type { ProgressView } from './progress-view.ts';
import { exitCodes } from './talk.ts';

/** Seconds that one answer may be waited for where there are no events. */
const pollSeconds = 10;
/** More of the jobs that did not succeed are counted, and not told one by one. */
const mostTold = 100;
const endedStates = ['succeeded', 'failed', 'cancelled', 'expired'] as const;

export interface Following {
  readonly client: SluiceClient;
  readonly batchId: string;
  readonly view: ProgressView;
  readonly signal: AbortSignal;
}

/** Resolves when the batch is over, or when what is left of it is held: then nothing goes on without a person. */
export async function followBatch(following: Following): Promise<BatchProgress> {
  const { client, batchId, view, signal } = following;
  const told = new Told(view);
  try {
    const first = await client.getBatch(batchId, { signal });
    show(view, first);
    const last = isOver(first) ? first : ((await byEvents(following, told)) ?? (await byAsking(following)));
    await told.rest(client, last, signal);
    return last;
  } finally {
    view.end();
  }
}

/** undefined: events do not come through. */
async function byEvents({ client, batchId, view, signal }: Following, told: Told): Promise<BatchProgress | undefined> {
  try {
    for await (const event of client.events(batchId, { signal })) {
      if (event.type === 'job') {
        told.job(event.data);
        continue;
      }
      show(view, event.data);
      // Before `done` come the jobs that ended last.
      if (event.type === 'done' || isStuck(event.data)) return event.data;
    }
  } catch (error) {
    signal.throwIfAborted();
    // Something on the way may not let them through; whether the batch can be read at all is told by reading it.
    if (!(error instanceof SluiceError || error instanceof SluiceConnectionError)) throw error;
  }
  return undefined;
}

async function byAsking({ client, batchId, view, signal }: Following): Promise<BatchProgress> {
  for (;;) {
    const batch = await client.getBatch(batchId, { wait: pollSeconds, signal });
    show(view, batch);
    if (isOver(batch)) return batch;
  }
}

/** What a script wants to know of it. */
export function exitCodeOf(batch: BatchProgress): number {
  if (batch.status !== 'completed' && batch.status !== 'cancelled') return exitCodes.held;
  const { jobs, status } = batch;
  return status === 'completed' && jobs.failed + jobs.cancelled + jobs.expired === 0 ? exitCodes.ok : exitCodes.notAll;
}

/** `completed: 5 succeeded, 1 failed`, and what to do where it does not go on. */
export function endOf(batch: BatchProgress): string {
  const { batch_id, status, jobs, held_by } = batch;
  const states = stateWords(batch, Object.keys(jobs) as JobState[]);
  const line = `batch ${batch_id} ${status}: ${states || 'no jobs'}`;
  if (exitCodeOf(batch) !== exitCodes.held) return line;
  const why = held_by === null ? '' : ` An answer ${held_by.status} (job ${held_by.job_id}) has stopped it.`;
  const next =
    held_by === null
      ? `see GET /v1/jobs?batch_id=${batch_id}&state=held, then POST /v1/jobs/{job_id}/retry or /cancel`
      : `mend what was refused, then POST /v1/batches/${batch_id}/resume`;
  return `${line}\nWhat is left is held, and does not go on by itself.${why} A person decides: ${next}`;
}

type JobState = keyof BatchProgress['jobs'];

function isOver(batch: BatchProgress): boolean {
  return batch.status === 'completed' || batch.status === 'cancelled' || isStuck(batch);
}

function isStuck({ status, jobs }: BatchProgress): boolean {
  return status === 'processing' && jobs.held > 0 && jobs.scheduled + jobs.ready + jobs.running === 0;
}

function show(view: ProgressView, batch: BatchProgress): void {
  const { jobs, status } = batch;
  const total = Object.values(jobs).reduce((sum, count) => sum + count, 0);
  const ended = endedStates.reduce((sum, state) => sum + jobs[state], 0);
  const unfinished = stateWords(batch, ['running', 'ready', 'scheduled', 'held']);
  const bad = stateWords(batch, ['failed', 'cancelled', 'expired']);
  const more = status === 'incomplete' ? 'its stream is not complete' : '';
  view.show(ended, total, [unfinished, bad, more, etaWords(batch)].filter((part) => part !== '').join(' · '));
}

function stateWords({ jobs }: BatchProgress, states: readonly JobState[]): string {
  return states
    .filter((state) => jobs[state] > 0)
    .map((state) => `${jobs[state]} ${state}`)
    .join(', ');
}

function etaWords({ eta }: BatchProgress): string {
  if (eta === null) return '';
  const seconds = Math.max(0, Math.ceil((Date.parse(eta.at) - systemClock.wallMs()) / 1000));
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor((seconds % 3600) / 60)];
  const parts =
    hours > 0 ? `${hours} h ${minutes} min` : minutes > 0 ? `${minutes} min ${seconds % 60} s` : `${seconds} s`;
  return `${parts} left${eta.limited_by === null ? '' : `, limited by ${eta.limited_by}`}`;
}

interface Unsuccessful {
  readonly job_id: string;
  readonly idempotency_key: string | null;
  readonly state: string;
  readonly reason: string | null;
  readonly response_status: number | null;
}

const unsuccessfulStates = ['failed', 'cancelled', 'expired'] as const;

/** Jobs that did not succeed, one line each, up to a bound. */
class Told {
  readonly #view: ProgressView;
  readonly #jobs = new Set<string>();

  constructor(view: ProgressView) {
    this.#view = view;
  }

  job({ job_id, idempotency_key, state, reason, response_status }: Unsuccessful): void {
    // What is held goes on, once a person says so; the end tells how many.
    if (state === 'succeeded' || state === 'held') return;
    if (this.#jobs.size === mostTold || this.#jobs.has(job_id)) return;
    this.#jobs.add(job_id);
    const why = reason === null ? '' : `: ${reason}`;
    const status = response_status === null ? '' : `, answered ${response_status}`;
    this.#view.say(`${idempotency_key ?? ''} ${state}${why}${status} (job ${job_id})`);
  }

  /** Those of which no event has told, and how many there are beside. */
  async rest(client: SluiceClient, batch: BatchProgress, signal: AbortSignal): Promise<void> {
    const count = unsuccessfulStates.reduce((sum, state) => sum + batch.jobs[state], 0);
    for (const state of unsuccessfulStates) {
      if (batch.jobs[state] === 0) continue;
      for await (const item of client.batchItems(batch.batch_id, { state }, { signal })) {
        if (this.#jobs.size >= Math.min(count, mostTold)) break;
        const { job_id, idempotency_key, response_status } = item;
        if (job_id !== null) this.job({ job_id, idempotency_key, response_status, state, reason: null });
      }
    }
    if (count > mostTold) this.#view.say(`… and ${count - mostTold} more that did not succeed`);
  }
}
