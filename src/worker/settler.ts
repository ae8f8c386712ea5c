/**
 * Writes the outcomes of ended calls, in groups: whatever ended while one write was under way goes out with the next.
 * An outcome that cannot be written stays in memory and is tried again for as long as it takes; it never turns into
 * another outcome. What another worker took over meanwhile is dropped by the fence in the store, and told here.
 */
import { type Database, DatabaseUnavailableError, patientMs, ranOutOfTime } from '../postgres/database.ts';
import { type SettleRow, settleJobs } from '../postgres/settle-jobs.ts';
import type { Clock } from '../system/clock.ts';
import type { Logger } from '../system/logger.ts';
import { WakeSignal } from '../system/wake-signal.ts';

/** Rows of one write: bounds the statement, not the throughput. */
const mostRows = 500;
/** Where many calls end, writes start no closer together than this, in milliseconds: fewer and larger ones cost less in all. */
const paceMs = 8;
const manyRows = 8;
const firstPauseMs = 50;
const longestPauseMs = 2_000;

export interface SettlerOptions {
  readonly database: Database;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly workerId: string;
  /** After each group that was written. */
  readonly onSettled: (rows: readonly SettleRow[], stale: readonly SettleRow[]) => void;
}

export class Settler {
  readonly #options: SettlerOptions;
  readonly #wake: WakeSignal;
  #waiting: SettleRow[] = [];
  #writing: readonly SettleRow[] = [];
  #stopped = false;
  #givenUp = false;
  #loop: Promise<void> | undefined;

  constructor(options: SettlerOptions) {
    this.#options = options;
    this.#wake = new WakeSignal(options.clock);
  }

  /** How many outcomes are not written yet. */
  get unwritten(): number {
    return this.#waiting.length + this.#writing.length;
  }

  /** The outcomes that are not written yet. */
  get rows(): readonly Pick<SettleRow, 'jobId' | 'epoch'>[] {
    return [...this.#waiting, ...this.#writing];
  }

  start(): void {
    this.#loop = this.#run();
  }

  add(row: SettleRow): void {
    this.#waiting.push(row);
    this.#wake.set();
  }

  /**
   * Ends once everything is written; when `signal` aborts, what is left is given up (its lease will run out), and it ends with
   * the write that is under way.
   */
  async drain(signal: AbortSignal): Promise<void> {
    const giveUp = () => {
      this.#givenUp = true;
      this.#waiting = [];
      this.#wake.set();
    };
    signal.addEventListener('abort', giveUp, { once: true });
    this.#stopped = true;
    this.#wake.set();
    await this.#loop;
    signal.removeEventListener('abort', giveUp);
  }

  async #run(): Promise<void> {
    const { clock } = this.#options;
    let failures = 0;
    let outOfTime = 0;
    let nextAtMs = 0;
    while (true) {
      if (this.#waiting.length === 0) {
        if (this.#stopped) return;
        await this.#wake.wait(Number.POSITIVE_INFINITY);
        continue;
      }
      // What stops others, or frees a place that they wait for, is not kept waiting.
      const leftMs = nextAtMs - clock.monotonicMs();
      if (leftMs > 0 && !this.#stopped && !this.#waiting.some(isUrgent)) await clock.sleep(leftMs);
      const startedMs = clock.monotonicMs();
      this.#writing = this.#waiting.splice(0, failures > 0 ? narrowed(failures) : mostRows);
      try {
        await this.#write(this.#writing, patientMs(outOfTime));
        nextAtMs = this.#writing.length < manyRows ? 0 : startedMs + paceMs;
        failures = 0;
        outOfTime = 0;
      } catch (err) {
        if (ranOutOfTime(err)) outOfTime += 1;
        this.#waiting = [...this.#writing, ...this.#waiting];
        const away = err instanceof DatabaseUnavailableError;
        failures = away ? Math.max(1, failures) : failures + 1;
        this.#options.logger.warn(
          { err, unwritten: this.#waiting.length },
          'outcomes could not be written; they are kept',
        );
        // It was under way when the rest was given up, and would be tried for ever.
        if (this.#givenUp) return;
        // A row that the store refuses must not hold up the others for ever: it goes behind them.
        if (!away && this.#writing.length === 1) this.#waiting.push(this.#waiting.shift()!);
        this.#writing = [];
        await this.#wake.wait(Math.min(longestPauseMs, firstPauseMs * 2 ** Math.min(failures, 6)));
      }
      this.#writing = [];
    }
  }

  async #write(rows: readonly SettleRow[], withinMs: number): Promise<void> {
    const { database, workerId, onSettled } = this.#options;
    const settled = await settleJobs(database, workerId, rows, { withinMs });
    onSettled(
      rows.filter((row) => settled.has(row.jobId)),
      rows.filter((row) => !settled.has(row.jobId)),
    );
  }
}

function isUrgent({ next, throttle }: SettleRow): boolean {
  return throttle !== null || next.kind !== 'done';
}

/** After a failure that is not the connection's, smaller groups find the row that is at fault. */
function narrowed(failures: number): number {
  return failures > 3 ? 1 : mostRows;
}
