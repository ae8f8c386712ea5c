/**
 * Time for waiting and for measuring durations; the time of day that decides anything is the database's.
 * The only place in the code that reads a clock of this process or sets a timer.
 */

/** Longest delay Node's timers take; a longer one would fire at once. */
const maxTimerMs = 2_147_483_647;

export interface Clock {
  /** Milliseconds that never go back; only differences mean anything. */
  monotonicMs(): number;
  /** This process's time of day in milliseconds since 1970 (for a suspended machine, log lines and HTTP dates). */
  wallMs(): number;
  /**
   * Resolves after at least `ms` milliseconds, or as soon as `signal` aborts (it does not reject). Delays of any length are
   * chunked. Throws a RangeError for NaN or a negative delay: a wrong delay must not become a hot loop.
   */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
}

export const systemClock: Clock = {
  monotonicMs: () => performance.now(),
  wallMs: () => Date.now(),
  async sleep(ms, signal) {
    if (Number.isNaN(ms) || ms < 0) throw new RangeError(`a delay must be 0 or more milliseconds, got ${ms}`);
    const end = performance.now() + ms;
    let left = ms;
    while (left > 0 && !signal?.aborted) {
      await oneTimer(Math.min(left, maxTimerMs), signal);
      left = end - performance.now();
    }
  },
};

/** Resolves at the end of this turn of the event loop, after what was put off to it before (`setImmediate`). */
export function endOfTurn(): Promise<void> {
  return new Promise((resolve) => {
    setImmediate(resolve);
  });
}

/**
 * Where `monotonicMs` of this process begins on the clock that all processes of the machine share: readings of two processes
 * are comparable by it.
 */
export function monotonicOriginMs(): number {
  // A process that loses its processor between the two readings makes it too small: the largest of some tries is right.
  const tries = Array.from({ length: 50 }, () => Number(process.hrtime.bigint()) / 1e6 - performance.now());
  return Math.max(...tries);
}

function oneTimer(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, Math.ceil(ms));
    signal?.addEventListener('abort', done, { once: true });
  });
}
