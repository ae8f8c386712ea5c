/**
 * How far something is, on stderr: a live bar on a terminal, elsewhere a plain line now and then. Other lines may come in
 * between. stdout is left to the result.
 */
import { Presets, SingleBar } from 'cli-progress';
import { systemClock } from '../system/clock.ts';

export interface ProgressView {
  /** `total` null: nobody knows. */
  show(done: number, total: number | null, rest: string): void;
  /** A line of its own, which stays. */
  say(text: string): void;
  end(): void;
}

const plainEveryMs = 2_000;
const liveEveryMs = 100;
/** Back to the start of the line, and nothing on it. */
const clearLine = '\r\u001b[K';

export function openProgressView(stream: NodeJS.WriteStream): ProgressView {
  return stream.isTTY ? liveView(stream) : plainView(stream);
}

function liveView(stream: NodeJS.WriteStream): ProgressView {
  let bar: SingleBar | undefined;
  let nextMs = 0;
  return {
    show(done, total, rest) {
      if (total !== null) {
        bar ??= openBar(stream, total);
        bar.setTotal(total);
        bar.update(done, { rest });
        return;
      }
      const nowMs = systemClock.monotonicMs();
      if (nowMs < nextMs) return;
      nextMs = nowMs + liveEveryMs;
      stream.write(`${clearLine}  ${done}  ${rest}`);
    },
    say: (text) => void stream.write(`${clearLine}${text}\n`),
    end() {
      if (bar === undefined) stream.write(clearLine);
      bar?.stop();
      bar = undefined;
    },
  };
}

function openBar(stream: NodeJS.WriteStream, total: number): SingleBar {
  const bar = new SingleBar(
    { format: '  {bar} {value}/{total}  {rest}', barsize: 30, hideCursor: true, stream, gracefulExit: false },
    Presets.shades_classic,
  );
  bar.start(total, 0, { rest: '' });
  return bar;
}

function plainView(stream: NodeJS.WriteStream): ProgressView {
  let nextMs = systemClock.monotonicMs() + plainEveryMs;
  return {
    show(done, total, rest) {
      const nowMs = systemClock.monotonicMs();
      if (nowMs < nextMs) return;
      nextMs = nowMs + plainEveryMs;
      stream.write(`${`  ${done}${total === null ? '' : `/${total}`}  ${rest}`.trimEnd()}\n`);
    },
    say: (text) => void stream.write(`${text}\n`),
    end: () => undefined,
  };
}
