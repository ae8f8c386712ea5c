/**
 * The worker's slots: at most so many calls at once. Jobs that were claimed beyond the free slots wait here for milliseconds,
 * in the order of the claim: first until they may be called at all, then for a slot. One whose time runs out is given back.
 */
import type { Clock } from '../system/clock.ts';

export interface SlotsOptions<Job> {
  readonly clock: Clock;
  readonly size: number;
  /** Starts the call of a job. `ended` must be called once when it is over. */
  readonly start: (job: Job) => void;
  /** When a job that waits is to be given back, by `clock.monotonicMs()`. */
  readonly goodUntilMs: (job: Job) => number;
  /** These have waited for too long (`late`), or are asked back. */
  readonly giveBack: (jobs: readonly Job[], late: boolean) => void;
}

export class Slots<Job> {
  readonly #options: SlotsOptions<Job>;
  /** May be called. */
  #waiting: Job[] = [];
  /** Must not be called yet. */
  #later: Job[] = [];
  #calls = 0;
  #reserved = 0;
  #watching = false;

  constructor(options: SlotsOptions<Job>) {
    this.#options = options;
  }

  /** Slots that no job is running in or waiting for, and that are kept for none. */
  get free(): number {
    return Math.max(0, this.#options.size - this.#calls - this.waiting - this.#reserved);
  }

  /** Keeps so many slots, not more than are free, for jobs that may come. */
  reserve(slots: number): void {
    this.#reserved += slots;
  }

  /** Frees reserved slots that no job came for. */
  release(slots: number): void {
    this.#reserved -= slots;
    this.#fill();
  }

  /** Starts these in the slots that were reserved for them, before any that wait. */
  addReserved(jobs: readonly Job[]): void {
    this.#reserved -= jobs.length;
    this.#waiting.unshift(...jobs);
    this.#fill();
  }

  /** Jobs that wait, whatever for. */
  get waiting(): number {
    return this.#waiting.length + this.#later.length;
  }

  /** @param later those that must not be called before `letGo` */
  add(jobs: readonly Job[], later: readonly Job[] = []): void {
    this.#later.push(...later);
    this.#waiting.push(...jobs);
    this.#fill();
    if (this.waiting > 0 && !this.#watching) void this.#watch();
  }

  /** Those that wait and are such may be called. */
  letGo(which: (job: Job) => boolean): void {
    this.#waiting.push(...this.#later.filter(which));
    this.#later = this.#later.filter((job) => !which(job));
    this.#fill();
  }

  /** A call is over. */
  ended(): void {
    this.#calls -= 1;
    this.#fill();
  }

  /** Gives back those that wait and are such. */
  clear(which: (job: Job) => boolean): void {
    this.#giveBack(which, false);
  }

  #giveBack(which: (job: Job) => boolean, late: boolean): void {
    const back = [...this.#waiting.filter(which), ...this.#later.filter(which)];
    if (back.length === 0) return;
    this.#waiting = this.#waiting.filter((job) => !which(job));
    this.#later = this.#later.filter((job) => !which(job));
    this.#options.giveBack(back, late);
  }

  #fill(): void {
    const { size, start } = this.#options;
    while (this.#calls + this.#reserved < size && this.#waiting.length > 0) {
      this.#calls += 1;
      start(this.#waiting.shift()!);
    }
  }

  /** Jobs wait for less than a permit lasts, so a timer that ends by itself is enough. */
  async #watch(): Promise<void> {
    const { clock, goodUntilMs } = this.#options;
    this.#watching = true;
    while (this.waiting > 0) {
      const first = Math.min(...this.#waiting.map(goodUntilMs), ...this.#later.map(goodUntilMs));
      await clock.sleep(Math.max(1, first - clock.monotonicMs()));
      const now = clock.monotonicMs();
      this.#giveBack((job) => goodUntilMs(job) <= now, true);
    }
    this.#watching = false;
  }
}
