/**
 * Three replicas under one rate limit, with more jobs than it lets through: is the bound kept, by the workers' own stamps
 * (the service's audit) and at the upstream, and how much of the quota is used while it is the only brake. Replicas are
 * killed where a case says so.
 */

import { setPriority } from 'node:os';
import type { Replica } from '../src/cli/demo/replica.ts';
import { SluiceClient } from '../src/client/index.ts';
import { permitMs } from '../src/domain/rate-window.ts';
import type { RequestLog } from '../src/simulator/request-log.ts';
import type { UpstreamProcess } from '../src/simulator/upstream-process.ts';
import { systemClock as clock } from '../src/system/clock.ts';
import { batches } from './calls-to-make.ts';
import { declareRateLimit, declareUpstream, submitAll } from './service-client.ts';
import type { BenchDatabase, Stage } from './stage.ts';
import { mostOverBucket, periodsOverFixedWindows, quotaUsed } from './starts.ts';

export interface LimitCase {
  readonly name: string;
  readonly limit: number;
  readonly per: number;
  readonly algorithm: 'sliding_window' | 'fixed_window' | 'token_bucket';
  readonly burst?: number;
  readonly jobs: number;
  /** Replicas killed on the way, each replaced at once. */
  readonly kills?: number;
}

export interface LimitFigures extends LimitCase {
  /** Most starts in any period by the audit of the service; `bound` is what the algorithm allows there. */
  readonly audited: number;
  readonly bound: number | null;
  /** Most arrivals in any period at the upstream. */
  readonly atUpstream: number;
  /** Share of the quota, by the workers' stamps. */
  readonly used: number | null;
  readonly calls: number;
  /** What is wrong; empty: the bound held and every job took effect once. */
  readonly faults: readonly string[];
}

const replicas = 3;
/** Some calls take longer, so that a kill finds calls in flight. */
const slowCalls = { slow: 0.2, slowMs: [50, 400] } as const;
const pollMs = 50;
/** Starts per second from which on processes have to be warm to keep up. */
const highRate = 500;
const warmUpCalls = 10_000;

export async function measureLimit(stage: Stage, index: number, limitCase: LimitCase): Promise<LimitFigures> {
  const { limit, per, algorithm, burst, jobs, kills = 0 } = limitCase;
  const target = await stage.createDatabase(`limit_${index}`);
  const upstream = await stage.startUpstream(kills > 0 ? { faults: slowCalls } : {});
  favour(upstream.pid);
  const env = { SLUICE_LEASE_SECONDS: '3' };
  const services = await Promise.all(Array.from({ length: replicas }, () => stage.startService(target, { env })));
  const first = services[0]!;
  await declareUpstream(first.url, 'api', upstream.url);
  const definition = { limit, per, algorithm, upstreams: ['api'], ...(burst === undefined ? {} : { burst }) };
  await declareRateLimit(first.url, 'quota', definition);

  if (limit >= highRate) await warmUp(stage, first, target);
  const submitted = submitAll(first.url, batches('api', 'call', jobs));
  for (let kill = 1; kill <= kills; kill += 1) {
    await reached(upstream, Math.floor((jobs * kill) / (kills + 2)));
    await killAndReplace(stage, target, services, kill);
  }
  await submitted;
  // Twice the time that the limit alone needs, and leases that must run out.
  await finished(target, jobs + (limit >= highRate ? warmUpCalls : 0), 20_000 + (2 * jobs * per * 1000) / limit);
  const figures = await judge(limitCase, first, target, await upstream.log());
  await Promise.all(services.map((service) => service.stop()));
  await upstream.close();
  return figures;
}

/**
 * The upstream's clock judges here, and on a machine that all share it must not stand in line with those it judges: what it reads
 * 30 ms late it takes for 30 ms of travel. Only root may do this; elsewhere arrivals look later than they are.
 */
function favour(pid: number): void {
  try {
    setPriority(pid, -10);
  } catch {
    console.log('the upstream shares the processors as an equal: its arrivals are late by as much as they are busy');
  }
}

/** Three processes that have just been started are busy with themselves for seconds: not what a high rate is to show. */
async function warmUp(stage: Stage, service: Replica, target: BenchDatabase): Promise<void> {
  const upstream = await stage.startUpstream();
  await declareUpstream(service.url, 'warm', upstream.url);
  await submitAll(service.url, batches('warm', 'warm', warmUpCalls));
  await finished(target, warmUpCalls, 60_000);
  await upstream.close();
}

async function killAndReplace(stage: Stage, target: BenchDatabase, services: Replica[], place: number): Promise<void> {
  const victim = services[place]!;
  victim.kill('SIGKILL');
  await victim.exited;
  services[place] = await stage.startService(target, { env: { SLUICE_LEASE_SECONDS: '3' } });
}

async function reached(upstream: UpstreamProcess, calls: number): Promise<void> {
  while ((await upstream.count()) < calls) await clock.sleep(pollMs);
}

async function finished({ database }: BenchDatabase, jobs: number, withinMs: number): Promise<void> {
  const endMs = clock.monotonicMs() + withinMs;
  for (;;) {
    const [row] = await database.query<{ done: number }>('select count(*)::int as done from sluice.done_jobs');
    if (row!.done >= jobs) return;
    if (clock.monotonicMs() > endMs) throw new Error(`${row!.done} of ${jobs} jobs ended within ${withinMs} ms`);
    await clock.sleep(pollMs);
  }
}

interface Audit {
  readonly max_starts: number;
  readonly bound: number | null;
}

async function judge(
  limitCase: LimitCase,
  service: Replica,
  { database }: BenchDatabase,
  log: RequestLog,
): Promise<LimitFigures> {
  const { limit, per, algorithm, burst = Math.ceil(limit / per), jobs } = limitCase;
  const perMs = per * 1000;
  const audit = await new SluiceClient({ baseUrl: service.url }).call<Audit>('GET', '/admin/rate-windows/quota/audit');
  const starts = await database.query<{ ms: number }>(
    `select extract(epoch from coalesce(sent_at, started_at))::float8 * 1000 as ms
       from sluice.attempts a join sluice.jobs j on j.id = a.job_id
      where j.upstream = 'api' and (a.sent_at is not null or a.outcome = 'unknown')`,
  );
  const sent = starts.map(({ ms }) => ms);
  const atUpstream = log.maxStartsInAny(perMs);
  const faults: string[] = [];
  if (audit.bound !== null && audit.max_starts > audit.bound) faults.push(`${audit.max_starts} starts by the audit`);
  if (algorithm === 'sliding_window' && atUpstream > limit) faults.push(`${atUpstream} arrivals in one period`);
  if (algorithm === 'fixed_window') {
    const periods = periodsOverFixedWindows(sent, limit, perMs);
    if (periods !== null) faults.push(`more starts in ${periods} periods than ${periods + 1} windows let through`);
  }
  if (algorithm === 'token_bucket') {
    const over = mostOverBucket(sent, { limit, perMs, burst, permitMs });
    if (over > 0) faults.push(`${over.toFixed(2)} more than the bucket allows`);
  }
  // What starts up cold (connections, a full bucket) is not the steady use.
  const skipped = { sliding_window: 0, fixed_window: limit, token_bucket: burst }[algorithm];
  const { effects, doubles } = log.summary();
  if (effects !== jobs || doubles > 0) faults.push(`${effects} effects of ${jobs} jobs, ${doubles} done twice`);
  return {
    ...limitCase,
    audited: audit.max_starts,
    bound: audit.bound,
    atUpstream,
    used: quotaUsed(sent, limit, perMs, skipped),
    calls: log.requests.length,
    faults,
  };
}
