/**
 * Rate windows for operators: their live state, the check of the service against its own records, and the levers. Reading
 * computes from the stored row and the database's clock; it never creates or spends anything.
 */
import { type RateLimit, tokenBucketBurst } from '../domain/definitions.ts';
import { ProblemError } from '../domain/errors.ts';
import {
  emptyWindow,
  permitMs,
  rollWindow,
  unlimitedRoom,
  windowOpensAtUs,
  windowRoom,
} from '../domain/rate-window.ts';
import type { Database } from '../postgres/database.ts';
import { lockDefinitions, readStored, type Stored } from '../postgres/definitions.ts';
import {
  fullestInterval,
  listWindowNames,
  readWindows,
  type StoredWindow,
  type WindowCooldown,
  type WindowName,
} from '../postgres/read-rate-windows.ts';
import { closeWindow, forgetCount, reopenUnder, setWindowPaused } from '../postgres/steer-rate-windows.ts';
import { inTransaction, type TransactionClient } from '../postgres/transaction.ts';
import type { Clock } from '../system/clock.ts';

export interface RateWindowDependencies {
  readonly database: Database;
  readonly clock: Clock;
}

/** A window as the API shows it. */
export interface RateWindowView {
  readonly limit: string;
  /** null: the only window of its limit, or that of jobs without a partition key. */
  readonly partitionKey: string | null;
  readonly state: 'open' | 'exhausted' | 'cooling' | 'probing' | 'paused';
  readonly algorithm: RateLimit['algorithm'];
  /** null: no start limit. */
  readonly capacity: number | null;
  readonly per: number;
  readonly used: number;
  readonly remaining: number | null;
  /** Of an open fixed window. */
  readonly windowStartedAt: Date | null;
  /** When room next grows; null while nothing is used. */
  readonly resetsAt: Date | null;
  readonly inFlight: number;
  readonly cooldownUntil: Date | null;
  readonly cooldown: WindowCooldown | null;
  readonly waitingJobs: number;
  readonly permitMs: number;
}

/** One page in order of (limit, partition key); `next`: pass as `after` for the rest. Throws ProblemError `not_found` for `only`. */
export async function listRateWindows(
  { database }: RateWindowDependencies,
  { only, after, limit }: { only: string | null; after: WindowName; limit: number },
): Promise<{ items: RateWindowView[]; next: WindowName | null }> {
  if (only !== null) await rateLimit(database, only);
  const names = await listWindowNames(database, { only, after, limit: limit + 1 });
  const page = names.slice(0, limit);
  return { items: await view(database, page), next: names.length > limit ? page.at(-1)! : null };
}

/** One window, also where nothing was admitted through it yet. Throws ProblemError `not_found`. */
export async function getRateWindow({ database }: RateWindowDependencies, name: WindowName): Promise<RateWindowView> {
  await rateLimit(database, name.limit);
  return (await view(database, [name]))[0]!;
}

/** Whether a limit has a window per partition key. Throws ProblemError `not_found`. */
export async function isPartitioned({ database }: RateWindowDependencies, limit: string): Promise<boolean> {
  return (await rateLimit(database, limit)).by_partition;
}

async function view(database: Database, names: readonly WindowName[]): Promise<RateWindowView[]> {
  const limits = new Map<string, RateLimit>();
  for (const { limit } of names) if (!limits.has(limit)) limits.set(limit, await rateLimit(database, limit));
  const windows = await readWindows(database, names);
  return windows.map((window) => toView(window, limits.get(window.limit)!));
}

function toView(window: StoredWindow, rule: RateLimit): RateWindowView {
  const { nowUs, cooldown } = window;
  const state = rollWindow(window.state ?? emptyWindow(rule, nowUs), rule, nowUs);
  const room = windowRoom(state, rule);
  const capacity = capacityOf(rule);
  const used = rule.algorithm === 'token_bucket' ? Math.max(0, (capacity ?? 0) - room) : state.used;
  const growsAtUs = used > 0 ? nextGrowthUs(state, rule, nowUs, room) : null;
  return {
    limit: window.limit,
    partitionKey: window.partitionKey === '' ? null : window.partitionKey,
    state: stateOf(window, rule, room),
    algorithm: rule.algorithm,
    capacity,
    per: rule.per,
    used,
    remaining: room === unlimitedRoom ? null : room,
    windowStartedAt:
      rule.algorithm === 'fixed_window' && state.anchorUs !== null ? new Date(state.anchorUs / 1000) : null,
    resetsAt: growsAtUs === null ? null : new Date(Math.ceil(growsAtUs / 1000)),
    inFlight: window.inFlight,
    cooldownUntil: cooldown !== null && !cooldown.probing ? cooldown.until : null,
    cooldown,
    waitingJobs: window.waitingJobs,
    permitMs,
  };
}

function capacityOf(rule: RateLimit): number | null {
  if (rule.limit === null) return null;
  return rule.algorithm === 'token_bucket' ? tokenBucketBurst(rule.limit, rule.per, rule.burst) : rule.limit;
}

function stateOf({ paused, cooldown }: StoredWindow, rule: RateLimit, room: number): RateWindowView['state'] {
  if (paused || rule.limit === 0) return 'paused';
  if (cooldown !== null) return cooldown.probing ? 'probing' : 'cooling';
  return room < 1 ? 'exhausted' : 'open';
}

/** When there is room for one more than now; a window over its (lowered) limit grows when it is under it again. */
function nextGrowthUs(
  state: ReturnType<typeof rollWindow>,
  rule: RateLimit,
  nowUs: number,
  room: number,
): number | null {
  const capacity = capacityOf(rule);
  return capacity === null || room >= capacity ? null : windowOpensAtUs(state, rule, nowUs, room + 1);
}

/** How far an audit looks back by itself. */
const auditedMs = 3_600_000;

/** The audit of a limit; see `auditRateWindow`. */
export interface RateWindowAudit {
  readonly limit: string;
  readonly partitionKey: string | null;
  readonly per: number;
  readonly maxStarts: number;
  /** Start of the fullest interval; null: nothing was started. */
  readonly at: Date | null;
  /** Most that the guarantee allows in any interval of one period; null: no start limit. */
  readonly bound: number | null;
  readonly since: Date;
}

/**
 * The largest number of starts (by cost) in any interval of one period since a time, from the attempts' own send times and
 * not from the counter: the service checks itself. Throws ProblemError `not_found`.
 * @param since null: an hour ago, or when the limit was last put where that is later. What was let through before that
 * is not counted then, be it that it left after: another limit, or none, allowed it. A time is taken as it is given.
 */
export async function auditRateWindow(
  { database, clock }: RateWindowDependencies,
  { limit, partitionKey, since: asked }: { limit: string; partitionKey: string | null; since: Date | null },
): Promise<RateWindowAudit> {
  const { definition: rule, updatedAt } = await storedLimit(database, limit);
  const since = asked ?? new Date(Math.max(clock.wallMs() - auditedMs, updatedAt.getTime()));
  const found = await fullestInterval(database, {
    upstreams: rule.upstreams,
    queues: rule.queues,
    byPartition: rule.by_partition,
    partitionKey,
    perSeconds: rule.per,
    since,
    admittedSince: asked === null ? updatedAt : null,
  });
  const key = found !== null && rule.by_partition && found.partitionKey !== '' ? found.partitionKey : partitionKey;
  return {
    limit,
    partitionKey: key,
    per: rule.per,
    maxStarts: found?.starts ?? 0,
    at: found?.at ?? null,
    bound: boundOf(rule),
    since,
  };
}

/** Of any interval of one period, wherever it lies. */
function boundOf(rule: RateLimit): number | null {
  if (rule.limit === null) return null;
  switch (rule.algorithm) {
    case 'sliding_window':
      return rule.limit;
    case 'fixed_window':
      // An interval may straddle two windows.
      return 2 * rule.limit;
    case 'token_bucket':
      return Math.floor(
        tokenBucketBurst(rule.limit, rule.per, rule.burst) + rule.limit + (rule.limit * permitMs) / (rule.per * 1000),
      );
  }
}

/** Which window a lever is for; null: the only one, or (where the lever allows it) all of a limit by partition. */
export interface WindowTarget {
  readonly limit: string;
  readonly partitionKey: string | null;
}

/** Nothing is admitted through a paused window, once this has answered. Throws ProblemError `not_found`, `invalid_request`. */
export async function pauseRateWindow(deps: RateWindowDependencies, target: WindowTarget): Promise<RateWindowView> {
  const name = await oneWindow(deps, target);
  await steer(deps, name, (client) => setWindowPaused(client, name, true));
  await deps.clock.sleep(permitMs);
  return getRateWindow(deps, name);
}

/** Throws ProblemError `not_found`, `invalid_request`. */
export async function resumeRateWindow(deps: RateWindowDependencies, target: WindowTarget): Promise<RateWindowView> {
  const name = await oneWindow(deps, target);
  await steer(deps, name, (client) => setWindowPaused(client, name, false));
  return getRateWindow(deps, name);
}

/** Forgets the count: what was admitted until now counts no more. Without a partition key: in all windows of the limit. */
export async function resetRateWindow(deps: RateWindowDependencies, target: WindowTarget): Promise<RateWindowView> {
  await rateLimit(deps.database, target.limit);
  const name = { limit: target.limit, partitionKey: target.partitionKey ?? '' };
  await steer(deps, name, (client) => forgetCount(client, target.limit, target.partitionKey));
  return getRateWindow(deps, name);
}

/** Closes until a time; a cooldown only ever extends. Without a partition key: everything under the limit. */
export async function coolRateWindow(
  deps: RateWindowDependencies,
  target: WindowTarget & { readonly seconds: number; readonly reason: string },
): Promise<RateWindowView> {
  await rateLimit(deps.database, target.limit);
  const name = { limit: target.limit, partitionKey: target.partitionKey ?? '' };
  await inTransaction(deps.database, (client) => closeWindow(client, name, target.seconds, target.reason));
  return getRateWindow(deps, name);
}

async function steer(
  { database }: RateWindowDependencies,
  { limit }: WindowName,
  work: (client: TransactionClient) => Promise<void>,
): Promise<void> {
  await inTransaction(database, async (client) => {
    await lockDefinitions(client);
    await work(client);
    await reopenUnder(client, limit);
  });
}

async function oneWindow({ database }: RateWindowDependencies, target: WindowTarget): Promise<WindowName> {
  const rule = await rateLimit(database, target.limit);
  if (rule.by_partition && target.partitionKey === null) {
    throw new ProblemError(
      'invalid_request',
      `the rate limit "${target.limit}" has a window per partition key: name one, or set its limit to 0 to stop all`,
      { errors: [{ pointer: '/partition_key', code: 'required', message: 'is required for a limit by partition' }] },
    );
  }
  if (!rule.by_partition && target.partitionKey !== null) {
    throw new ProblemError(
      'invalid_request',
      `the rate limit "${target.limit}" has one window for all: give no partition key`,
      {
        errors: [{ pointer: '/partition_key', code: 'not_partitioned', message: 'the limit has no partitions' }],
      },
    );
  }
  return { limit: target.limit, partitionKey: target.partitionKey ?? '' };
}

async function rateLimit(database: Database, name: string): Promise<RateLimit> {
  return (await storedLimit(database, name)).definition;
}

async function storedLimit(database: Database, name: string): Promise<Stored<'rate_limits'>> {
  const stored = await readStored(database, 'rate_limits', name);
  if (stored === undefined) throw new ProblemError('not_found', 'there is no rate limit of this name');
  return stored;
}
