/**
 * Watches batches for those who wait for their end or follow what happens: one watcher a process, whatever the number of
 * clients. Nobody holds a connection while waiting. One statement a tick asks whether anything can have ended, by one
 * unfinished job of each batch; a batch is counted when that says so, and at intervals for those who follow it, the longer
 * the more it costs. Polling is the truth, so a missed notification delays nothing.
 */
import { ProblemError } from '../domain/errors.ts';
import { parseSnapshot, type Snapshot } from '../domain/event-position.ts';
import { type Database, DatabaseUnavailableError } from '../postgres/database.ts';
import { type JobEvent, readBatchEvents, readBatchSnapshot } from '../postgres/read-batch-events.ts';
import { findMoved, findUnfinished, type UnfinishedJob } from '../postgres/read-unfinished.ts';
import type { Clock } from '../system/clock.ts';
import { WakeSignal } from '../system/wake-signal.ts';
import type { BatchCounts } from './batch-counts.ts';
import type { BatchProgress } from './batches.ts';

export interface WatchDependencies {
  readonly database: Database;
  readonly clock: Clock;
}

/** A batch as it stood at one moment. */
export interface BatchLook {
  readonly batch: BatchProgress;
  /** What had committed when it was counted, and maybe a little more. */
  readonly snapshot: Snapshot;
  /** Items in that snapshot. */
  readonly items: number;
}

/** How late an end is noticed at the most, as far as it depends on us. */
const tickMs = 250;
/** Between two counts for those who follow: two updates a second are enough for people … */
const shortestGapMs = 500;
/** … and a count may take no more than a tenth of the time. */
const gapForCost = 10;
/** Items looked through for an unfinished job by one statement. */
const itemsOfLook = 20_000;
const pastEveryIndex = 2_147_483_647;
/** Batches of one statement. */
const batchesOfTick = 1_000;
/** Pages of events kept for the others that follow the same batch: they mostly ask for the same ones. */
const keptPages = 4;

interface Watched {
  readonly tenant: string;
  readonly batchId: string;
  clients: number;
  /** Of these, how many want to see progress. */
  followers: number;
  /** A job that is not done; undefined: not looked for yet; null: none was found. */
  pivot: UnfinishedJob | null | undefined;
  nextLookMs: number;
  look: BatchLook | undefined;
  looking: Promise<BatchLook> | undefined;
  failure: { readonly error: unknown } | undefined;
  readonly listeners: Set<() => void>;
  readonly pages: Map<string, Promise<JobEvent[]>>;
}

/** A batch that a client follows; to be ended. */
export interface Following {
  /** The batch as it stands now. */
  now(): Promise<BatchLook>;
  /** The next look after `seen`; null: none within `ms`, or `signal` aborted. Throws where the batch is gone. */
  next(seen: BatchLook, ms: number, signal: AbortSignal): Promise<BatchLook | null>;
  /** What has happened to the jobs of the items after `after` up to `until`, but for what is below `from`, as far as `to` at least. */
  page(range: {
    readonly after: number;
    readonly until: number;
    readonly from: Snapshot;
    readonly to: Snapshot;
  }): Promise<JobEvent[]>;
  end(): void;
}

export class BatchWatches {
  readonly #database: Database;
  readonly #clock: Clock;
  readonly #counts: BatchCounts;
  readonly #watched = new Map<string, Watched>();
  readonly #wake: WakeSignal;
  #running = false;

  /** @param counts those that others read, so that a batch is counted once for all */
  constructor({ database, clock }: WatchDependencies, counts: BatchCounts) {
    this.#database = database;
    this.#clock = clock;
    this.#counts = counts;
    this.#wake = new WakeSignal(clock);
  }

  /**
   * The batch when it is done, or as it stands when `ms` milliseconds are over or `signal` aborts. Throws a ProblemError
   * `not_found` where retention has taken it meanwhile, and DatabaseUnavailableError at the end of the time.
   */
  async waitForEnd(
    { tenant, batchId }: { readonly tenant: string; readonly batchId: string },
    ms: number,
    signal: AbortSignal,
  ): Promise<BatchProgress> {
    const endMs = this.#clock.monotonicMs() + ms;
    const watched = this.#enter(tenant, batchId, false);
    try {
      let seen: BatchLook | undefined;
      for (;;) {
        const look = await this.#next(watched, seen, Math.max(0, endMs - this.#clock.monotonicMs()), signal);
        if (look === null) return await this.#counts.read(tenant, batchId);
        if (isDone(look.batch)) return look.batch;
        seen = look;
      }
    } finally {
      this.#leave(watched, false);
    }
  }

  follow({ tenant, batchId }: { readonly tenant: string; readonly batchId: string }): Following {
    const watched = this.#enter(tenant, batchId, true);
    let ended = false;
    return {
      now: () => this.#fresh(watched),
      next: (seen, ms, signal) => this.#next(watched, seen, ms, signal),
      page: (range) => this.#page(watched, range),
      end: () => {
        if (!ended) this.#leave(watched, true);
        ended = true;
      },
    };
  }

  #enter(tenant: string, batchId: string, follows: boolean): Watched {
    const watched = this.#watched.get(keyOf({ tenant, batchId })) ?? {
      tenant,
      batchId,
      clients: 0,
      followers: 0,
      pivot: undefined,
      nextLookMs: 0,
      look: undefined,
      looking: undefined,
      failure: undefined,
      listeners: new Set(),
      pages: new Map(),
    };
    this.#watched.set(keyOf(watched), watched);
    watched.clients += 1;
    if (follows) watched.followers += 1;
    if (!this.#running) {
      this.#running = true;
      void this.#run();
    }
    return watched;
  }

  #leave(watched: Watched, follows: boolean): void {
    watched.clients -= 1;
    if (follows) watched.followers -= 1;
    if (watched.clients > 0) return;
    this.#watched.delete(keyOf(watched));
    if (this.#watched.size === 0) this.#wake.set();
  }

  async #run(): Promise<void> {
    while (this.#watched.size > 0) {
      try {
        await this.#round();
      } catch (error) {
        // Whoever waits is told by the next round, or at the end of the time.
        if (!(error instanceof DatabaseUnavailableError)) this.#fail([...this.#watched.values()], error);
      }
      await this.#wake.wait(tickMs);
    }
    this.#running = false;
  }

  /** One after the other: the watcher uses one connection at a time. */
  async #round(): Promise<void> {
    const all = [...this.#watched.values()].filter(({ failure }) => failure === undefined);
    const known = all.flatMap(({ batchId, pivot }) => (pivot == null ? [] : [{ batchId, jobId: pivot.jobId }]));
    const moved = new Map<string, { readonly ended: boolean; readonly cancelled: boolean }>();
    for (let at = 0; at < known.length; at += batchesOfTick) {
      for (const each of await findMoved(this.#database, known.slice(at, at + batchesOfTick))) {
        moved.set(each.batchId, each);
      }
    }
    for (const watched of all) {
      const { ended = false, cancelled = false } = moved.get(watched.batchId) ?? {};
      let mayBeDone = false;
      if (watched.pivot === undefined || ended) {
        watched.pivot = await this.#findPivot(watched.batchId, watched.pivot?.index ?? pastEveryIndex);
        mayBeDone = watched.pivot === null;
      }
      const atIntervals = cancelled || watched.pivot === null || watched.followers > 0;
      if (mayBeDone || (atIntervals && this.#clock.monotonicMs() >= watched.nextLookMs)) await this.#tryLook(watched);
    }
  }

  /** Below the last one, since all above had ended. */
  async #findPivot(batchId: string, below: number): Promise<UnfinishedJob | null> {
    const items = (await readBatchSnapshot(this.#database, batchId))?.items ?? 0;
    for (let top = Math.min(below, items); top > 0; top -= itemsOfLook) {
      const found = await findUnfinished(this.#database, batchId, { below: top, most: itemsOfLook });
      if (found !== null) return found;
    }
    return null;
  }

  async #tryLook(watched: Watched): Promise<void> {
    const startMs = this.#clock.monotonicMs();
    try {
      const { batch } = await this.#fresh(watched);
      if (isDone(batch) || watched.pivot !== null) return;
      // None was found, and yet it is not done: a retry has brought back a job above the last one, or more items have come.
      watched.pivot = await this.#findPivot(watched.batchId, pastEveryIndex);
      this.#spaceOut(watched, startMs);
    } catch (error) {
      if (error instanceof DatabaseUnavailableError) throw error;
      this.#fail([watched], error);
    }
  }

  /** A look that was begun after this was called; shared with all who ask meanwhile. */
  async #fresh(watched: Watched): Promise<BatchLook> {
    // One that is under way may have begun too early to show what the caller knows of.
    if (watched.looking !== undefined) await watched.looking.catch(() => undefined);
    watched.looking ??= this.#look(watched).finally(() => {
      watched.looking = undefined;
    });
    return watched.looking;
  }

  async #look(watched: Watched): Promise<BatchLook> {
    const startMs = this.#clock.monotonicMs();
    const batch = await this.#counts.read(watched.tenant, watched.batchId, Number.POSITIVE_INFINITY);
    // After the count: whatever was counted as ended is in it.
    const at = await readBatchSnapshot(this.#database, watched.batchId);
    if (at === null) throw new ProblemError('not_found', `there is no batch ${watched.batchId} any more`);
    this.#spaceOut(watched, startMs);
    watched.look = { batch, snapshot: parseSnapshot(at.snapshot), items: at.items };
    for (const tell of [...watched.listeners]) tell();
    return watched.look;
  }

  #spaceOut(watched: Watched, startMs: number): void {
    const nowMs = this.#clock.monotonicMs();
    watched.nextLookMs = nowMs + Math.max(shortestGapMs, (nowMs - startMs) * gapForCost);
  }

  #fail(failed: readonly Watched[], error: unknown): void {
    for (const watched of failed) {
      watched.failure = { error };
      for (const tell of [...watched.listeners]) tell();
    }
  }

  async #next(
    watched: Watched,
    seen: BatchLook | undefined,
    ms: number,
    signal: AbortSignal,
  ): Promise<BatchLook | null> {
    const isNew = () => watched.failure !== undefined || (watched.look !== undefined && watched.look !== seen);
    if (!isNew()) {
      const cut = new AbortController();
      const stop = () => cut.abort();
      watched.listeners.add(stop);
      signal.addEventListener('abort', stop);
      if (!signal.aborted) await this.#clock.sleep(ms, cut.signal);
      signal.removeEventListener('abort', stop);
      watched.listeners.delete(stop);
    }
    if (watched.failure !== undefined) throw watched.failure.error;
    return isNew() ? watched.look! : null;
  }

  #page(watched: Watched, { after, until, from, to }: Parameters<Following['page']>[0]): Promise<JobEvent[]> {
    const key = `${from.xmin} ${to.xmax} ${to.open.join()} ${after} ${until}`;
    const known = watched.pages.get(key);
    if (known !== undefined) return known;
    const page = readBatchEvents(this.#database, watched.batchId, { after, until, xmin: from.xmin });
    watched.pages.set(key, page);
    page.catch(() => watched.pages.delete(key));
    const [oldest] = watched.pages.keys();
    if (watched.pages.size > keptPages && oldest !== undefined) watched.pages.delete(oldest);
    return page;
  }
}

/** A tenant that asks for the batch of another has a watch of its own, which finds nothing. */
function keyOf({ tenant, batchId }: { readonly tenant: string; readonly batchId: string }): string {
  return `${batchId} ${tenant}`;
}

/** It has come to its end, whichever. */
export function isDone({ status }: BatchProgress): boolean {
  return status === 'completed' || status === 'cancelled';
}
