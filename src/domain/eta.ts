/**
 * When a batch will be done, as things stand. Pure: the last job of each of its lanes is looked for in everything that lanes
 * share, and the latest of all these times is the batch's. What a rate limit lets through is worked out from its window by the
 * rules of the claim; lanes under one limit take turns, so the n-th job of a lane comes after up to n jobs of each other one.
 *
 * An estimate: what is not there yet, jobs that will fail more often than those before them, and cooldowns to come are not in
 * it. Times are microseconds since 1970 on the database's clock.
 */
import { largestCost } from './definitions.ts';
import {
  emptyWindow,
  horizonUs,
  rollWindow,
  subWindowUs,
  type WindowRule,
  type WindowState,
  windowOpensAtUs,
  windowRoom,
} from './rate-window.ts';

/** A number of jobs, and what they cost together. */
export interface Work {
  readonly count: number;
  readonly cost: number;
}

/** Jobs that are not due, and when the first and the last of them fall due. */
export interface ScheduledWork extends Work {
  readonly firstUs: number;
  readonly lastUs: number;
}

/** A lane in which jobs wait, of the batch or of others. */
export interface BusyLane extends Work {
  readonly id: number;
  readonly queue: string;
  readonly upstream: string;
  /** Empty: none. */
  readonly partitionKey: string;
  /** Names of the rate limits over it. */
  readonly limits: readonly string[];
  /** Its queue or its upstream is paused. */
  readonly paused: boolean;
}

/** A lane in which the batch has something to start. */
export interface BatchLane extends Omit<BusyLane, 'count' | 'cost'> {
  readonly fifo: boolean;
  /** Due jobs up to the last one of the batch, those of others that come before it included. */
  readonly ready: Work;
  /** Jobs of the batch that are not due; null: there is none. */
  readonly scheduled: ScheduledWork | null;
}

export interface EtaLimit {
  readonly rule: WindowRule & { readonly max_in_flight: number | null; readonly by_partition: boolean };
  /** By partition key; the one of a limit without partitions is that of the empty key. None: nothing was admitted. */
  readonly windows: ReadonlyMap<string, { readonly state: WindowState | null; readonly paused: boolean }>;
}

export interface EtaCooldown {
  readonly kind: 'upstream' | 'limit';
  readonly name: string;
  /** Empty: all of it. */
  readonly partitionKey: string;
  readonly untilUs: number;
}

export interface EtaFacts {
  readonly nowUs: number;
  readonly lanes: readonly BatchLane[];
  /** Every lane that has something due, the batch's own as well. */
  readonly busy: readonly BusyLane[];
  readonly limits: ReadonlyMap<string, EtaLimit>;
  readonly cooldowns: readonly EtaCooldown[];
  /** Of live workers. */
  readonly slots: number;
  /** Jobs of the batch under way. */
  readonly running: number;
  /** How its calls have gone so far. */
  readonly observed: {
    /** Calls that a job takes, 1 or more. */
    readonly callsPerJob: number;
    /** How long one takes; null: none has ended. */
    readonly callMs: number | null;
    /** Jobs of the batch that end in a second; null: too few have. */
    readonly perSecond: number | null;
  };
}

export interface ProjectedEnd {
  readonly atUs: number;
  /** The rate limit, or the cooling upstream, that decides it; null: neither does. */
  readonly limitedBy: string | null;
}

/** null: it stands still, or nobody can say. */
export function projectEnd(facts: EtaFacts): ProjectedEnd | null {
  const { lanes, nowUs, slots, running, observed } = facts;
  if (slots === 0 || lanes.some(({ paused }) => paused)) return null;
  if (lanes.length === 0 && running === 0) return null;
  let latest: ProjectedEnd = { atUs: nowUs, limitedBy: null };
  const crowds = new Map<string, Crowd>();
  for (const lane of lanes) {
    const end = endOfLane(lane, facts, crowds);
    if (end === null) return null;
    if (end.atUs > latest.atUs) latest = end;
  }
  return { ...latest, atUs: Math.ceil(latest.atUs + (observed.callMs ?? 0) * 1_000) };
}

/** When the last job of the lane starts; null: nobody can say. */
function endOfLane(lane: BatchLane, facts: EtaFacts, crowds: Map<string, Crowd>): ProjectedEnd | null {
  const cooling = cooldownOver(lane, facts);
  const startUs = Math.max(facts.nowUs, cooling?.untilUs ?? 0);
  const gates = gatesOver(lane, facts, crowds);
  if (gates === null) return null;
  const scheduled = lane.scheduled ?? { count: 0, cost: 0, firstUs: facts.nowUs, lastUs: facts.nowUs };
  let end: ProjectedEnd = { atUs: startUs, limitedBy: null };
  if (scheduled.lastUs > end.atUs) end = { atUs: scheduled.lastUs, limitedBy: null };
  for (const { name, opensUs, shared } of gates) {
    const all = { count: lane.ready.count + scheduled.count, cost: lane.ready.cost + scheduled.cost };
    let atUs = opensUs(startUs, shared(all));
    if (scheduled.count > 0 && scheduled.firstUs > startUs && atUs !== null) {
      // What falls due together waits for its turn from then on.
      const after = opensUs(scheduled.firstUs, scheduled);
      atUs = after === null ? null : Math.max(atUs, after);
    }
    if (atUs === null) return null;
    if (atUs > end.atUs) end = { atUs, limitedBy: name };
  }
  // Where most of the time is the wait for the cooldown, that is what limits it.
  const waitedUs = startUs - facts.nowUs;
  if (cooling !== null && waitedUs > 0 && waitedUs * 2 >= end.atUs - facts.nowUs) {
    return { ...end, limitedBy: cooling.name };
  }
  return end;
}

/** Until one has ended: so that more jobs than there are slots are not expected to be done at once. */
const assumedCallMs = 100;

/** Something that lets only so much through. */
interface Gate {
  /** The rate limit; null: it is none. */
  readonly name: string | null;
  /** When it has let this much through, from a time on; null: never. */
  readonly opensUs: (fromUs: number, work: Work) => number | null;
  /** What goes through it until the last of this much of the lane's has. */
  readonly shared: (own: Work) => Work;
}

/** null: one of them is shut, or there is none of which anything is known. */
function gatesOver(lane: BatchLane, facts: EtaFacts, crowds: Map<string, Crowd>): Gate[] | null {
  const { limits, slots, observed, busy } = facts;
  const { callsPerJob, callMs, perSecond } = observed;
  const gates: Gate[] = [];
  const paced = (perCallUs: number) => (fromUs: number, work: Work) => fromUs + work.count * callsPerJob * perCallUs;
  let limited = false;
  for (const name of lane.limits) {
    const limit = limits.get(name);
    if (limit === undefined) continue;
    const { rule, windows } = limit;
    const key = rule.by_partition ? lane.partitionKey : '';
    const crowd = crowdOf(crowds, `${name} ${key}`, () =>
      busy.filter((each) => each.limits.includes(name) && (!rule.by_partition || each.partitionKey === key)),
    );
    const shared = (own: Work) => sharedWork(crowd, lane.id, own);
    const window = windows.get(key);
    if (window?.paused || rule.limit === 0) return null;
    if (rule.limit !== null) {
      limited = true;
      const opensUs = (fromUs: number, work: Work) =>
        admittedUs(window?.state ?? null, rule, fromUs, work, callsPerJob);
      gates.push({ name, opensUs, shared });
    }
    if (rule.max_in_flight !== null && callMs !== null) {
      limited = true;
      gates.push({ name, opensUs: paced((callMs * 1_000) / rule.max_in_flight), shared });
    }
  }
  const eachUs = (callMs ?? assumedCallMs) * 1_000;
  const everything = crowdOf(crowds, '', () => busy);
  if (lane.fifo) gates.push({ name: null, opensUs: paced(eachUs), shared: (own) => own });
  gates.push({ name: null, opensUs: paced(eachUs / slots), shared: (own) => sharedWork(everything, lane.id, own) });
  if (!limited) {
    if (perSecond === null) return null;
    // Of the batch as a whole, so that its lanes share it.
    const own = facts.lanes.reduce((sum, each) => sum + each.ready.count + (each.scheduled?.count ?? 0), 0);
    gates.push({
      name: null,
      opensUs: (fromUs) => fromUs + (own / perSecond) * 1e6,
      shared: (work) => work,
    });
  }
  return gates;
}

/**
 * When a window has let `work` through, in calls, if everything that comes is let through as soon as there is room.
 * A sliding window gives room back as what is in it grows too old; each further period repeats the one before it.
 */
export function admittedUs(
  state: WindowState | null,
  rule: WindowRule,
  fromUs: number,
  { count, cost }: Work,
  callsPerJob = 1,
): number | null {
  const capacity = largestCost(rule);
  if (rule.limit === null) return fromUs;
  if (capacity === null) return null;
  if (count === 0) return fromUs;
  const each = Math.max(1, cost / count);
  // What does not come out even is left over in every period; what is too dear fails at once.
  const full = each >= capacity ? capacity : Math.floor(capacity / each) * each;
  const need = Math.max(1, cost * callsPerJob);
  const rolled = rollWindow(state ?? emptyWindow(rule, fromUs), rule, fromUs);
  if (rule.algorithm === 'token_bucket') {
    return fromUs + Math.max(0, ((need - rolled.level) * rule.per * 1e6) / rule.limit);
  }
  const room = windowRoom(rolled, rule);
  if (need <= room) return fromUs;
  if (rule.algorithm === 'fixed_window') {
    const firstUs = windowOpensAtUs({ ...rolled, anchorUs: rolled.anchorUs ?? fromUs }, rule, fromUs, room + 1);
    const rounds = Math.ceil((need - room) / full) - 1;
    return (room >= rule.limit ? fromUs + rule.per * 1e6 : (firstUs ?? fromUs)) + rounds * rule.per * 1e6;
  }
  const rounds = Math.ceil(need / full) - 1;
  const opensUs = windowOpensAtUs(rolled, rule, fromUs, Math.min(capacity, Math.ceil(need - rounds * full)));
  return opensUs === null ? null : opensUs + rounds * cycleUs(rule);
}

/** From an admission to the next one in its place, where it is made at once. */
function cycleUs(rule: WindowRule): number {
  const widthUs = subWindowUs(rule);
  return (Math.floor(horizonUs(rule) / widthUs) + 1) * widthUs;
}

/** The latest cooldown over a lane. */
function cooldownOver(lane: BatchLane, { cooldowns }: EtaFacts): EtaCooldown | null {
  let latest: EtaCooldown | null = null;
  for (const cooldown of cooldowns) {
    const over = cooldown.kind === 'upstream' ? cooldown.name === lane.upstream : lane.limits.includes(cooldown.name);
    if (!over || (cooldown.partitionKey !== '' && cooldown.partitionKey !== lane.partitionKey)) continue;
    if (latest === null || cooldown.untilUs > latest.untilUs) latest = cooldown;
  }
  return latest;
}

/** Lanes under one gate, the shortest first, with the sums of all before each. */
interface Crowd {
  readonly counts: readonly number[];
  /** Of the first n lanes. */
  readonly costBefore: readonly number[];
  readonly countBefore: readonly number[];
  /** Cost of one job of each of the lanes from the n-th on, summed. */
  readonly eachFrom: readonly number[];
  readonly byId: ReadonlyMap<number, BusyLane>;
}

function crowdOf(crowds: Map<string, Crowd>, name: string, find: () => readonly BusyLane[]): Crowd {
  const known = crowds.get(name);
  if (known !== undefined) return known;
  const lanes = find()
    .filter(({ paused, count }) => !paused && count > 0)
    .sort((a, b) => a.count - b.count);
  const costBefore = [0];
  const countBefore = [0];
  const eachFrom = new Array<number>(lanes.length + 1).fill(0);
  for (const { count, cost } of lanes) {
    costBefore.push(costBefore.at(-1)! + cost);
    countBefore.push(countBefore.at(-1)! + count);
  }
  for (let n = lanes.length - 1; n >= 0; n -= 1) eachFrom[n] = eachFrom[n + 1]! + lanes[n]!.cost / lanes[n]!.count;
  const crowd = {
    counts: lanes.map(({ count }) => count),
    costBefore,
    countBefore,
    eachFrom,
    byId: new Map(lanes.map((lane) => [lane.id, lane])),
  };
  crowds.set(name, crowd);
  return crowd;
}

/** By turns: of each other lane as much as of this one, or all of it where that is less. */
function sharedWork({ counts, costBefore, countBefore, eachFrom, byId }: Crowd, laneId: number, own: Work): Work {
  let shorter = 0;
  for (let high = counts.length; shorter < high; ) {
    const middle = (shorter + high) >> 1;
    if (counts[middle]! <= own.count) shorter = middle + 1;
    else high = middle;
  }
  const self = byId.get(laneId);
  const selfCount = self === undefined ? 0 : Math.min(self.count, own.count);
  return {
    count: own.count + countBefore[shorter]! + own.count * (counts.length - shorter) - selfCount,
    cost:
      own.cost +
      costBefore[shorter]! +
      own.count * eachFrom[shorter]! -
      (self === undefined ? 0 : selfCount * (self.cost / self.count)),
  };
}
