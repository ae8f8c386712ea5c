/**
 * What goes wrong in a run, and when: worked out from the seed before the run begins, so that it can be played again. Pure.
 * The times and victims are those of the plan; what a replica is in the midst of at that moment is the machine's business,
 * so a run that is repeated meets the same faults, not the same instructions.
 */
import { draw } from '../../../src/simulator/draw.ts';
import type { FaultPoint } from '../../../src/system/fault-points.ts';

/** The kinds that are planned, in the words of the report. */
export const plannedKinds = {
  kill: 'kill -9 of a replica, replaced',
  stop_short: 'SIGSTOP of a replica for less than its lease',
  stop_long: 'SIGSTOP of a replica for longer than its lease',
  terminate: 'SIGTERM of a replica, replaced',
  restart: 'PostgreSQL stopped as by a crash, started again',
  cut: 'all connections cut, and new ones refused for a moment',
  silence: 'nothing passes to PostgreSQL for seconds, on old and new connections',
  forget: 'all connections fall silent for good, new ones pass',
  end_sessions: 'all backends terminated',
} as const;

export type PlannedKind = keyof typeof plannedKinds;

export interface PlannedFault {
  /** After the start of the run. */
  readonly atMs: number;
  readonly kind: PlannedKind;
  /** Place of the victim; the next one where that is not there at the moment. */
  readonly replica: number;
  /** How long it lasts, where it lasts. */
  readonly durationMs: number;
}

export interface PlanOptions {
  readonly seed: number;
  readonly seconds: number;
  readonly replicas: number;
  readonly leaseSeconds: number;
}

/** One fault in so many seconds: recovery from one is met by the next. */
const secondsPerFault = 5;
/** Also a short run meets so many: one of each kind, and one more kill. */
const fewestFaults = 10;
/** Something must be going on before it can be disturbed. */
const quietStartMs = 1_500;

/** In order of time. Every ten in a row have each kind, `kill` twice. */
export function planFaults({ seed, seconds, replicas, leaseSeconds }: PlanOptions): PlannedFault[] {
  const count = Math.max(fewestFaults, Math.floor(seconds / secondsPerFault));
  const set: readonly PlannedKind[] = [...(Object.keys(plannedKinds) as PlannedKind[]), 'kill'];
  const kinds = bagsOf(set, count, seed);
  const slotMs = (seconds * 1000 - quietStartMs) / count;
  return kinds.map((kind, n) => ({
    kind,
    atMs: Math.round(quietStartMs + slotMs * (n + draw(seed, `when ${n}`))),
    replica: Math.floor(draw(seed, `victim ${n}`) * replicas),
    durationMs: Math.round(durationMs(kind, leaseSeconds * 1000, draw(seed, `how long ${n}`))),
  }));
}

function durationMs(kind: PlannedKind, leaseMs: number, random01: number): number {
  const between = (least: number, most: number) => least + (most - least) * random01;
  switch (kind) {
    case 'stop_short':
      return between(0.2, 0.8) * leaseMs;
    case 'stop_long':
      return between(1.2, 2) * leaseMs;
    case 'restart':
      return between(0, 2_000);
    case 'cut':
      return between(0, 1_500);
    case 'silence':
      return between(1_000, 6_000);
    default:
      return 0;
  }
}

/** The set in another order each time, as often as it takes. */
function bagsOf<T>(set: readonly T[], count: number, seed: number): T[] {
  const drawn: T[] = [];
  for (let bag = 0; drawn.length < count; bag += 1) {
    const left = [...set];
    while (left.length > 0) {
      const at = Math.floor(draw(seed, `bag ${bag}, ${left.length} left`) * left.length);
      drawn.push(...left.splice(at, 1));
    }
  }
  return drawn.slice(0, count);
}

/** Places at which a replica may be told to die; how often each is passed in a second of work differs, so does how far away it is. */
const mortalPoints: ReadonlyArray<readonly [point: FaultPoint, mostPassed: number]> = [
  ['intake.before_commit', 5],
  ['intake.after_commit', 5],
  ['claim.after', 200],
  ['send.before', 300],
  ['send.after', 300],
  ['answer.read', 300],
  ['settle.before', 150],
  ['settle.after', 150],
  ['cooldown.after', 1],
  ['renew.before', 8],
  ['renew.after', 8],
  ['reaper.before_settle', 1],
  ['reaper.after_settle', 1],
];

/**
 * Every other replica that is started in place of one that is gone dies by itself, at an exact place. `nth` counts the
 * replicas that were started; null: this one lives. In the notation of SLUICE_FAULT_POINTS.
 */
export function fatalPoint(seed: number, nth: number): string | null {
  if (draw(seed, `mortal ${nth}`) < 0.5) return null;
  const [point, mostPassed] = mortalPoints[Math.floor(draw(seed, `where ${nth}`) * mortalPoints.length)]!;
  const passed = Math.floor(draw(seed, `how often ${nth}`) * mostPassed);
  return `${point}=${passed > 0 ? `pass*${passed},` : ''}kill`;
}
