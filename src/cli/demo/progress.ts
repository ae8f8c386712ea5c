/**
 * The main batch while it runs: a live bar on a terminal, a plain line every two seconds elsewhere. Polls the service's own
 * progress, as any user would.
 */
import { Presets, SingleBar } from 'cli-progress';
import { systemClock } from '../../system/clock.ts';
import type { ApiClient } from '../api-client.ts';

export interface BatchStatus {
  readonly batch_id: string;
  readonly status: string;
  readonly jobs: Readonly<Record<string, number>>;
}

/** States in which a job needs nothing more. */
const endedStates = ['succeeded', 'failed', 'cancelled', 'expired'];
const pollMs = 200;
const plainLineMs = 2000;

export interface Watch {
  /** Gives up then and returns what was last seen. */
  readonly longestMs: number;
  readonly signal: AbortSignal;
  readonly display?: Display;
}

/** Resolves with the batch as last seen: `completed`, or whatever it was when the time was up. Rejects when aborted. */
export async function watchBatch(api: ApiClient, batchId: string, watch: Watch): Promise<BatchStatus> {
  const startedMs = systemClock.monotonicMs();
  try {
    for (;;) {
      const batch = await api.call<BatchStatus>('GET', `/v1/batches/${batchId}`, { signal: watch.signal });
      const elapsedMs = systemClock.monotonicMs() - startedMs;
      watch.display?.show(batch, elapsedMs);
      if (batch.status === 'completed' || elapsedMs > watch.longestMs) return batch;
      await systemClock.sleep(pollMs, watch.signal);
      watch.signal.throwIfAborted();
    }
  } finally {
    watch.display?.end();
  }
}

/** For `total` jobs, fit for where it is shown. */
export function displayFor(stream: NodeJS.WriteStream, total: number): Display {
  return stream.isTTY ? barDisplay(total, stream) : lineDisplay(total, stream);
}

export interface Display {
  show(batch: BatchStatus, elapsedMs: number): void;
  end(): void;
}

function barDisplay(total: number, stream: NodeJS.WriteStream): Display {
  const bar = new SingleBar(
    { format: '  {bar} {value}/{total}  {rest}', barsize: 30, hideCursor: true, stream, gracefulExit: false },
    Presets.shades_classic,
  );
  bar.start(total, 0, { rest: '' });
  return {
    show: (batch) => bar.update(ended(batch), { rest: unfinished(batch).padEnd(45) }),
    end: () => bar.stop(),
  };
}

function lineDisplay(total: number, stream: NodeJS.WriteStream): Display {
  let nextMs = 0;
  return {
    show(batch, elapsedMs) {
      const done = ended(batch);
      if (elapsedMs < nextMs && batch.status !== 'completed') return;
      nextMs = elapsedMs + plainLineMs;
      const seconds = (elapsedMs / 1000).toFixed(1).padStart(5);
      const line = `  ${seconds} s  ${String(done).padStart(String(total).length)}/${total}  ${unfinished(batch)}`;
      stream.write(`${line.trimEnd()}\n`);
    },
    end: () => {},
  };
}

function ended(batch: BatchStatus): number {
  return endedStates.reduce((sum, state) => sum + (batch.jobs[state] ?? 0), 0);
}

/** `12 ready, 3 running, 2 scheduled`: `scheduled` are retries here. */
function unfinished(batch: BatchStatus): string {
  return Object.entries(batch.jobs)
    .filter(([state, count]) => count > 0 && !endedStates.includes(state))
    .map(([state, count]) => `${count} ${state === 'scheduled' ? 'waiting to retry' : state}`)
    .join(', ');
}
