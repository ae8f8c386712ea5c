/**
 * Named places at the transitions of a job and of a process where a test can make it stop, pause or fail as PostgreSQL would
 * (`SLUICE_FAULT_POINTS`, taken with NODE_ENV=test only). Owns the names, the notation and what happens at an armed point;
 * where a point is passed is the business of the code that makes the transition.
 * Outside of tests nothing is armed: passing is then a call that returns undefined. A place that can be broken by a test is
 * one whose consequences are known: a transition without a point here is one that nobody has tried to stop.
 */
import type { Clock } from './clock.ts';
import type { Logger } from './logger.ts';

/**
 * What an armed point can do. `kill`: SIGKILL to this process; `stop`: SIGSTOP, until somebody sends SIGCONT; `pause`: only
 * what passes here waits; `fail`: an error with this SQLSTATE, as if PostgreSQL had said so; `pass`: nothing.
 */
export type FaultAction =
  | { readonly kind: 'kill' | 'stop' | 'pass' }
  | { readonly kind: 'pause'; readonly ms: number }
  | { readonly kind: 'fail'; readonly sqlState: string };

/** At some places nobody awaits the point, at others no error of PostgreSQL can come up. */
const anyAction = ['kill', 'stop', 'pass', 'pause', 'fail'] as const;
const noError = ['kill', 'stop', 'pass', 'pause'] as const;
const noWait = ['kill', 'stop', 'pass'] as const;

interface FaultPlace {
  readonly what: string;
  readonly takes: ReadonlyArray<FaultAction['kind']>;
}

/** Every point, and what has happened and what has not when it is passed. */
export const faultPlaces = {
  'intake.before_commit': { what: 'a batch is written, and not committed', takes: anyAction },
  'intake.after_commit': { what: 'a batch is committed, and nobody has been told', takes: anyAction },
  'decision.before_commit': {
    what: 'a cancel, a retry, a receipt or a step behind a fuse is written, and not committed',
    takes: anyAction,
  },
  'decision.after_commit': {
    what: 'a cancel, a retry, a receipt or a step behind a fuse is committed, and nobody has been told',
    takes: anyAction,
  },
  'claim.after': { what: 'jobs are leased to a worker, which does not know it yet', takes: anyAction },
  'send.before': { what: 'a job is claimed and its request built, and nothing has left', takes: noError },
  'send.after': { what: 'a request is written to its socket, and the call is under way', takes: noWait },
  'answer.read': { what: 'an answer is read, and nothing is decided', takes: noError },
  'settle.before': { what: 'outcomes are about to be written', takes: anyAction },
  'settle.after': {
    what: 'outcomes without a throttle are committed, and the worker does not know it',
    takes: anyAction,
  },
  'cooldown.after': {
    what: 'a throttle and its cooldown are committed, and the worker does not know it',
    takes: anyAction,
  },
  'renew.before': { what: 'the lease is about to be renewed', takes: anyAction },
  'renew.after': { what: 'the lease is renewed, and the worker does not know it', takes: anyAction },
  'reaper.before_settle': { what: 'jobs of a dead worker are found and about to be taken back', takes: anyAction },
  'reaper.after_settle': { what: 'jobs of a dead worker are taken back', takes: anyAction },
  'drain.begin': { what: 'the worker is told to stop, and has done nothing about it', takes: noError },
  'drain.written': { what: 'the worker has written everything, and still has its lease', takes: noError },
} as const satisfies Readonly<Record<string, FaultPlace>>;

export type FaultPoint = keyof typeof faultPlaces;

/** What happens the first times each point is passed, in order; after that nothing does. */
export type FaultPlan = ReadonlyMap<FaultPoint, readonly FaultAction[]>;

export interface FaultPoints {
  /**
   * To be awaited; rejects with a FaultPointError where the plan says so. Whatever it does, it does after the caller's turn
   * of the event loop is over, so a point that is passed right before a write (and not awaited) acts right after it.
   */
  pass(point: FaultPoint): Promise<void> | undefined;
}

/** Points around one statement or transaction. */
export interface FaultPointsAround {
  /** Passed with the connection in hand, before the statement or the COMMIT. */
  readonly before?: FaultPoint;
  /** Passed after that, before the caller knows. */
  readonly after?: FaultPoint;
}

export const noFaultPoints: FaultPoints = Object.freeze({ pass: () => undefined });

/** Thrown at a point that fails; `code` is the SQLSTATE, where the driver's errors have it. */
export class FaultPointError extends Error {
  readonly code: string;

  constructor(point: FaultPoint, sqlState: string) {
    super(`the fault point ${point} was told to fail with SQLSTATE ${sqlState}`);
    this.name = 'FaultPointError';
    this.code = sqlState;
  }
}

/** Breaks this process as planned; each time with a line in the log before it. */
export function armFaultPoints(plan: FaultPlan, { clock, logger }: { clock: Clock; logger: Logger }): FaultPoints {
  const left = new Map([...plan].map(([point, actions]) => [point, [...actions]]));
  return {
    async pass(point) {
      const action = left.get(point)?.shift();
      if (action === undefined || action.kind === 'pass') return;
      await undefined;
      logger.warn({ fault_point: point, action }, 'a fault point was reached');
      if (action.kind === 'pause') await clock.sleep(action.ms);
      else if (action.kind === 'fail') throw new FaultPointError(point, action.sqlState);
      else process.kill(process.pid, action.kind === 'kill' ? 'SIGKILL' : 'SIGSTOP');
    },
  };
}

/** A repetition is written out in memory. */
const mostTimes = 10_000;

/**
 * Reads `point=action,action*times;point=…`, where an action is `kill`, `stop`, `pass`, `pause:MILLISECONDS` or a SQLSTATE:
 * `settle.before=40001,57P01` fails twice, `send.after=pass*9,kill` kills at the tenth call. Gives a text that says what is
 * wrong where it cannot.
 */
export function parseFaultPlan(text: string): FaultPlan | string {
  const plan = new Map<FaultPoint, FaultAction[]>();
  for (const entry of text.split(';')) {
    const [point = '', actions, ...rest] = entry.split('=').map((part) => part.trim());
    if (!isFaultPoint(point)) {
      return `has no point ${JSON.stringify(point)}; there are ${Object.keys(faultPlaces).join(', ')}`;
    }
    if (actions === undefined || rest.length > 0) return `must say what happens at ${point}, as in ${point}=kill`;
    const planned = plan.get(point) ?? [];
    plan.set(point, planned);
    for (const each of actions.split(',')) {
      const [, name = '', times = '1'] = /^\s*([^*]*?)\s*(?:\*(\d+))?\s*$/.exec(each) ?? [];
      const action = parseAction(name);
      const takes: ReadonlyArray<FaultAction['kind']> = faultPlaces[point].takes;
      if (action === null || !takes.includes(action.kind)) {
        return `has at ${point} the action ${JSON.stringify(each)}; it takes ${takes.map((kind) => notation[kind]).join(', ')}`;
      }
      if (Number(times) < 1 || Number(times) > mostTimes)
        return `has ${each} at ${point}; from 1 to ${mostTimes} times`;
      for (let n = 0; n < Number(times); n += 1) planned.push(action);
    }
  }
  return plan;
}

const notation: Readonly<Record<FaultAction['kind'], string>> = {
  kill: 'kill',
  stop: 'stop',
  pass: 'pass',
  pause: 'pause:MILLISECONDS',
  fail: 'a SQLSTATE',
};

function parseAction(text: string): FaultAction | null {
  if (text === 'kill' || text === 'stop' || text === 'pass') return { kind: text };
  const pause = /^pause:(\d{1,9})$/.exec(text);
  if (pause !== null) return { kind: 'pause', ms: Number(pause[1]) };
  return /^[0-9A-Z]{5}$/.test(text) ? { kind: 'fail', sqlState: text } : null;
}

function isFaultPoint(name: string): name is FaultPoint {
  return Object.hasOwn(faultPlaces, name);
}
