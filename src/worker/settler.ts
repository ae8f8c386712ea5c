/**
 * Writes the outcomes of ended calls, in groups: whatever ended while one write was under way goes out with the next.
 * An outcome that cannot be written stays in memory and is tried again for as long as it takes; it never turns into
 * another outcome. One that the store refuses is found by halving its group, and tried again by itself, ever more rarely: it
 * costs the others nothing. What another worker took over meanwhile is dropped by the fence in the store, and told here.
 */
import { type Database, DatabaseUnavailableError, patientMs, ranOutOfTime } from '../postgres/database.ts';
import { type SettleRow, settleJobs } from '../postgres/settle-jobs.ts';
import type { Clock } from '../system/clock.ts';
import type { Logger } from '../system/logger.ts';
import { WakeSignal } from '../system/wake-signal.ts';

/** Rows of one write: bounds the statement, not the throughput. */
const mostRows = 500;
/** Where many calls end, writes start no closer together than this, in milliseconds: fewer and larger ones cost less in all. */
const paceMs = 12;
const manyRows = 8;
/** After a failure that says nothing about the rows: while PostgreSQL is away, and doubled while writers get in each other's way. */
const pauseMs = 100;
const longestPauseMs = 2_000;
/** Until a refused row is tried again: doubled each time. */
const firstRefusalMs = 100;
const longestRefusalMs = 30_000;

/** A row that the store refuses; it is tried by itself. */
interface Refused {
  readonly row: SettleRow;
  readonly times: number;
  againAtMs: number;
}

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
  /** Parts of a group that was refused, to be written before anything else. */
  #parts: SettleRow[][] = [];
  #refused: Refused[] = [];
  #writing: readonly SettleRow[] = [];
  /** Ends a pause. */
  readonly #stopping = new AbortController();
  #stopped = false;
  #givenUp = false;
  #loop: Promise<void> | undefined;

  constructor(options: SettlerOptions) {
    this.#options = options;
    this.#wake = new WakeSignal(options.clock);
  }

  /** How many outcomes are not written yet. */
  get unwritten(): number {
    return this.rows.length;
  }

  /** The outcomes that are not written yet. */
  get rows(): readonly Pick<SettleRow, 'jobId' | 'epoch'>[] {
    return [...this.#waiting, ...this.#parts.flat(), ...this.#refused.map(({ row }) => row), ...this.#writing];
  }

  start(): void {
    this.#loop = this.#run();
  }

  add(row: SettleRow): void {
    this.#waiting.push(row);
    this.#wake.set();
  }

  /**
   * Ends once everything is written, and what was refused is refused once more; when `signal` aborts, what is left is given up (its lease will run out), and it ends with
   * the write that is under way.
   */
  async drain(signal: AbortSignal): Promise<void> {
    const giveUp = () => {
      this.#givenUp = true;
      this.#waiting = [];
      this.#parts = [];
      this.#refused = [];
      this.#wake.set();
    };
    signal.addEventListener('abort', giveUp, { once: true });
    this.#stopped = true;
    for (const refused of this.#refused) refused.againAtMs = 0;
    this.#stopping.abort();
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
      const again = this.#takeDueRefused();
      if (again === undefined && this.#parts.length === 0 && this.#waiting.length === 0) {
        if (this.#stopped) return;
        await this.#wake.wait(this.#untilRefusedMs());
        continue;
      }
      // What stops others, or frees a place that they wait for, is not kept waiting.
      const leftMs = nextAtMs - clock.monotonicMs();
      if (leftMs > 0 && !this.#stopped && !this.#waiting.some(isUrgent)) await clock.sleep(leftMs);
      const startedMs = clock.monotonicMs();
      const rows = again !== undefined ? [again.row] : (this.#parts.pop() ?? this.#waiting.splice(0, mostRows));
      this.#writing = rows;
      try {
        await this.#write(rows, patientMs(outOfTime));
        nextAtMs = rows.length < manyRows ? 0 : startedMs + paceMs;
        failures = 0;
        outOfTime = 0;
      } catch (err) {
        if (ranOutOfTime(err)) outOfTime += 1;
        this.#writing = [];
        // It was under way when the rest was given up, and would be tried for ever.
        if (this.#givenUp) return;
        if (isRefusal(err)) {
          this.#onRefusal(rows, again?.times ?? 0, err);
          continue;
        }
        if (again === undefined) this.#parts.push(rows);
        else this.#refused.push(again);
        this.#options.logger.warn({ err, unwritten: this.unwritten }, 'outcomes could not be written; they are kept');
        failures = err instanceof DatabaseUnavailableError ? 1 : failures + 1;
        await this.#pause(Math.min(longestPauseMs, pauseMs * 2 ** (Math.min(failures, 6) - 1)));
      }
      this.#writing = [];
    }
  }

  /** A group is halved until the row that is at fault stands alone. */
  #onRefusal(rows: SettleRow[], times: number, err: unknown): void {
    const { clock, logger } = this.#options;
    const [row] = rows;
    if (row === undefined) return;
    if (rows.length > 1) {
      const half = Math.ceil(rows.length / 2);
      this.#parts.push(rows.slice(half), rows.slice(0, half));
      return;
    }
    const againInMs = Math.min(longestRefusalMs, firstRefusalMs * 2 ** Math.min(times, 16));
    logger.error(
      { err, job_id: row.jobId, outcome: row.outcome, times: times + 1, again_in_ms: againInMs },
      'the store refuses the outcome of a job; it is kept and tried again',
    );
    // At the end it had its last try: its lease runs out.
    if (!this.#stopped) this.#refused.push({ row, times: times + 1, againAtMs: clock.monotonicMs() + againInMs });
  }

  #takeDueRefused(): Refused | undefined {
    const now = this.#options.clock.monotonicMs();
    const at = this.#refused.findIndex(({ againAtMs }) => againAtMs <= now);
    return at === -1 ? undefined : this.#refused.splice(at, 1)[0];
  }

  #untilRefusedMs(): number {
    const now = this.#options.clock.monotonicMs();
    return Math.max(0, Math.min(...this.#refused.map(({ againAtMs }) => againAtMs)) - now);
  }

  /** Of its full length whatever is added meanwhile; the end of the worker makes it short. */
  async #pause(ms: number): Promise<void> {
    const { clock } = this.#options;
    await clock.sleep(this.#stopped ? pauseMs : ms, this.#stopped ? undefined : this.#stopping.signal);
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

/** Says nothing of the rows: rivals, a lock, stored functions of another version in an upgrade, a fault of the server. */
const passingStates = /^(40|42|55|XX)/;

/** Whether it is the rows that the store does not take. */
function isRefusal(error: unknown): boolean {
  if (error instanceof DatabaseUnavailableError) return false;
  const code = error instanceof Error && 'code' in error ? String(error.code) : '';
  return !passingStates.test(code);
}
