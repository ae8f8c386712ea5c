/**
 * The main batch while it runs: a live bar on a terminal, a plain line every two seconds elsewhere. Polls what any user can
 * see: the batch's own counts, and the state of the rate window that it waits for.
 */
import { Presets, SingleBar } from 'cli-progress';
import type { SluiceClient } from '../../client/index.ts';
import { systemClock } from '../../system/clock.ts';

export interface BatchStatus {
  readonly batch_id: string;
  readonly status: string;
  readonly jobs: Readonly<Record<string, number>>;
}

/** Live state of the rate limit, as `GET /admin/rate-windows/{limit}` gives it. */
export interface WindowState {
  readonly state: string;
}

/** States in which a job needs nothing more. */
const endedStates = ['succeeded', 'failed', 'cancelled', 'expired'];
const pollMs = 200;
const plainLineMs = 2000;

export interface Watch {
  readonly batchId: string;
  /** Name of the rate limit over it. */
  readonly limit: string;
  /** Gives up then and returns what was last seen. */
  readonly longestMs: number;
  readonly signal: AbortSignal;
  readonly display?: Display;
}

/** Resolves with the batch as last seen: `completed`, or whatever it was when the time was up. Rejects when aborted. */
export async function watchBatch(api: SluiceClient, watch: Watch): Promise<BatchStatus> {
  const { batchId, limit, signal, display, longestMs } = watch;
  const startedMs = systemClock.monotonicMs();
  try {
    for (;;) {
      const [batch, window] = await Promise.all([
        api.call<BatchStatus>('GET', `/v1/batches/${batchId}`, { signal }),
        api.call<WindowState>('GET', `/admin/rate-windows/${limit}`, { signal }),
      ]);
      const elapsedMs = systemClock.monotonicMs() - startedMs;
      display?.show(batch, window, elapsedMs);
      if (batch.status === 'completed' || elapsedMs > longestMs) return batch;
      await systemClock.sleep(pollMs, signal);
      signal.throwIfAborted();
    }
  } finally {
    display?.end();
  }
}

/** For `total` jobs, fit for where it is shown. */
export function displayFor(stream: NodeJS.WriteStream, total: number): Display {
  return stream.isTTY ? barDisplay(total, stream) : lineDisplay(total, stream);
}

export interface Display {
  show(batch: BatchStatus, window: WindowState, elapsedMs: number): void;
  end(): void;
}

function barDisplay(total: number, stream: NodeJS.WriteStream): Display {
  const bar = new SingleBar(
    { format: '  {bar} {value}/{total}  {rest}', barsize: 30, hideCursor: true, stream, gracefulExit: false },
    Presets.shades_classic,
  );
  bar.start(total, 0, { rest: '' });
  return {
    show: (batch, window) => bar.update(ended(batch), { rest: unfinished(batch, window) }),
    end: () => bar.stop(),
  };
}

function lineDisplay(total: number, stream: NodeJS.WriteStream): Display {
  let nextMs = 0;
  return {
    show(batch, window, elapsedMs) {
      if (elapsedMs < nextMs && batch.status !== 'completed') return;
      nextMs = elapsedMs + plainLineMs;
      const seconds = (elapsedMs / 1000).toFixed(1).padStart(5);
      const done = String(ended(batch)).padStart(String(total).length);
      stream.write(`${`  ${seconds} s  ${done}/${total}  ${unfinished(batch, window)}`.trimEnd()}\n`);
    },
    end: () => {},
  };
}

function ended(batch: BatchStatus): number {
  return endedStates.reduce((sum, state) => sum + (batch.jobs[state] ?? 0), 0);
}

/** `cooling: 12 ready, 3 running, 2 to retry`; nothing where all have ended. */
function unfinished(batch: BatchStatus, window: WindowState): string {
  const counts = Object.entries(batch.jobs)
    .filter(([state, count]) => count > 0 && !endedStates.includes(state))
    // Nothing here has a `run_at`, so what is scheduled waits for its next attempt.
    .map(([state, count]) => `${count} ${state === 'scheduled' ? 'to retry' : state}`);
  return counts.length === 0 ? '' : `window ${window.state}: ${counts.join(', ')}`;
}
