/**
 * A limit on how much goes on at once: whoever comes when all turns are taken stands in line, and is served in the order of
 * coming. A turn that is given back goes to the first in line.
 */
import type { Clock } from './clock.ts';

export class Turns {
  readonly #clock: Clock;
  #free: number;
  readonly #line = new Set<AbortController>();

  /** @param most turns at once, 1 or more */
  constructor(most: number, clock: Clock) {
    this.#free = most;
    this.#clock = clock;
  }

  /** Resolves to true with a turn, which is to be given back; to false where none came within `ms` milliseconds. */
  async take(ms: number): Promise<boolean> {
    if (this.#free > 0) {
      this.#free -= 1;
      return true;
    }
    const called = new AbortController();
    this.#line.add(called);
    await this.#clock.sleep(ms, called.signal);
    // A turn that came at the last moment is taken.
    if (called.signal.aborted) return true;
    this.#line.delete(called);
    return false;
  }

  /** Gives one back. */
  give(): void {
    const [first] = this.#line;
    if (first === undefined) {
      this.#free += 1;
      return;
    }
    this.#line.delete(first);
    first.abort();
  }
}
