/**
 * Jobs done per second through real HTTP calls: one service process, the simulated upstream in another, PostgreSQL durable.
 * Two upstreams share the simulator: one that no limit covers, and one under a fleet window far above the speed; their runs
 * alternate, so that the difference is the window's and not the machine's.
 * The rate is taken from the database's own stamps: from the first admission to the last written outcome.
 */
import type { UpstreamProcess } from '../src/simulator/upstream-process.ts';
import { systemClock as clock } from '../src/system/clock.ts';
import { batches } from './calls-to-make.ts';
import { cpuSeconds, machineSeconds, parentOf } from './cpu-time.ts';
import { type Spread, spread } from './figures.ts';
import { declareRateLimit, declareUpstream, setPaused, submitAll } from './service-client.ts';
import type { BenchDatabase, Stage } from './stage.ts';

export interface DrainFigures {
  readonly slots: number;
  readonly jobs: number;
  readonly free: DrainOfOneUpstream;
  /** Under a sliding window of 1,000,000 per second. */
  readonly windowed: DrainOfOneUpstream;
}

export interface DrainOfOneUpstream {
  /** Jobs per second. */
  readonly rate: Spread;
  readonly walBytesPerJob: Spread;
  /** By the stamps that all jobs of one claim, and of one settle, have in common. */
  readonly jobsPerClaim: Spread;
  readonly jobsPerSettle: Spread;
  /** Processor milliseconds per 1,000 jobs. */
  readonly cpuMsPer1000: Readonly<Record<'service' | 'postgres' | 'upstream', Spread>>;
  /** Processors that were busy with something else meanwhile: where it is not near 0, the rate is the machine's. */
  readonly elsewhere: Spread;
}

export interface Run {
  /** From the resume to the last outcome, in microseconds of the machine's monotonic clock. */
  readonly span: { readonly fromUs: number; readonly toUs: number };
  readonly rate: number;
  readonly walBytesPerJob: number;
  readonly jobsPerClaim: number;
  readonly jobsPerSettle: number;
  readonly service: number;
  readonly postgres: number;
  readonly upstream: number;
  readonly elsewhere: number;
}

export interface DrainOptions {
  readonly slots: number;
  readonly jobs: number;
  readonly runs: number;
  readonly nodeFlags?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
}

const pollMs = 50;
/** The first thousands meet code that is not compiled yet. */
const warmUpJobs = 5_000;
/** A run that takes longer is stuck: less than 100 jobs a second. */
const longestMsPerJob = 10;

export async function measureDrain(stage: Stage, options: DrainOptions): Promise<DrainFigures> {
  const { slots, jobs, runs, nodeFlags = [], env = {} } = options;
  const target = await stage.createDatabase(`drain_${slots}`);
  const upstream = await stage.startUpstream();
  const service = await stage.startService(target, { nodeFlags, env: { SLUICE_CONCURRENCY: String(slots), ...env } });
  for (const name of ['free', 'windowed']) await declareUpstream(service.url, name, upstream.url);
  await declareRateLimit(service.url, 'far-above', { limit: 1_000_000, per: 1, upstreams: ['windowed'] });

  const drain = (name: string, label: string, count: number) =>
    drainOnce({ target, service: service.url, servicePid: service.pid, upstream, name, label, count });
  for (const name of ['free', 'windowed']) await drain(name, `warm-${name}`, warmUpJobs);
  const done: Record<'free' | 'windowed', Run[]> = { free: [], windowed: [] };
  for (let run = 0; run < runs; run += 1) {
    for (const name of ['free', 'windowed'] as const) done[name].push(await drain(name, `run-${name}-${run}`, jobs));
  }
  await service.stop();
  await upstream.close();
  return { slots, jobs, free: sum(done.free), windowed: sum(done.windowed) };
}

function sum(runs: readonly Run[]): DrainOfOneUpstream {
  const column = (pick: (run: Run) => number) => spread(runs.map(pick));
  return {
    rate: column((run) => run.rate),
    walBytesPerJob: column((run) => run.walBytesPerJob),
    jobsPerClaim: column((run) => run.jobsPerClaim),
    jobsPerSettle: column((run) => run.jobsPerSettle),
    cpuMsPer1000: {
      service: column((run) => run.service),
      postgres: column((run) => run.postgres),
      upstream: column((run) => run.upstream),
    },
    elsewhere: column((run) => run.elsewhere),
  };
}

export interface Drain {
  readonly target: BenchDatabase;
  /** URL of the one that takes the jobs in. */
  readonly service: string;
  /** The one that runs them. */
  readonly servicePid: number;
  readonly upstream: UpstreamProcess;
  /** Of the upstream as the service knows it. */
  readonly name: string;
  /** Start of all keys. */
  readonly label: string;
  readonly count: number;
  /** Between the last batch and the resume. */
  readonly beforeStart?: () => Promise<void>;
}

/** Submits the jobs while their upstream is paused, resumes it, and waits for the last outcome. */
export async function drainOnce({
  target,
  service,
  servicePid,
  upstream,
  name,
  label,
  count,
  beforeStart,
}: Drain): Promise<Run> {
  await setPaused(service, name, true);
  await submitAll(service, batches(name, label, count));
  await beforeStart?.();
  const before = await readCounters(target, servicePid, upstream.pid);
  const callsBefore = await upstream.count();
  const fromUs = monotonicUs();
  await setPaused(service, name, false);
  const endMs = clock.monotonicMs() + count * longestMsPerJob + 10_000;
  while ((await upstream.count()) < callsBefore + count || (await ended(target, before.at)) < count) {
    if (clock.monotonicMs() > endMs)
      throw new Error(`${label}: ${await ended(target, before.at)} of ${count} jobs ended`);
    await clock.sleep(pollMs);
  }
  const toUs = monotonicUs();
  const after = await readCounters(target, servicePid, upstream.pid);
  const [times] = await target.database.query<{ seconds: number; calls: number; claims: number; settles: number }>(
    `select extract(epoch from max(ended_at) - min(started_at))::float8 as seconds, count(*)::int as calls,
            count(distinct started_at)::int as claims, count(distinct ended_at)::int as settles from (
       select a.started_at, d.ended_at from sluice.attempts a join sluice.done_jobs d on d.job_id = a.job_id
        where a.started_at >= $1 and d.state = 'succeeded') x`,
    [before.at],
  );
  if (times!.calls !== count) throw new Error(`${label}: ${times!.calls} calls for ${count} jobs`);
  const grown = (key: Exclude<keyof Counters, 'at'>) => after[key] - before[key];
  const ours = grown('service') + grown('postgres') + grown('upstream') + grown('bench');
  const per1000 = (key: 'service' | 'postgres' | 'upstream') => (grown(key) * 1_000_000) / count;
  return {
    span: { fromUs, toUs },
    rate: count / times!.seconds,
    walBytesPerJob: grown('wal') / count,
    jobsPerClaim: count / times!.claims,
    jobsPerSettle: count / times!.settles,
    service: per1000('service'),
    postgres: per1000('postgres'),
    upstream: per1000('upstream'),
    elsewhere: Math.max(0, ((grown('machine') - ours) * 1000) / grown('monotonicMs')),
  };
}

/** One clock for all processes of the machine, the one that CPU profiles are stamped with. */
function monotonicUs(): number {
  return Number(process.hrtime.bigint() / 1000n);
}

async function ended({ database }: BenchDatabase, since: Date): Promise<number> {
  const [row] = await database.query<{ count: number }>(
    'select count(*)::int as count from sluice.attempts where started_at >= $1',
    [since],
  );
  return row!.count;
}

interface Counters {
  /** By the database's clock. */
  readonly at: Date;
  readonly wal: number;
  readonly service: number;
  readonly postgres: number;
  readonly upstream: number;
  readonly bench: number;
  readonly machine: number;
  readonly monotonicMs: number;
}

async function readCounters({ database }: BenchDatabase, service: number, upstream: number): Promise<Counters> {
  const [row] = await database.query<{ at: Date; wal: number; pid: number }>(
    `select clock_timestamp() as at, pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8 as wal, pg_backend_pid() as pid`,
  );
  return {
    at: row!.at,
    wal: row!.wal,
    service: await cpuSeconds(service),
    postgres: await cpuSeconds(await parentOf(row!.pid), { withChildren: true }),
    upstream: await cpuSeconds(upstream),
    bench: await cpuSeconds(process.pid),
    machine: await machineSeconds(),
    monotonicMs: clock.monotonicMs(),
  };
}
