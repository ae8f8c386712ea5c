/**
 * The arithmetic of a rate window: what counts, how much room there is, when there is more. Pure; times are microseconds
 * since 1970 on the database's clock. The claim does the same in SQL (`postgres/rate-windows.ts`); tests hold the two equal.
 *
 * Invariant of `sliding_window`: an admission at `a` happens only while all admissions in the closed interval
 * [a - horizon, a], itself included, cost at most `limit` together, where horizon = period + permit + slack. A start leaves
 * its worker within `permitMs` of its admission and arrives within `slack_ms` of jitter, so no interval of one period,
 * wherever it lies, holds more than `limit` starts or arrivals. Time is cut into sub-windows of period / 100; a sub-window
 * counts until all of it is out of the horizon, so rounding only ever delays.
 */
import { type RateLimit, tokenBucketBurst } from './definitions.ts';

/** How long an admission may be used, measured by the worker from before the claim query left. */
export const permitMs = 40;

/** Sub-windows per period: the finest step in which a sliding window gives room back. */
export const subWindowsPerPeriod = 100;

const usPerMs = 1_000;
const usPerSecond = 1_000_000;

/** Stands for "no start limit" where a number is wanted; the same in SQL. */
export const unlimitedRoom = 2_147_483_647;

export type WindowRule = Pick<RateLimit, 'limit' | 'per' | 'algorithm' | 'burst' | 'slack_ms'>;

/** What is stored of a window; `widthUs` and `horizonUs` say with which rule the ring was written. */
export interface WindowState {
  readonly algorithm: WindowRule['algorithm'];
  readonly widthUs: number;
  readonly horizonUs: number;
  /** Cost admitted in sub-window n stands at index n mod length; zero outside tail..head. */
  readonly ring: readonly number[];
  readonly head: number;
  readonly tail: number;
  /** sliding_window: sum of the ring; fixed_window: admitted since `anchorUs`. */
  readonly used: number;
  /** fixed_window: when the window opened, null: none is open; token_bucket: when `level` was true. */
  readonly anchorUs: number | null;
  readonly level: number;
}

/** Width of a sub-window in microseconds. */
export function subWindowUs(rule: WindowRule): number {
  return (rule.per * usPerSecond) / subWindowsPerPeriod;
}

/** How long an admission counts under `sliding_window`, in microseconds. */
export function horizonUs(rule: WindowRule): number {
  return rule.per * usPerSecond + (permitMs + rule.slack_ms) * usPerMs;
}

function ringLength(rule: WindowRule): number {
  return Math.floor(horizonUs(rule) / subWindowUs(rule)) + 3;
}

/** A window in which nothing was admitted. */
export function emptyWindow(rule: WindowRule, nowUs: number): WindowState {
  const sliding = rule.algorithm === 'sliding_window';
  const width = subWindowUs(rule);
  return {
    algorithm: rule.algorithm,
    widthUs: width,
    horizonUs: horizonUs(rule),
    ring: sliding ? new Array<number>(ringLength(rule)).fill(0) : [],
    head: sliding ? Math.floor(nowUs / width) : 0,
    tail: sliding ? Math.floor((nowUs - horizonUs(rule)) / width) : 0,
    used: 0,
    anchorUs: rule.algorithm === 'token_bucket' ? nowUs : null,
    level: rule.algorithm === 'token_bucket' ? bucketSize(rule) : 0,
  };
}

/**
 * The window as it stands at `nowUs` under `rule`: what no longer counts is gone, and a state written under another rule is
 * carried over (an interval that spans a redefinition is bounded by the old limit plus the new one). Never goes back in time.
 */
export function rollWindow(stored: WindowState, rule: WindowRule, nowUs: number): WindowState {
  const state = carryOver(stored, rule, nowUs);
  switch (rule.algorithm) {
    case 'sliding_window': {
      const tail = Math.max(state.tail, Math.floor((nowUs - state.horizonUs) / state.widthUs));
      const head = Math.max(state.head, Math.floor(nowUs / state.widthUs));
      const ring = [...state.ring];
      let used = state.used;
      for (let n = state.tail; n < Math.min(tail, state.head + 1); n++) {
        const i = n % ring.length;
        used -= ring[i]!;
        ring[i] = 0;
      }
      return { ...state, ring, head, tail, used };
    }
    case 'fixed_window': {
      const over = state.anchorUs !== null && nowUs >= state.anchorUs + rule.per * usPerSecond;
      return over ? { ...state, anchorUs: null, used: 0 } : state;
    }
    case 'token_bucket': {
      const anchor = state.anchorUs ?? nowUs;
      const elapsed = Math.max(0, nowUs - anchor);
      const gained = (elapsed * (rule.limit ?? 0)) / (rule.per * usPerSecond);
      return { ...state, anchorUs: Math.max(anchor, nowUs), level: Math.min(bucketSize(rule), state.level + gained) };
    }
  }
}

function carryOver(state: WindowState, rule: WindowRule, nowUs: number): WindowState {
  const same =
    state.algorithm === rule.algorithm &&
    (rule.algorithm !== 'sliding_window' ||
      (state.widthUs === subWindowUs(rule) && state.horizonUs === horizonUs(rule)));
  if (same) return state;
  const fresh = emptyWindow(rule, nowUs);
  if (rule.algorithm === 'sliding_window' && state.algorithm === 'sliding_window') {
    const ring = [...fresh.ring];
    let used = 0;
    for (let n = state.tail; n <= state.head; n++) {
      const count = state.ring[n % state.ring.length]!;
      // The latest moment an admission of the old sub-window can stand for: later means counted longer.
      const moved = Math.min(Math.floor(((n + 1) * state.widthUs - 1) / fresh.widthUs), fresh.head);
      if (count === 0 || moved < fresh.tail) continue;
      ring[moved % ring.length] = ring[moved % ring.length]! + count;
      used += count;
    }
    return { ...fresh, ring, used };
  }
  const used = state.algorithm === 'token_bucket' ? 0 : state.used;
  switch (rule.algorithm) {
    case 'sliding_window': {
      const ring = [...fresh.ring];
      ring[fresh.head % ring.length] = used;
      return { ...fresh, ring, used };
    }
    case 'fixed_window':
      return { ...fresh, used, anchorUs: used > 0 ? nowUs : null };
    case 'token_bucket':
      return { ...fresh, level: Math.max(0, fresh.level - used) };
  }
}

function bucketSize(rule: WindowRule): number {
  return tokenBucketBurst(rule.limit ?? 0, rule.per, rule.burst);
}

/** Cost that a rolled window admits now; 0 or more. */
export function windowRoom(rolled: WindowState, rule: WindowRule): number {
  if (rule.limit === null) return unlimitedRoom;
  if (rule.limit === 0) return 0;
  if (rule.algorithm === 'token_bucket') return Math.max(0, Math.floor(rolled.level));
  return Math.max(0, rule.limit - rolled.used);
}

/** A rolled window after an admission of `cost` at `nowUs`. */
export function chargeWindow(rolled: WindowState, rule: WindowRule, nowUs: number, cost: number): WindowState {
  if (rule.limit === null) return rolled;
  switch (rule.algorithm) {
    case 'sliding_window': {
      const ring = [...rolled.ring];
      const i = rolled.head % ring.length;
      ring[i] = ring[i]! + cost;
      return { ...rolled, ring, used: rolled.used + cost };
    }
    case 'fixed_window':
      return { ...rolled, anchorUs: rolled.anchorUs ?? nowUs, used: rolled.used + cost };
    case 'token_bucket':
      return { ...rolled, level: rolled.level - cost };
  }
}

/**
 * When a rolled window will have room for `need`: `nowUs` where it has it already, null where it never will (limit 0, or
 * `need` above what the window can hold).
 */
export function windowOpensAtUs(rolled: WindowState, rule: WindowRule, nowUs: number, need: number): number | null {
  if (rule.limit === null) return nowUs;
  if (rule.limit === 0) return null;
  switch (rule.algorithm) {
    case 'sliding_window': {
      if (need > rule.limit) return null;
      let used = rolled.used;
      if (used + need <= rule.limit) return nowUs;
      for (let n = rolled.tail; n <= rolled.head; n++) {
        used -= rolled.ring[n % rolled.ring.length]!;
        if (used + need <= rule.limit) return (n + 1) * rolled.widthUs + rolled.horizonUs;
      }
      return null;
    }
    case 'fixed_window': {
      if (need > rule.limit) return null;
      if (rolled.anchorUs === null || rolled.used + need <= rule.limit) return nowUs;
      return rolled.anchorUs + rule.per * usPerSecond;
    }
    case 'token_bucket': {
      if (need > bucketSize(rule)) return null;
      if (rolled.level >= need) return nowUs;
      // One more, for what doubles round off: at the moment that is told, the room is there.
      return nowUs + Math.ceil(((need - rolled.level) * rule.per * usPerSecond) / rule.limit) + 1;
    }
  }
}

/** How long an admission at `nowUs` may be used, in milliseconds: the permit, and not past its fixed window. */
export function permitLeftMs(charged: WindowState, rule: WindowRule, nowUs: number): number {
  if (rule.algorithm !== 'fixed_window' || charged.anchorUs === null) return permitMs;
  return Math.min(permitMs, (charged.anchorUs + rule.per * usPerSecond - nowUs) / usPerMs);
}
