/**
 * The replicas of a run: so many are kept up, whatever happens to them, as a supervisor would. Knows of every end whether it
 * was wanted; one that was not is a fault of the service, as is a line in a log that says so, or a SIGTERM that does not end
 * in order.
 */
import { createWriteStream } from 'node:fs';
import { join } from 'node:path';
import { type Exit, type Replica, ReplicaError } from '../../../src/cli/demo/replica.ts';
import { systemClock as clock } from '../../../src/system/clock.ts';
import { fatalPoint } from './plan.ts';

/** As `src/cli/demo/replica.ts`, or the built one, which starts the built program. */
export type StartReplica = typeof import('../../../src/cli/demo/replica.ts').startReplica;

export interface ReplicasOptions {
  readonly count: number;
  readonly seed: number;
  readonly startReplica: StartReplica;
  readonly nodeFlags: readonly string[];
  readonly environment: Readonly<Record<string, string | undefined>>;
  /** An empty folder to run in; logs go to `logs` in it. */
  readonly folder: string;
  /** Something that must not be. */
  readonly onProblem: (text: string) => void;
  /** A replica has killed itself where it was told to. */
  readonly onDeathAtPoint: (point: string) => void;
  readonly say: (text: string) => void;
}

/** A process that stood still, by the time of day. */
export interface Standstill {
  readonly workerId: string;
  readonly fromMs: number;
  readonly untilMs: number;
}

interface Place {
  replica: Replica | null;
  state: 'starting' | 'up' | 'stopped';
}

/** Of SIGTERM; beyond it calls are handed back. */
export const shutdownSeconds = 4;
/** After its grace: 5 s for the last writes, 5 s for the pool to close, and what a busy machine needs. */
const longestDrainMs = shutdownSeconds * 1000 + 15_000;
/** A replica waits 60 s for PostgreSQL. */
const readyWithinMs = 90_000;
const startPauseMs = 300;
const pollMs = 50;
/** Of a kind of line, as examples. */
const mostTold = 3;

export class Replicas {
  readonly #options: ReplicasOptions;
  readonly #places: Place[];
  readonly #leaving = new Set<Promise<unknown>>();
  readonly #standstills: Standstill[] = [];
  /** Ends that were brought about from here. */
  readonly #wanted = new Set<Replica>();
  readonly #told = new Map<string, number>();
  #started = 0;
  #failedStarts = 0;
  #closing = false;

  constructor(options: ReplicasOptions) {
    this.#options = options;
    this.#places = Array.from({ length: options.count }, () => ({ replica: null, state: 'starting' as const }));
  }

  /** All at once, as a deployment would; these have no fatal points. */
  async start(): Promise<void> {
    await Promise.all(this.#places.map((place) => this.#fill(place, true)));
  }

  /** Addresses as a load balancer has them: of those that stand still too. */
  get urls(): string[] {
    return this.#places.flatMap(({ replica }) => (replica === null ? [] : [replica.url]));
  }

  get up(): number {
    return this.#places.filter(({ state }) => state === 'up').length;
  }

  get standstills(): readonly Standstill[] {
    return this.#standstills;
  }

  get started(): number {
    return this.#started;
  }

  /** Starts that ended before they were ready: PostgreSQL went away in the midst of them. */
  get failedStarts(): number {
    return this.#failedStarts;
  }

  /** kill -9, and another one in its place. */
  async kill(preferred: number, signal: AbortSignal): Promise<void> {
    const place = await this.#standing(preferred, signal);
    if (place === null) return;
    const replica = this.#take(place);
    replica.kill('SIGKILL');
    await replica.exited;
    this.#replace(place);
  }

  /** SIGTERM, and another one in its place at once, as in a rolling deployment. */
  async terminate(preferred: number, signal: AbortSignal): Promise<void> {
    const place = await this.#standing(preferred, signal);
    if (place === null) return;
    const replica = this.#take(place);
    this.#leave(this.#drain(replica));
    this.#replace(place);
  }

  /** SIGSTOP, and SIGCONT after so long. */
  async standStill(preferred: number, ms: number, signal: AbortSignal): Promise<void> {
    const place = await this.#standing(preferred, signal);
    if (place === null) return;
    const { replica } = place as { replica: Replica };
    place.state = 'stopped';
    const fromMs = clock.wallMs();
    replica.kill('SIGSTOP');
    await clock.sleep(ms, signal);
    this.#standstills.push({ workerId: replica.workerId ?? '', fromMs, untilMs: clock.wallMs() });
    replica.kill('SIGCONT');
    // It may have been on the way to its end when it was stopped.
    if (place.replica === replica) place.state = 'up';
  }

  /** Resolves when all are there. */
  async allUp(signal: AbortSignal): Promise<boolean> {
    while (this.up < this.#places.length && !signal.aborted) await clock.sleep(pollMs, signal);
    await Promise.all(this.#leaving);
    return !signal.aborted;
  }

  async close(): Promise<void> {
    this.#closing = true;
    const replicas = this.#places.flatMap(({ replica }) => replica ?? []);
    for (const replica of replicas) {
      this.#wanted.add(replica);
      replica.kill('SIGCONT');
    }
    await Promise.all([...replicas.map((replica) => replica.stop()), ...this.#leaving]);
  }

  /** The preferred one if it is up, else the next that is; null: the run was broken off. */
  async #standing(preferred: number, signal: AbortSignal): Promise<Place | null> {
    while (!signal.aborted) {
      for (let n = 0; n < this.#places.length; n += 1) {
        const place = this.#places[(preferred + n) % this.#places.length]!;
        if (place.state === 'up') return place;
      }
      await clock.sleep(pollMs, signal);
    }
    return null;
  }

  #take(place: Place): Replica {
    const replica = place.replica as Replica;
    this.#wanted.add(replica);
    place.replica = null;
    place.state = 'starting';
    return replica;
  }

  async #drain(replica: Replica): Promise<void> {
    const startMs = clock.monotonicMs();
    const exit = await replica.stop(longestDrainMs);
    if (exit.code === 0) return;
    const seconds = ((clock.monotonicMs() - startMs) / 1000).toFixed(1);
    this.#options.onProblem(`a replica that was told to end by SIGTERM ended ${inWords(exit)} after ${seconds} s`);
  }

  #replace(place: Place): void {
    this.#leave(this.#fill(place, false));
  }

  #leave(work: Promise<unknown>): void {
    this.#leaving.add(work);
    void work.finally(() => this.#leaving.delete(work));
  }

  /** Until one is ready, as a supervisor would. */
  async #fill(place: Place, first: boolean): Promise<void> {
    while (!this.#closing) {
      try {
        const replica = await this.#startOne(place, first);
        if (this.#closing) {
          this.#wanted.add(replica);
          await replica.stop();
          return;
        }
        place.replica = replica;
        place.state = 'up';
        return;
      } catch (error) {
        if (!(error instanceof ReplicaError) || first) throw error;
        if (error.exit?.signal !== 'SIGKILL') {
          this.#failedStarts += 1;
          this.#options.say(`a start failed: ${error.message}`);
        }
        await clock.sleep(startPauseMs);
      }
    }
  }

  async #startOne(place: Place, first: boolean): Promise<Replica> {
    const { startReplica, nodeFlags, environment, folder, seed } = this.#options;
    this.#started += 1;
    const number = this.#started;
    const plan = first ? null : fatalPoint(seed, number);
    const log = createWriteStream(join(folder, 'logs', `replica-${number}.log`));
    let reached: string | undefined;
    const replica = await startReplica({
      environment: { ...environment, NODE_ENV: 'test', ...(plan === null ? {} : { SLUICE_FAULT_POINTS: plan }) },
      cwd: folder,
      nodeFlags,
      readyWithinMs,
      // Else Ctrl-C would end it under us.
      ownGroup: true,
      onLine: (line) => {
        log.write(`${line}\n`);
        reached ??= this.#judgeLine(number, line);
      },
    }).catch((error: unknown) => {
      log.end();
      throw error;
    });
    void replica.exited.then((exit) => {
      log.end();
      if (this.#wanted.has(replica)) return;
      if (reached !== undefined && exit.signal === 'SIGKILL') this.#options.onDeathAtPoint(reached);
      else this.#options.onProblem(`replica ${number} ended by itself, ${inWords(exit)}`);
      this.#take(place);
      if (!this.#closing) this.#replace(place);
    });
    return replica;
  }

  /** The fault point that the line tells of, if it does; an error that it tells of is passed on. */
  #judgeLine(number: number, line: string): string | undefined {
    if (line.includes('"fault_point"')) return (JSON.parse(line) as { fault_point: string }).fault_point;
    if (line.startsWith('{') && !/"level":(50|60)/.test(line)) return undefined;
    const text = line.startsWith('{') ? shortened(line) : line;
    const kind = text.slice(0, 40);
    const times = (this.#told.get(kind) ?? 0) + 1;
    this.#told.set(kind, times);
    if (times <= mostTold) this.#options.onProblem(`replica ${number} logged: ${text}`);
    return undefined;
  }
}

function shortened(line: string): string {
  const { msg, err } = JSON.parse(line) as { msg?: string; err?: { message?: string; code?: string } };
  return [msg, err?.code, err?.message].filter((part) => part !== undefined).join(': ');
}

function inWords({ code, signal }: Exit): string {
  return signal === null ? `with code ${code}` : `by ${signal}`;
}
