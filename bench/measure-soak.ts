/**
 * A long run under load, while a transaction is left open in the same database, so that no row that dies can be removed: what
 * a forgotten session or a long backup does to a queue. Intake and work are done by two processes, so that the memory of the
 * worker is its own.
 */
import pg from 'pg';
import { systemClock as clock } from '../src/system/clock.ts';
import { cpuSeconds } from './cpu-time.ts';
import { residentMb } from './measure-footprint.ts';
import { declareRateLimit, declareUpstream } from './service-client.ts';
import { type Feeder, feedAsCalled, feedSteadily } from './soak-feeder.ts';
import { type SoakUpstream, startSoakUpstream } from './soak-upstream-process.ts';
import type { BenchDatabase, Stage } from './stage.ts';

export interface SoakCase {
  readonly name: string;
  /** Jobs per second; null: as many as are worked off. */
  readonly perSecond: number | null;
  /** A fleet window far above the speed covers the lane. */
  readonly windowed: boolean;
  /** A transaction is left open the whole time. */
  readonly pinned: boolean;
  readonly lanes: number;
}

export interface SoakSample {
  /** Seconds since the transaction was opened. */
  readonly second: number;
  readonly callsPerSecond: number;
  /** From POST to call; null: there was no call. */
  readonly p50Ms: number | null;
  readonly p99Ms: number | null;
  /** Taken in and not called yet. */
  readonly waiting: number;
  /** Rows that are dead and cannot go, by the server's count. */
  readonly deadRows: number;
  readonly workerMb: number;
  readonly walMbPerSecond: number;
  /**
   * Processor time that the upstream took for a call, in microseconds. It does the same for each, so this tells how fast the
   * machine was just then; null: there was no call, or there is no /proc.
   */
  readonly upstreamUs: number | null;
}

export interface SoakRun extends SoakCase {
  readonly samples: readonly SoakSample[];
  /** Calls per second of the first and the last minute, or the first and last fifth of a run of less than five. */
  readonly first: number;
  readonly last: number;
  /** Processor time of the upstream for a call then, in microseconds; null: not known. */
  readonly firstUs: number | null;
  readonly lastUs: number | null;
  /** Memory of the worker after the first of these and at the end, in megabytes. */
  readonly workerMbThen: number;
  readonly workerMbEnd: number;
}

const slots = 64;
const warmUpMs = 10_000;

/** Calls per second that one worker makes while another process takes in as much, with nothing in the way. */
export async function measureCapacity(stage: Stage, seconds: number): Promise<number> {
  const ground = await prepare(stage, 'capacity', false);
  const feeder = feedAsCalled(ground.intake.url, 1, ground.upstream.count);
  await clock.sleep(warmUpMs);
  await ground.upstream.take();
  const startMs = clock.monotonicMs();
  await clock.sleep(seconds * 1000);
  const { calls } = await ground.upstream.take();
  const rate = (calls * 1000) / (clock.monotonicMs() - startMs);
  await feeder.stop();
  await ground.close();
  return rate;
}

export async function soak(
  stage: Stage,
  index: number,
  soakCase: SoakCase,
  { seconds, sampleSeconds }: { seconds: number; sampleSeconds: number },
  onSample: (sample: SoakSample) => void,
): Promise<SoakRun> {
  const ground = await prepare(stage, `soak_${index}`, soakCase.windowed);
  const { perSecond, lanes } = soakCase;
  const feeder =
    perSecond === null
      ? feedAsCalled(ground.intake.url, lanes, ground.upstream.count)
      : feedSteadily(ground.intake.url, lanes, perSecond);
  await clock.sleep(warmUpMs);
  const letGo = soakCase.pinned ? await leaveTransactionOpen(ground.target) : async () => undefined;
  const samples = await takeSamples(ground, feeder, { seconds, sampleSeconds }, onSample);
  await feeder.stop();
  await letGo();
  await ground.close();

  const part = Math.max(1, Math.floor(Math.min(60, seconds / 5) / sampleSeconds));
  const [first, last] = [samples.slice(0, part), samples.slice(-part)];
  return {
    ...soakCase,
    samples,
    first: mean(first, (sample) => sample.callsPerSecond) ?? 0,
    last: mean(last, (sample) => sample.callsPerSecond) ?? 0,
    firstUs: mean(first, (sample) => sample.upstreamUs),
    lastUs: mean(last, (sample) => sample.upstreamUs),
    workerMbThen: samples[part - 1]!.workerMb,
    workerMbEnd: samples.at(-1)!.workerMb,
  };
}

/** null: of some it is not known. */
function mean(samples: readonly SoakSample[], value: (sample: SoakSample) => number | null): number | null {
  let sum = 0;
  for (const sample of samples) {
    const each = value(sample);
    if (each === null) return null;
    sum += each;
  }
  return sum / samples.length;
}

interface Ground {
  readonly target: BenchDatabase;
  readonly upstream: SoakUpstream;
  readonly intake: { readonly url: string };
  readonly workerPid: number;
  close(): Promise<void>;
}

async function prepare(stage: Stage, name: string, windowed: boolean): Promise<Ground> {
  const target = await stage.createDatabase(name);
  const upstream = await startSoakUpstream();
  stage.onClose(() => upstream.close());
  const intake = await stage.startService(target, { env: { SLUICE_ROLES: 'api' } });
  const worker = await stage.startService(target, {
    env: { SLUICE_ROLES: 'worker', SLUICE_CONCURRENCY: String(slots) },
  });
  await declareUpstream(intake.url, 'api', upstream.url);
  if (windowed) {
    await declareRateLimit(intake.url, 'far-above', { limit: 1_000_000, per: 1, upstreams: ['api'] });
  }
  return {
    target,
    upstream,
    intake,
    workerPid: worker.pid,
    async close() {
      await worker.stop();
      await intake.stop();
      await upstream.close();
      await stage.dropDatabase(target);
    },
  };
}

/** One that has read and written, as a forgotten session would; gives what ends it. */
async function leaveTransactionOpen({ connectionString }: BenchDatabase): Promise<() => Promise<void>> {
  const client = new pg.Client({ connectionString, application_name: 'bench left open' });
  client.on('error', () => {});
  await client.connect();
  await client.query('begin isolation level repeatable read');
  await client.query('select pg_current_xact_id()');
  return () => client.end();
}

async function takeSamples(
  { target, upstream, workerPid }: Ground,
  feeder: Feeder,
  { seconds, sampleSeconds }: { seconds: number; sampleSeconds: number },
  onSample: (sample: SoakSample) => void,
): Promise<SoakSample[]> {
  const samples: SoakSample[] = [];
  await upstream.take();
  const startMs = clock.monotonicMs();
  let lastMs = startMs;
  let { wal: lastWal } = await serverCounts(target);
  let lastCpu = await cpuSeconds(upstream.pid);
  for (let at = sampleSeconds; at <= seconds; at += sampleSeconds) {
    await clock.sleep(Math.max(0, startMs + at * 1000 - clock.monotonicMs()));
    const { total, calls, p50Ms, p99Ms } = await upstream.take();
    const nowMs = clock.monotonicMs();
    const cpu = await cpuSeconds(upstream.pid);
    const { wal, dead } = await serverCounts(target);
    const sample: SoakSample = {
      second: Math.round((nowMs - startMs) / 1000),
      callsPerSecond: (calls * 1000) / (nowMs - lastMs),
      p50Ms,
      p99Ms,
      waiting: feeder.posted - total,
      deadRows: dead,
      workerMb: await residentMb(workerPid),
      walMbPerSecond: (wal - lastWal) / 1000 / (nowMs - lastMs),
      upstreamUs: calls === 0 || cpu === lastCpu ? null : ((cpu - lastCpu) * 1_000_000) / calls,
    };
    lastMs = nowMs;
    lastWal = wal;
    lastCpu = cpu;
    samples.push(sample);
    onSample(sample);
  }
  return samples;
}

async function serverCounts({ database }: BenchDatabase): Promise<{ wal: number; dead: number }> {
  const [row] = await database.query<{ wal: number; dead: number }>(
    `select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8 as wal,
            (select coalesce(sum(n_dead_tup), 0)::float8 from pg_stat_user_tables where schemaname = 'sluice') as dead`,
  );
  return row!;
}
