/**
 * Ends the calls whose deadline has passed or whose caller gave up. One look at all of them at intervals, in place of a
 * timer and a listener for each: calls are many and short, and hardly one of them needs ending.
 */
import type { Clock } from '../system/clock.ts';

/** How often calls in flight are looked at, in milliseconds: by so much a deadline may be late, never early. */
const tickMs = 20;

export interface WatchedCall {
  /** Ends itself where it is time. @param nowMs monotonic */
  check(nowMs: number): void;
}

export class CallWatch {
  readonly #clock: Clock;
  readonly #calls = new Set<WatchedCall>();
  #watching = false;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  add(call: WatchedCall): void {
    this.#calls.add(call);
    if (!this.#watching) void this.#watch();
  }

  delete(call: WatchedCall): void {
    this.#calls.delete(call);
  }

  checkAll(): void {
    const nowMs = this.#clock.monotonicMs();
    for (const call of this.#calls) call.check(nowMs);
  }

  /** Runs only while there is something to watch, so that an idle process stays idle. */
  async #watch(): Promise<void> {
    this.#watching = true;
    while (this.#calls.size > 0) {
      await this.#clock.sleep(tickMs);
      this.checkAll();
    }
    this.#watching = false;
  }
}
