/**
 * A wait that can be cut short. A signal that is set while nobody waits is kept, so that what happened between a look and
 * the wait after it is not slept through.
 */
import type { Clock } from './clock.ts';

const woken = 'woken';

export class WakeSignal {
  readonly #clock: Clock;
  #set = false;
  #cut: AbortController | undefined;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** The next wait will not last. */
  get isSet(): boolean {
    return this.#set;
  }

  /** Ends the wait that is going on, or the next one. */
  set(): void {
    this.#set = true;
    // With a reason of its own: the usual one is an error with a stack, made each time for nobody.
    this.#cut?.abort(woken);
  }

  /** Waits `ms` milliseconds (Infinity: until set), or until set; takes the signal. */
  async wait(ms: number): Promise<void> {
    if (!this.#set) {
      const cut = new AbortController();
      this.#cut = cut;
      await this.#clock.sleep(ms, cut.signal);
      this.#cut = undefined;
    }
    this.#set = false;
  }
}
