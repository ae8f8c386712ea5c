/**
 * One of those that are compared: takes jobs in, then works them off through real calls to an upstream of its own. Rates are
 * taken where all are alike: the intake by the clock of whoever sends, the calls by the upstream's books.
 */
import type { UpstreamProcess } from '../src/simulator/upstream-process.ts';
import type { Stage } from './stage.ts';

export interface Contender {
  readonly name: string;
  /** In words, for the table. */
  readonly settings: string;
  /** `ours`; `within`: a peer that holds no more than 1,000 jobs in its process; `any`: a peer at whatever setting. */
  readonly kind: 'ours' | 'within' | 'any';
  /** Of the jobs of a run, where it would take too long with all of them. */
  readonly share?: number;
  /** The same for the jobs whose latency is taken. */
  readonly latencyShare?: number;
  /** Its time from a send to the start is measured, too. */
  readonly timed: boolean;
  /** A new process on an empty store. */
  open(stage: Stage, upstream: UpstreamProcess): Promise<OpenContender>;
}

export interface OpenContender {
  /** Nothing runs meanwhile. Gives the seconds it took, 1,000 jobs a call and one call at a time. */
  insert(label: string, count: number): Promise<number>;
  /** Works them all off. */
  drain(count: number): Promise<void>;
  /** On an idle one, each job for itself: milliseconds from each send to the start. */
  latency(label: string, count: number): Promise<number[]>;
  close(): Promise<void>;
}

export interface ContenderRun {
  readonly insertedPerSecond: number;
  readonly callsPerSecond: number;
}

/** The first thousands meet code that is not compiled yet. */
const warmUpJobs = 5_000;
const latencyWarmUps = 30;

export function runContender(stage: Stage, contender: Contender, jobs: number): Promise<ContenderRun> {
  return withOpen(stage, contender, async (opened, upstream) => {
    const warmUps = Math.min(warmUpJobs, jobs);
    await opened.insert('warm', warmUps);
    await opened.drain(warmUps);
    const seconds = await opened.insert('run', jobs);
    await opened.drain(jobs);
    const calls = (await upstream.log()).requests.slice(warmUps);
    if (calls.length !== jobs) throw new Error(`${contender.name}: ${calls.length} calls for ${jobs} jobs`);
    return {
      insertedPerSecond: jobs / seconds,
      callsPerSecond: (jobs * 1000) / (calls.at(-1)!.arrivedMs - calls[0]!.arrivedMs),
    };
  });
}

/** Milliseconds, ascending. */
export function latencyOf(stage: Stage, contender: Contender, jobs: number): Promise<number[]> {
  return withOpen(stage, contender, async (opened) => {
    await opened.latency('warm', latencyWarmUps);
    return (await opened.latency('call', jobs)).sort((a, b) => a - b);
  });
}

async function withOpen<T>(
  stage: Stage,
  contender: Contender,
  work: (opened: OpenContender, upstream: UpstreamProcess) => Promise<T>,
): Promise<T> {
  const upstream = await stage.startUpstream();
  const opened = await contender.open(stage, upstream);
  try {
    return await work(opened, upstream);
  } finally {
    await opened.close();
    await upstream.close();
  }
}
