/**
 * Where the next claim may go on in the lanes that this worker has claimed from, and where it finds their turn and their
 * windows. A claim that starts at the head of a busy lane steps over every row that was taken since vacuum last came, and where
 * a transaction is left open somewhere vacuum takes none of them away.
 * A place is a hint and loses no job. While looks from the start are cheap they come at short intervals, and find what came back
 * before a place (a retry, a higher priority, a batch that committed late). Where they have become dear no claim makes one:
 * several times a second one starts where the lane was a second ago, which finds nearly all of that, and a look beside the
 * claims (postgres/ready-behind.ts) finds the rest, for claims to take by name.
 */
import type { Claim, ClaimOptions, LanePlace, TurnPlace, WindowPlace } from '../postgres/claim-jobs.ts';
import type { Behind } from '../postgres/ready-behind.ts';

/** How long places are gone by where looks from the start are cheap, in milliseconds: what came back before them waits so long at most. */
const trustMs = 50;
/** A look from the start that takes longer than this is dear, and cheap again when it takes less than that. */
const dearLookMs = 10;
const cheapLookMs = 3;
/** Where they are dear: how often a claim starts where a lane was a while ago, and at least how long ago that was. */
const stepBackMs = 100;
const stepMs = 500;
/** Looks beside the claims may take a twentieth of the time. */
const lookShare = 20;
/** A lane that gave nothing for so long is looked at from the start once, and closed if it is empty: one a claim. */
const idleMs = 5_000;
/** Of lanes and of windows that are remembered. */
const mostLanes = 10_000;
const mostWindows = 500;
/** A lane is opened at the moment that a settle read before it was committed; a claim may have seen a later place meanwhile. */
const turnSlackUs = 100_000;

interface Lane {
  place: LanePlace;
  /** Where it was at the last step, and at the one before. */
  before: LanePlace;
  longBefore: LanePlace;
  takenAtMs: number;
  /** It has given nothing for long, and a claim has been sent to see whether it is empty. */
  idle: boolean;
}

/** What a claim is told of where to go on. */
export type Places = Required<Pick<ClaimOptions, 'from' | 'behind' | 'turns' | 'windows'>>;

const nowhere: Places = { from: [], behind: [], turns: [], windows: [] };

export class LanePlaces {
  readonly #lanes = new Map<number, Lane>();
  #windows: readonly WindowPlace[] = [];
  #dear = false;
  /** Where looks are cheap: until when places are gone by. */
  #untilMs = Number.NEGATIVE_INFINITY;
  #nextStepMs = Number.NEGATIVE_INFINITY;
  #nextStepBackMs = Number.NEGATIVE_INFINITY;
  #nextLookMs = Number.NEGATIVE_INFINITY;
  #behind: readonly LanePlace[] = [];
  #turns = new Map<number, number>();
  /** The turns as they were at the last step, and at the one before. */
  #turnsBefore: ReadonlyMap<number, number> = new Map();
  #turnsLongBefore: ReadonlyMap<number, number> = new Map();

  /** For a claim at `nowMs`. Nothing: it is to look from the start everywhere. */
  at(nowMs: number): Places {
    if (!this.#dear) return nowMs < this.#untilMs ? { ...nowhere, from: this.#places() } : nowhere;
    const stepsBack = nowMs >= this.#nextStepBackMs;
    if (stepsBack) this.#nextStepBackMs = nowMs + stepBackMs;
    return {
      from: stepsBack ? this.#longBefore(this.#idleLane(nowMs)) : this.#places(),
      behind: stepsBack ? this.#behind : [],
      turns: [...(stepsBack ? this.#turnsLongBefore : this.#turns)].map(([groupId, us]) => ({
        groupId,
        us: us - turnSlackUs,
      })),
      // Rows move with each change, wherever it is made: an old place is only further from where the row is. Where a look by
      // name is cheap it is as good, and clears old versions of the row away.
      windows: this.#windows,
    };
  }

  /** Until the next claim that starts further back, in milliseconds. */
  trustedForMs(nowMs: number): number {
    return Math.max(0, (this.#dear ? this.#nextStepBackMs : this.#untilMs) - nowMs);
  }

  /** What a claim gave that was made with the places `from`, and is back at `nowMs`. */
  claimed({ from }: Pick<Places, 'from'>, claim: Claim, nowMs: number): void {
    if (!this.#dear && from.length === 0) {
      // As the database measured it: the claim itself may have waited for a lock, a connection or a process that stood still.
      this.#dear = claim.lookMs >= dearLookMs;
      this.#lanes.clear();
      this.#untilMs = nowMs + trustMs;
      this.#nextLookMs = nowMs;
    }
    for (const place of claim.places) this.#taken(place, nowMs);
    for (const { groupId, us } of claim.turns) this.#turns.set(groupId, us);
    this.#windows = mostUsed(claim.windows);
    if (nowMs >= this.#nextStepMs) this.#step(nowMs);
  }

  /** Which places to look behind now, beside the claims; null: it is not time. */
  dueLook(nowMs: number): readonly LanePlace[] | null {
    if (!this.#dear || nowMs < this.#nextLookMs) return null;
    this.#nextLookMs = Number.POSITIVE_INFINITY;
    return this.#longBefore(null);
  }

  /** What that look found and how long it took; null: it failed. */
  looked(found: Behind | null, tookMs: number, nowMs: number): void {
    this.#nextLookMs = nowMs + tookMs * lookShare;
    if (found === null) return;
    this.#behind = found.jobs;
    this.#lowerTurns(found.turns);
    if (tookMs < cheapLookMs) this.#beCheap();
  }

  /** Nothing is known any more: a claim failed. */
  clear(): void {
    this.#beCheap();
    this.#windows = [];
  }

  /** Work came, or a job of ours went back to its place: perhaps before a place. Where looks are dear the next step back finds it. */
  workCame(): void {
    this.#untilMs = Number.NEGATIVE_INFINITY;
  }

  #places(): LanePlace[] {
    return Array.from(this.#lanes.values(), ({ place }) => place);
  }

  #longBefore(without: number | null): LanePlace[] {
    const places: LanePlace[] = [];
    for (const [laneId, { longBefore }] of this.#lanes) if (laneId !== without) places.push(longBefore);
    return places;
  }

  #idleLane(nowMs: number): number | null {
    for (const [laneId, lane] of this.#lanes) {
      if (lane.idle || nowMs - lane.takenAtMs < idleMs) continue;
      lane.idle = true;
      return laneId;
    }
    return null;
  }

  /** The lane that was taken from last stands last. */
  #taken(place: LanePlace, nowMs: number): void {
    const lane = this.#lanes.get(place.laneId) ?? { before: place, longBefore: place };
    this.#lanes.delete(place.laneId);
    this.#lanes.set(place.laneId, Object.assign(lane, { place, takenAtMs: nowMs, idle: false }));
    if (this.#lanes.size > mostLanes) this.#lanes.delete(this.#lanes.keys().next().value!);
  }

  #step(nowMs: number): void {
    this.#nextStepMs = nowMs + stepMs;
    for (const lane of this.#lanes.values()) {
      lane.longBefore = lane.before;
      lane.before = lane.place;
    }
    this.#turnsLongBefore = this.#turnsBefore;
    this.#turnsBefore = new Map(this.#turns);
  }

  #lowerTurns(turns: readonly TurnPlace[]): void {
    for (const { groupId, us } of turns) {
      const known = this.#turns.get(groupId);
      if (known !== undefined && us < known) this.#turns.set(groupId, us);
    }
  }

  #beCheap(): void {
    this.#dear = false;
    this.#lanes.clear();
    this.#behind = [];
    this.#turns.clear();
    this.#turnsBefore = new Map();
    this.#turnsLongBefore = new Map();
    this.#untilMs = Number.NEGATIVE_INFINITY;
  }
}

/** Not too many, and first those of all partitions together, which each claim uses. */
function mostUsed(windows: readonly WindowPlace[]): readonly WindowPlace[] {
  if (windows.length <= mostWindows) return windows;
  const isShared = ({ window }: WindowPlace) => !window.includes('\n');
  return [...windows.filter(isShared), ...windows.filter((each) => !isShared(each)).slice(-mostWindows)];
}
