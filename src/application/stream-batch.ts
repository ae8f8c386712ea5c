/**
 * The use case of POST /v1/batches as a stream: lines are stored in chunks as they come, verdicts go back as soon as they are
 * durable, and neither side waits for the other beyond what memory allows. Sent again under its request key, a stream that
 * broke off goes on where it stopped: lines that are stored are held against the new ones and answered again.
 *
 * Invariants: a verdict is given after its commit, in order; one stream at a time adds to a batch; a batch is ended only when
 * the client has said that these were all its lines.
 */
import { v4 as newHolder } from 'uuid';
import { ProblemError } from '../domain/errors.ts';
import type { ItemVerdict, RequestKey } from '../domain/submission.ts';
import { appendToBatch } from '../postgres/append-to-batch.ts';
import { type BegunStream, beginStream, endStream, releaseStream, renewStream } from '../postgres/batch-streams.ts';
import { DatabaseUnavailableError } from '../postgres/database.ts';
import { readVerdicts } from '../postgres/read-replay.ts';
import type { Clock } from '../system/clock.ts';
import { WakeSignal } from '../system/wake-signal.ts';
import { type BatchProgress, getBatch } from './batches.ts';
import { chunkLines, type StreamLine } from './line-chunks.ts';
import { createDefinitionCheck, maxTries, reusedRequestKey, type SubmitDependencies } from './submit-batch.ts';
import { VerdictQueue } from './verdict-queue.ts';

export interface StreamDependencies extends SubmitDependencies {
  readonly clock: Clock;
}

export interface StreamToTakeIn {
  readonly tenant: string;
  readonly correlationId: string | null;
  /** Its fingerprint is that of everything but the lines. */
  readonly requestKey: RequestKey | null;
  /**
   * Aborted from outside with the reason to end the stream with; aborted here when it fails. From then on the rest of the
   * lines is read and dropped.
   */
  readonly stop: AbortController;
}

export type StreamEvent =
  | { readonly kind: 'verdicts'; readonly items: readonly ItemVerdict[] }
  /** The last one, of a stream that is complete. */
  | { readonly kind: 'summary'; readonly batch: BatchProgress }
  /** The last one, of any other. */
  | { readonly kind: 'failed'; readonly error: unknown };

export interface OpenStream {
  readonly batchId: string;
  /** Items below this index were stored before this stream began. */
  readonly stored: number;
  /** Takes the lines in; they are read at the store's pace, whether or not the events are. Once. */
  run(lines: AsyncIterable<readonly StreamLine[]>): AsyncIterable<StreamEvent>;
}

/** How long the hold of a process that died keeps others out. */
const holdSeconds = 10;
/** Between two renewals while no chunk is stored. */
const renewMs = 3_000;
/** A client that says nothing for so long may have been cut off without a word: others may then take its batch over. */
const silentMs = 60_000;
/** A broken connection is mostly noticed, and its hold given up, while the client is still coming back. */
const patienceMs = 1_500;
const lookMs = 100;

/**
 * Makes the batch, or finds the one to resume. Throws a ProblemError `stream_in_progress` where another stream is at it, and
 * `idempotency_key_reused` where the request key stands for another request.
 */
export async function openStream(deps: StreamDependencies, stream: StreamToTakeIn): Promise<OpenStream> {
  const holder = newHolder();
  const begun = await begin(deps, stream, holder);
  const { batchId, stored } = begun;
  return {
    batchId,
    stored,
    run: (lines) => new Intake(deps, stream, { batchId, stored, holder, held: begun.kind === 'held' }).run(lines),
  };
}

async function begin(
  { database, clock }: StreamDependencies,
  { tenant, correlationId, requestKey }: StreamToTakeIn,
  holder: string,
): Promise<Extract<BegunStream, { kind: 'held' | 'ended' }>> {
  const endMs = clock.monotonicMs() + patienceMs;
  while (true) {
    const begun = await beginStream(database, { tenant, correlationId, requestKey, holder, holdSeconds });
    if (begun.kind === 'held' || begun.kind === 'ended') return begun;
    if (begun.kind === 'reused') throw reusedRequestKey(begun.batchId);
    if (clock.monotonicMs() >= endMs) {
      throw new ProblemError('stream_in_progress', `another stream is bringing the lines of batch ${begun.batchId}`, {
        retryAfterSeconds: Math.max(1, Math.ceil(begun.leftSeconds)),
      });
    }
    await clock.sleep(lookMs);
  }
}

interface Batch {
  readonly batchId: string;
  readonly stored: number;
  readonly holder: string;
  /** Ours to add to; else it is ended, and its lines can only be answered again. */
  readonly held: boolean;
}

class Intake {
  readonly #deps: StreamDependencies;
  readonly #stream: StreamToTakeIn;
  readonly #batch: Batch;
  readonly #verdicts: VerdictQueue;
  readonly #over: WakeSignal;
  #done = false;
  /** Lines that have a verdict. */
  #count = 0;
  #heardMs: number;
  #storedMs: number;

  constructor(deps: StreamDependencies, stream: StreamToTakeIn, batch: Batch) {
    this.#deps = deps;
    this.#stream = stream;
    this.#batch = batch;
    this.#over = new WakeSignal(deps.clock);
    this.#heardMs = deps.clock.monotonicMs();
    this.#storedMs = this.#heardMs;
    this.#verdicts = new VerdictQueue({
      clock: deps.clock,
      read: (from, most) => readVerdicts(deps.database, batch.batchId, { from, most }),
    });
  }

  run(lines: AsyncIterable<readonly StreamLine[]>): AsyncIterable<StreamEvent> {
    let failure: { readonly error: unknown } | undefined;
    if (this.#batch.held) void this.#holdOn().catch((error: unknown) => this.#stream.stop.abort(error));
    void this.#takeIn(lines)
      .catch((error: unknown) => {
        failure = { error };
        this.#stream.stop.abort(error);
        return this.#letGo(error);
      })
      .finally(() => {
        this.#done = true;
        this.#over.set();
        this.#verdicts.end();
      });
    return this.#events(() => failure);
  }

  async *#events(failure: () => { readonly error: unknown } | undefined): AsyncGenerator<StreamEvent> {
    try {
      for await (const items of this.#verdicts.take()) yield { kind: 'verdicts', items };
      const failed = failure();
      if (failed !== undefined) {
        yield { kind: 'failed', error: failed.error };
        return;
      }
      const batch = await getBatch(this.#deps, this.#stream.tenant, this.#batch.batchId);
      yield { kind: 'summary', batch };
    } catch (error) {
      // Verdicts that cannot be read again; those after them would be out of order.
      this.#stream.stop.abort(error);
      yield { kind: 'failed', error };
    }
  }

  async #takeIn(lines: AsyncIterable<readonly StreamLine[]>): Promise<void> {
    const { stop } = this.#stream;
    let storing = Promise.resolve();
    try {
      for await (const chunk of chunkLines(this.#heard(lines), { clock: this.#deps.clock, signal: stop.signal })) {
        await storing;
        storing = this.#answer(chunk);
        // Told at once, also where the client is silent just then.
        storing.catch((error: unknown) => stop.abort(error));
      }
    } finally {
      await storing;
    }
    await this.#end();
  }

  async *#heard(lines: AsyncIterable<readonly StreamLine[]>): AsyncGenerator<readonly StreamLine[]> {
    for await (const each of lines) {
      this.#heardMs = this.#deps.clock.monotonicMs();
      yield each;
    }
  }

  /** Those that are stored already first, then the others. */
  async #answer(chunk: readonly StreamLine[]): Promise<void> {
    const again = Math.min(chunk.length, Math.max(0, this.#batch.stored - this.#count));
    if (again > 0) await this.#answerAgain(chunk.slice(0, again));
    if (again < chunk.length) await this.#store(chunk.slice(again));
  }

  async #answerAgain(lines: readonly StreamLine[]): Promise<void> {
    const first = this.#count;
    const { database } = this.#deps;
    const verdicts = await readVerdicts(database, this.#batch.batchId, { from: first, most: lines.length });
    const differs = lines.findIndex(({ sha256 }, at) => verdicts[at]?.line !== sha256);
    this.#give(differs === -1 ? verdicts : verdicts.slice(0, differs));
    if (differs !== -1) throw mismatch(`line ${first + differs} (from 0) is not the one that is stored`);
  }

  async #store(lines: readonly StreamLine[]): Promise<void> {
    const { batchId, held, holder, stored } = this.#batch;
    const { database, definitions } = this.#deps;
    const { tenant, correlationId } = this.#stream;
    const first = this.#count;
    if (!held) throw mismatch(`the batch was ended with ${stored} lines, and this stream has more`);
    const items = lines.map((line) => line.item());
    for (let tries = 1; ; tries += 1) {
      const known = await (tries === 1 ? definitions.lastKnown() : definitions.current());
      const check = createDefinitionCheck(known);
      const appended = await appendToBatch(database, {
        batchId,
        tenant,
        correlationId,
        definitionsVersion: known.version,
        holder,
        holdSeconds,
        first,
        items: items.map((item, at) => check(item, `/items/${first + at}`)),
        lines: lines.map(({ sha256 }) => sha256),
      });
      if (appended.kind === 'appended') {
        this.#deps.workCame?.();
        this.#storedMs = this.#deps.clock.monotonicMs();
        this.#give(appended.items);
        return;
      }
      if (appended.kind === 'cancelled') {
        throw new ProblemError('conflict', 'the batch is cancelled; it takes no more lines', { state: 'cancelled' });
      }
      if (appended.kind === 'not_held') throw notHeld();
      if (tries === maxTries) {
        throw new ProblemError('not_ready', 'the definitions keep changing; try again', { retryAfterSeconds: 1 });
      }
    }
  }

  #give(items: readonly ItemVerdict[]): void {
    this.#count += items.length;
    this.#verdicts.add(items);
  }

  async #end(): Promise<void> {
    const { batchId, held, holder, stored } = this.#batch;
    if (this.#count < stored) {
      throw mismatch(`it has ended after ${this.#count} lines, and ${stored} of the batch are stored`);
    }
    if (held && !(await endStream(this.#deps.database, batchId, holder))) throw notHeld();
  }

  /** What is not let go here runs out by itself. */
  async #letGo(error: unknown): Promise<void> {
    const { batchId, held, holder } = this.#batch;
    if (!held || error instanceof DatabaseUnavailableError) return;
    await releaseStream(this.#deps.database, batchId, holder).catch(() => undefined);
  }

  async #holdOn(): Promise<void> {
    const { database, clock } = this.#deps;
    while (!this.#done) {
      await this.#over.wait(renewMs);
      const nowMs = clock.monotonicMs();
      if (this.#done || nowMs - this.#storedMs < renewMs || nowMs - this.#heardMs > silentMs) continue;
      try {
        if (!(await renewStream(database, { ...this.#batch, holdSeconds })) && !this.#done) {
          this.#stream.stop.abort(notHeld());
        }
      } catch (error) {
        // The next chunk tells whether it is still held.
        if (!(error instanceof DatabaseUnavailableError)) throw error;
      }
    }
  }
}

function mismatch(detail: string): ProblemError {
  return new ProblemError('resume_mismatch', `${detail}; send the same lines again, or use a new Idempotency-Key`);
}

function notHeld(): ProblemError {
  return new ProblemError('conflict', 'the batch was closed meanwhile, or another stream has taken it over');
}
