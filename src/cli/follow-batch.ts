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
  let batch = await client.getBatch(batchId, { signal });
  const told = new Told(view);
  try {
    show(view, batch);
    if (isOver(batch)) return batch;
    for await (const event of client.events(batchId, { signal })) {
      if (event.type === 'job') told.job(event.data);
      else {
        batch = event.data;
        show(view, batch);
        if (isOver(batch)) return batch;
      }
    }
  } catch (error) {
    signal.throwIfAborted();
    // Something on the way may not let events through; whether the batch can be read is told by reading it.
    if (!(error instanceof SluiceError || error instanceof SluiceConnectionError)) throw error;
  } finally {
    told.end();
    view.end();
  }
  try {
    for (;;) {
      batch = await client.getBatch(batchId, { wait: pollSeconds, signal });
      show(view, batch);
      if (isOver(batch)) return batch;
    }
  } finally {
    view.end();
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

function isOver({ status, jobs }: BatchProgress): boolean {
  if (status === 'completed' || status === 'cancelled') return true;
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

/** Jobs that did not succeed, one line each, up to a bound. */
class Told {
  readonly #view: ProgressView;
  #count = 0;

  constructor(view: ProgressView) {
    this.#view = view;
  }

  job(job: {
    readonly job_id: string;
    readonly idempotency_key: string | null;
    readonly state: string;
    readonly reason: string | null;
    readonly response_status: number | null;
  }): void {
    if (job.state === 'succeeded') return;
    this.#count += 1;
    if (this.#count > mostTold) return;
    const status = job.response_status === null ? '' : `, answered ${job.response_status}`;
    const reason = job.reason === null ? '' : `: ${job.reason}`;
    this.#view.say(`${job.idempotency_key ?? ''} ${job.state}${reason}${status} (job ${job.job_id})`);
  }

  end(): void {
    if (this.#count > mostTold) this.#view.say(`… and ${this.#count - mostTold} more that did not succeed`);
  }
}
