/**
 * Why a job has not run: what it waits for, until when, and its place. Pure; judged by the same rules as the claim, from
 * windows, cooldowns and definitions themselves, and not from what a claim has noted about a lane when it last looked.
 * Everything that is in the way is told, what is in the way of the whole lane first. A job that waits for nothing but a free
 * worker slot is runnable.
 */
import { largestCost, type RateLimit } from './definitions.ts';
import type { JobState } from './job.ts';
import { emptyWindow, rollWindow, type WindowState, windowOpensAtUs, windowRoom } from './rate-window.ts';
import { fuseReason } from './settle.ts';

export type WaitKind =
  | 'window'
  | 'cooldown'
  | 'upstream_paused'
  | 'queue_paused'
  | 'scheduled'
  | 'fifo'
  | 'slot'
  | 'lease'
  | 'held'
  | 'ended';

export interface Wait {
  readonly kind: WaitKind;
  /** Of what is waited for: a limit, an upstream, a queue, a worker, or a reason. */
  readonly name: string | null;
  readonly partitionKey: string | null;
  /** Microseconds since 1970 on the database's clock; null: no time is known. */
  readonly untilUs: number | null;
  readonly detail: string;
}

export interface Explanation {
  /** It could start as soon as a worker has a slot for it. */
  readonly runnable: boolean;
  /** From 1 in its lane; null: it runs or has ended. */
  readonly position: number | null;
  readonly waitingOn: readonly Wait[];
}

/** The answer that stopped a batch. */
export interface BlownFuse {
  readonly batchId: string;
  /** Whose call was answered so. */
  readonly jobId: string;
  readonly status: number;
  readonly at: Date;
}

/** What is known of a job that waits or does not, all at one moment. */
export interface WaitFacts {
  readonly nowUs: number;
  readonly state: JobState;
  readonly reason: string | null;
  readonly queue: string;
  readonly upstream: string;
  readonly cost: number;
  /** Calls made so far. */
  readonly calls: number;
  /** What blew the fuse that holds its batch, and the job with it; null: none does. */
  readonly fuse: BlownFuse | null;
  /** Of a scheduled one. */
  readonly dueAtUs: number | null;
  /** Of a running one. */
  readonly lease: { readonly workerId: string; readonly expiresAtUs: number | null } | null;
  readonly queuePaused: boolean;
  readonly upstreamPaused: boolean;
  /** Ready jobs before it in its lane, and what they cost together. */
  readonly ahead: { readonly count: number; readonly cost: number };
  /** null: its queue is not fifo. */
  readonly fifo: {
    /** Unfinished jobs before it in its lane. */
    readonly before: number;
    /** The one that holds the lane; null: it is this one's turn. */
    readonly holder: { readonly jobId: string; readonly state: JobState; readonly dueAtUs: number | null } | null;
  } | null;
  readonly windows: readonly WindowFacts[];
  readonly cooldowns: readonly CooldownFacts[];
  readonly workers: { readonly live: number; readonly slots: number; readonly running: number };
}

/** A window that covers the job. */
export interface WindowFacts {
  readonly name: string;
  /** null: one for all. */
  readonly partitionKey: string | null;
  readonly rule: RateLimit;
  /** null: nothing was admitted through it yet. */
  readonly stored: WindowState | null;
  readonly paused: boolean;
  /** Leased calls that its `max_in_flight` counts. */
  readonly inFlight: number;
}

/** A cooldown over the job that has not been forgotten. */
export interface CooldownFacts {
  /** Of an upstream, or of a limit. */
  readonly name: string;
  readonly partitionKey: string | null;
  readonly untilUs: number;
  /** Calls that may start now that it is over; null: as many as else. */
  readonly room: number | null;
  readonly reason: string;
  readonly status: number | null;
}

export function explainWait(facts: WaitFacts): Explanation {
  switch (facts.state) {
    case 'running':
      return { runnable: false, position: null, waitingOn: [leaseWait(facts)] };
    case 'held':
      return { runnable: false, position: positionOf(facts), waitingOn: [heldWait(facts)] };
    case 'scheduled':
      return { runnable: false, position: positionOf(facts), waitingOn: scheduledWaits(facts) };
    case 'ready': {
      const waitingOn = readyWaits(facts);
      return { runnable: waitingOn.every(({ kind }) => kind === 'slot'), position: positionOf(facts), waitingOn };
    }
    default: {
      const detail =
        facts.reason === null ? `it has ${facts.state}` : `it has ended as ${facts.state}: ${facts.reason}`;
      return { runnable: false, position: null, waitingOn: [wait('ended', facts.state, { detail })] };
    }
  }
}

function positionOf({ ahead, fifo }: WaitFacts): number {
  return (fifo === null ? ahead.count : fifo.before) + 1;
}

function wait(
  kind: WaitKind,
  name: string | null,
  { partitionKey = null, untilUs = null, detail }: Partial<Omit<Wait, 'kind' | 'name'>> & { readonly detail: string },
): Wait {
  return { kind, name, partitionKey, untilUs, detail };
}

function leaseWait({ lease, calls, nowUs }: WaitFacts): Wait {
  const untilUs = lease?.expiresAtUs ?? null;
  const isOver = untilUs === null || untilUs <= nowUs;
  const detail = isOver
    ? `its worker has lost the lease on call ${calls + 1}; it is taken back within seconds`
    : `call ${calls + 1} is under way; the lease is renewed for as long as its worker lives`;
  return wait('lease', lease?.workerId ?? null, { untilUs, detail });
}

function heldWait({ reason, fuse }: WaitFacts): Wait {
  if (reason === fuseReason && fuse !== null) return fuseWait(fuse);
  return wait('held', reason, { detail: 'a person decides: retry it, cancel it, or put a receipt' });
}

function fuseWait({ batchId, jobId, status, at }: BlownFuse): Wait {
  const detail = `job ${jobId} of its batch was answered ${status} at ${at.toISOString()}, which stopped the batch; put right what the answer is about (credentials), then POST /v1/batches/${batchId}/resume`;
  return wait('held', fuseReason, { detail });
}

/** It is about to be put on hold, and not started meanwhile. */
function fuseWaits({ fuse }: WaitFacts): Wait[] {
  return fuse === null ? [] : [fuseWait(fuse)];
}

function scheduledWaits(facts: WaitFacts): Wait[] {
  const { dueAtUs } = facts;
  return [
    wait('scheduled', null, { untilUs: dueAtUs, detail: whyLater(facts) }),
    ...fuseWaits(facts),
    ...pauses(facts),
    ...cooldownWaits(facts).filter(({ untilUs }) => untilUs !== null && untilUs > (dueAtUs ?? 0)),
    ...fifoWaits(facts),
  ];
}

function whyLater({ calls, reason }: WaitFacts): string {
  if (reason !== null) return `${reason}: it is tried again then`;
  return calls === 0
    ? 'its run_at is in the future'
    : `call ${calls} failed in a way that may pass; this is its backoff`;
}

function readyWaits(facts: WaitFacts): Wait[] {
  const { workers } = facts;
  const windows = facts.windows.map((window) => windowWait(window, facts));
  const closed = [
    ...fuseWaits(facts),
    ...pauses(facts),
    ...cooldownWaits(facts),
    ...windows.flatMap((window) => (window?.closesLane ? [window.wait] : [])),
    ...fifoWaits(facts),
  ];
  const later = windows.flatMap((window) => (window !== null && !window.closesLane ? [window.wait] : []));
  if (closed.length > 0 || workers.running < workers.slots) return [...closed, ...later];
  const detail =
    workers.live === 0
      ? 'no process with the role worker is running'
      : `all ${workers.slots} slots of ${workers.live} worker${workers.live === 1 ? '' : 's'} are taken`;
  return [wait('slot', null, { detail }), ...later];
}

function pauses({ queuePaused, upstreamPaused, queue, upstream }: WaitFacts): Wait[] {
  const waits: Wait[] = [];
  if (queuePaused) waits.push(wait('queue_paused', queue, { detail: 'the queue is paused; resume it' }));
  if (upstreamPaused) waits.push(wait('upstream_paused', upstream, { detail: 'the upstream is paused; resume it' }));
  return waits;
}

function cooldownWaits({ cooldowns, nowUs }: WaitFacts): Wait[] {
  return cooldowns.flatMap(({ name, partitionKey, untilUs, room, reason, status }) => {
    if (untilUs > nowUs) {
      const detail = status === null ? reason : `${reason}: it answered ${status}`;
      return [wait('cooldown', name, { partitionKey, untilUs, detail })];
    }
    if (room === null || room >= 1) return [];
    const detail = 'the cooldown is over and the rate is coming back: as many calls as may be are in flight';
    return [wait('cooldown', name, { partitionKey, detail })];
  });
}

function fifoWaits({ fifo, queue }: WaitFacts): Wait[] {
  if (fifo === null || fifo.holder === null) return [];
  const { jobId, state, dueAtUs } = fifo.holder;
  return [
    wait('fifo', queue, { untilUs: dueAtUs, detail: `job ${jobId} comes before it in its lane, and is ${state}` }),
  ];
}

/**
 * null: the window has room for the job and all before it. `closesLane`: it admits nothing of the lane now; else it will be
 * used up by those before the job, so its turn is later.
 */
function windowWait(
  { name, partitionKey, rule, stored, paused, inFlight }: WindowFacts,
  { cost, ahead, nowUs }: WaitFacts,
): { readonly wait: Wait; readonly closesLane: boolean } | null {
  const is = (detail: string, untilUs: number | null, closesLane: boolean) => ({
    wait: wait('window', name, { partitionKey, untilUs, detail }),
    closesLane,
  });
  if (paused) return is('the window is paused; resume it', null, true);
  if (rule.limit === 0) return is('its limit is 0, which pauses it', null, true);
  const state = rollWindow(stored ?? emptyWindow(rule, nowUs), rule, nowUs);
  const room = windowRoom(state, rule);
  const capacity = largestCost(rule);
  if (capacity !== null && cost > capacity) {
    return is(`it costs ${cost}, and the window never holds more than ${capacity}: it will fail`, null, true);
  }
  const need = ahead.cost + cost;
  if (room < need) {
    const isNext = ahead.count === 0;
    const why = isNext
      ? cost === 1
        ? ''
        : `, and it costs ${cost}`
      : `, and ${ahead.count} before it in its lane go first`;
    const untilUs = earliestAdmissionUs(state, rule, nowUs, need);
    return is(`${room} of ${capacity} per ${rule.per} s are left${why}`, untilUs, room < (isNext ? cost : 1));
  }
  if (rule.max_in_flight !== null && inFlight >= rule.max_in_flight) {
    return is(`${inFlight} calls are in flight, as many as its max_in_flight`, null, true);
  }
  return null;
}

/**
 * When a window alone could have let through `need` at the earliest, if from now on it admits nothing else; null: never. What
 * is more than it holds at once takes further periods.
 */
export function earliestAdmissionUs(rolled: WindowState, rule: RateLimit, nowUs: number, need: number): number | null {
  const capacity = largestCost(rule);
  if (capacity === null) return rule.limit === null ? nowUs : null;
  const periodUs = rule.per * 1e6;
  if (rule.algorithm === 'token_bucket') {
    return nowUs + Math.max(0, Math.ceil(((need - rolled.level) * periodUs) / rule.limit!));
  }
  const rounds = Math.ceil(need / capacity) - 1;
  const opens = windowOpensAtUs(rolled, rule, nowUs, need - rounds * capacity);
  return opens === null ? null : opens + rounds * periodUs;
}
