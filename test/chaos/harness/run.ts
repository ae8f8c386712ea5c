/**
 * One run of chaos: a PostgreSQL behind a proxy, an upstream that keeps its own books and its own quota, replicas as real
 * processes, a client that does not give up, and faults by plan; then the verdict. All on loopback, bounded in time, and
 * taken down again however it ends.
 */
import { chmod, copyFile, mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import { startReplica as startFromSources } from '../../../src/cli/demo/replica.ts';
import { permitMs } from '../../../src/domain/rate-window.ts';
import type { FaultMix } from '../../../src/simulator/answers.ts';
import { systemClock as clock } from '../../../src/system/clock.ts';
import { TestClient } from '../../support/client.ts';
import { type OwnPostgres, useOwnPostgres } from '../../support/own-postgres.ts';
import { OwnScope } from '../../support/scope.ts';
import { startTcpProxy } from '../../support/tcp-proxy.ts';
import { type UpstreamProcess, useUpstreamProcess } from '../../support/upstream.ts';
import { readBooks } from './books.ts';
import { Faults } from './faults.ts';
import { judge, type Terms, type Verdict } from './judge.ts';
import { planFaults, plannedKinds } from './plan.ts';
import { Replicas, type StartReplica, shutdownSeconds } from './replicas.ts';
import { Submitter } from './submitter.ts';

export interface ChaosOptions {
  /** How long faults happen. What is left then has `settleSeconds` more. */
  readonly seconds: number;
  readonly seed: number;
  readonly replicas: number;
  /** Keys that are submitted. */
  readonly items: number;
  /** From src through a loader, or (the default) what was built, as a user would run it. */
  readonly fromSources?: boolean;
  readonly say: (line: string) => void;
  /** Breaks the run off. */
  readonly signal: AbortSignal;
}

export interface ChaosReport extends Verdict {
  readonly terms: Terms;
  /** How often each kind of fault has happened, in words. */
  readonly faultsByKind: ReadonlyMap<string, number>;
  /** Requests of the client by what came of them. */
  readonly answers: ReadonlyMap<string, number>;
  readonly replicasStarted: number;
  readonly failedStarts: number;
  /** From the first request to the last end. */
  readonly tookMs: number;
  /** From the end of the last fault to the last end of a job. */
  readonly settledMs: number;
  /** null: nothing was wrong, and they are gone. */
  readonly logFolder: string | null;
}

/** Short, so that what a fault leaves is taken up while the run goes on; a standstill can outlast it. */
export const leaseSeconds = 4;
const periodSeconds = 1;
/**
 * What calls may differ in how long they travel before the bound at the upstream is in question: all processes share the
 * machine, and each replica that starts takes a core for a second.
 */
export const slackMs = 250;
/** The window lets through so much more than is submitted: after each loss of the database it catches up, at the limit. */
const headroom = 3;
/** Of the time in which faults happen, that in which batches come. */
const submitting = 0.95;
/** After the last fault what is left has so long, before the run is given up … */
const settleSeconds = 90;
/**
 * … and so long before that is a fault of the service: work goes on within 10 s of a loss of the database, a lost lease runs
 * out and is seen, and calls that were given up have their backoff and a cooldown to wait for.
 */
const settledWithinMs = 10_000 + leaseSeconds * 1000 + 10_000;
const deathAtPoint = 'kill -9 at a fault point, replaced';
const upstreamName = 'api';
const progressMs = 5_000;
const slots = 16;

/** Rejects where the run could not be made, or was broken off; what the run found wrong is in the report. */
export async function runChaos(options: ChaosOptions): Promise<ChaosReport> {
  const { say, signal } = options;
  const folder = await mkdtemp(join(tmpdir(), 'sluice-chaos-'));
  await chmod(folder, 0o755);
  await mkdir(join(folder, 'logs'));
  const scope = new OwnScope();
  const close = () => scope.close((error) => say(`while taking down: ${String(error)}`));
  let keep = true;
  try {
    const report = await run(options, folder, scope);
    signal.throwIfAborted();
    keep = report.faults.length > 0;
    return { ...report, logFolder: keep ? join(folder, 'logs') : null };
  } finally {
    await close();
    if (!keep || signal.aborted) await rm(folder, { recursive: true, force: true });
  }
}

async function run(options: ChaosOptions, folder: string, scope: OwnScope): Promise<Omit<ChaosReport, 'logFolder'>> {
  const { seconds, seed, items, say, signal } = options;
  const problems: string[] = [];
  const startMs = clock.monotonicMs();
  const sayAt = (text: string) => say(`${inSeconds(clock.monotonicMs() - startMs).padStart(6)} s  ${text}`);
  const onProblem = (text: string) => {
    problems.push(text);
    sayAt(`WRONG: ${text}`);
  };
  const limit = Math.ceil((headroom * items * periodSeconds) / seconds);
  const deaths = new Map<string, number>();
  const stage = await setTheStage(options, { folder, scope, limit, onProblem, sayAt, deaths });
  const { postgres, proxy, upstream, replicas } = stage;
  signal.throwIfAborted();
  sayAt(`${options.replicas} replicas, at most ${limit} calls in any ${periodSeconds} s, ${items} items`);

  const runMs = clock.monotonicMs();
  const submitter = new Submitter({
    seed,
    items,
    upstream: upstreamName,
    spreadMs: submitting * seconds * 1000,
    urls: () => replicas.urls,
    onProblem,
    signal: AbortSignal.any([signal, AbortSignal.timeout((seconds + settleSeconds) * 1000)]),
  });
  const plan = planFaults({ seed, seconds, replicas: options.replicas, leaseSeconds });
  const over = new AbortController();
  scope.teardown(() => over.abort());
  const untilOver = AbortSignal.any([signal, over.signal]);
  const faults = new Faults({ plan, replicas, postgres, proxy, say: sayAt, onProblem, signal: untilOver });
  const progress = showProgress({ submitter, upstream, replicas, items, say: sayAt, signal: untilOver });
  const submitted = submitter.run();
  await faults.run();
  signal.throwIfAborted();
  const overMs = clock.monotonicMs();
  sayAt('no more faults; what is left runs');
  const settled = AbortSignal.any([signal, AbortSignal.timeout(settleSeconds * 1000)]);
  await submitted;
  await untilEnded(postgres.connectionString, settled);
  signal.throwIfAborted();
  const endedMs = clock.monotonicMs();
  const settledMs = endedMs - overMs;
  if (settledMs > settledWithinMs) onProblem(`the last job ended ${inSeconds(settledMs)} s after the last fault`);
  if (!(await replicas.allUp(settled))) onProblem('not all replicas were up at the end');
  over.abort();
  await progress;

  sayAt('reading the books');
  const [url] = replicas.urls;
  if (url === undefined) throw new Error('no replica is left to be asked');
  const books = await readBooks({
    url,
    databaseUrl: postgres.connectionString,
    sent: submitter.batches,
    rateLimit: upstreamName,
    log: await upstream.log(),
    standstills: replicas.standstills,
  });
  const terms: Terms = {
    keys: new Set(submitter.keys),
    batches: submitter.total,
    limit,
    periodMs: periodSeconds * 1000,
    permitMs,
    slackMs,
  };
  const verdict = judge(books, terms);
  const died = [...deaths.values()].reduce((sum, each) => sum + each, 0);
  return {
    figures: verdict.figures,
    faults: [...problems, ...verdict.faults],
    terms,
    faultsByKind: new Map([
      ...[...faults.done].map(([kind, count]): [string, number] => [plannedKinds[kind], count]),
      ...(died > 0 ? [[deathAtPoint, died] as [string, number]] : []),
    ]),
    answers: submitter.answers,
    replicasStarted: replicas.started,
    failedStarts: replicas.failedStarts,
    tookMs: endedMs - runMs,
    settledMs,
  };
}

function inSeconds(ms: number): string {
  return (ms / 1000).toFixed(1);
}

interface Stage {
  readonly postgres: OwnPostgres;
  readonly proxy: Awaited<ReturnType<typeof startTcpProxy>>;
  readonly upstream: UpstreamProcess;
  readonly replicas: Replicas;
}

async function setTheStage(
  { seed, items, replicas: count, fromSources = false }: ChaosOptions,
  context: {
    readonly folder: string;
    readonly scope: OwnScope;
    readonly limit: number;
    readonly onProblem: (text: string) => void;
    readonly sayAt: (text: string) => void;
    readonly deaths: Map<string, number>;
  },
): Promise<Stage> {
  const { folder, scope, limit, onProblem, sayAt, deaths } = context;
  const postgres = await useOwnPostgres(scope, postgresSettings);
  const serverLog = join(postgres.place.folder, 'server.log');
  scope.teardown(() => copyFile(serverLog, join(folder, 'logs', 'postgres.log')));
  const proxy = await startTcpProxy(scope, postgres.connectionString);
  const upstream = await useUpstreamProcess(scope, {
    seed,
    lean: true,
    faults: faultsOf(items),
    quota: { limit, perMs: periodSeconds * 1000 },
  });
  const replicas = new Replicas({
    count,
    seed,
    ...(fromSources
      ? { startReplica: startFromSources, nodeFlags: ['--import', import.meta.resolve('tsx')] }
      : { startReplica: await builtStartReplica(), nodeFlags: [] }),
    environment: {
      PATH: process.env.PATH,
      DATABASE_URL: proxy.connectionString,
      HOST: '127.0.0.1',
      PORT: '0',
      LOG_LEVEL: 'info',
      SLUICE_CONCURRENCY: String(slots),
      SLUICE_LEASE_SECONDS: String(leaseSeconds),
      SLUICE_SHUTDOWN_SECONDS: String(shutdownSeconds),
      SLUICE_POOL_MAX: '5',
      // A service that npm started ends when its parent is gone, also where we are killed.
      npm_lifecycle_event: 'chaos',
    },
    folder,
    onProblem,
    onDeathAtPoint: (point) => {
      deaths.set(point, (deaths.get(point) ?? 0) + 1);
      sayAt(`${deathAtPoint}: ${point}`);
    },
    say: sayAt,
  });
  scope.teardown(() => replicas.close());
  await replicas.start();
  const client = new TestClient(replicas.urls[0]!);
  await client.putUpstream(upstreamName, upstream.url, {
    // Each kill costs the calls in flight one of these, and nobody shall run out of them.
    retry: { max_attempts: 100, base_ms: 200, cap_ms: 2000, max_throttles: 1000 },
  });
  await client.putRateLimit(upstreamName, { limit, per: periodSeconds, slack_ms: slackMs, upstreams: [upstreamName] });
  return { postgres, proxy, upstream, replicas };
}

/**
 * Durable, as in production. A connection that fell silent keeps its backend until somebody ends it. Who waits for a lock for
 * long, and in which statement, is logged, so that a deadlock can be understood from both sides.
 */
const postgresSettings = { fsync: 'on', full_page_writes: 'on', max_connections: '400', log_lock_waits: 'on' };

/**
 * The upstream has bad days too: failures, answers that are lost after the effect, slow answers. A 429 stops the whole fleet,
 * so there are only some in a run.
 */
function faultsOf(items: number): FaultMix {
  const throttles = 8;
  return { throttled: Math.min(0.02, throttles / items), failed: 0.02, cut: 0.02, slow: 0.1, slowMs: [50, 1_000] };
}

/** Asks the database itself: a replica's answer may be late for reasons of its own. */
async function untilEnded(databaseUrl: string, signal: AbortSignal): Promise<void> {
  const client = new pg.Client({ connectionString: databaseUrl, application_name: 'chaos' });
  client.on('error', () => undefined);
  await client.connect();
  try {
    while (!signal.aborted) {
      const { rows } = await client.query<{ left: number }>(
        'select (select count(*) from sluice.jobs)::int - (select count(*) from sluice.done_jobs)::int as left',
      );
      if (rows[0]!.left === 0) return;
      await clock.sleep(200, signal);
    }
  } finally {
    await client.end();
  }
}

async function showProgress(options: {
  readonly submitter: Submitter;
  readonly upstream: UpstreamProcess;
  readonly replicas: Replicas;
  readonly items: number;
  readonly say: (text: string) => void;
  readonly signal: AbortSignal;
}): Promise<void> {
  const { submitter, upstream, replicas, items, say, signal } = options;
  for (;;) {
    await clock.sleep(progressMs, signal);
    if (signal.aborted) return;
    const calls = await upstream.count();
    say(`accepted ${submitter.accepted} of ${items}, ${calls} calls at the upstream, ${replicas.up} replicas up`);
  }
}

/** The built one starts the built program. */
async function builtStartReplica(): Promise<StartReplica> {
  const built = fileURLToPath(new URL('../../../dist/cli/demo/replica.js', import.meta.url));
  const module = (await import(built)) as typeof import('../../../src/cli/demo/replica.ts');
  return module.startReplica;
}
