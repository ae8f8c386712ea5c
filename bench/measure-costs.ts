/**
 * What a job costs the database, from its intake to its end: statements that are sent, pages, bytes of WAL, and rows that are
 * left dead. Intake and work are done by two processes, one after the other, so that each has its own bill; the dead rows
 * are counted once both have ended, since only then has everybody told what they did.
 */
import { systemClock as clock } from '../src/system/clock.ts';
import { batches } from './calls-to-make.ts';
import { postAll } from './measure-intake.ts';
import { declareRateLimit, declareUpstream, setPaused } from './service-client.ts';
import type { BenchDatabase, Stage } from './stage.ts';
import { countStatements, type StatementCost, statementCosts, stopCounting } from './statement-costs.ts';

export interface CostFigures {
  readonly jobs: number;
  readonly batchSize: number;
  readonly cases: readonly CostCase[];
}

export interface CostCase {
  readonly name: string;
  readonly intake: Bill;
  readonly work: Bill;
  /** Rows that were deleted or replaced, of intake and work together. */
  readonly deadRowsPerJob: number;
  /** By table, most first. */
  readonly deadRowsByTable: ReadonlyArray<readonly [table: string, perJob: number]>;
  /** Of the updated rows, the share that needed no new index entry; null: there were none. */
  readonly hotShare: number | null;
}

/** All per job. */
export interface Bill {
  readonly statements: number;
  readonly buffers: number;
  readonly walBytes: number;
}

const slots = 64;
const batchSize = 1_000;
const warmUpJobs = 5_000;
const pollMs = 20;

export async function measureCosts(stage: Stage, { jobs }: { jobs: number }): Promise<CostFigures> {
  return {
    jobs,
    batchSize,
    cases: [
      await measureCase(stage, 'no limit', jobs, {}),
      await measureCase(stage, 'a fleet window', jobs, {
        'far-above': { limit: 1_000_000, per: 1, upstreams: ['api'] },
      }),
    ],
  };
}

async function measureCase(
  stage: Stage,
  name: string,
  jobs: number,
  limits: Readonly<Record<string, object>>,
): Promise<CostCase> {
  const target = await stage.createDatabase(`costs_${Object.keys(limits).length}`);
  const upstream = await stage.startUpstream();
  const intake = await stage.startService(target, { env: { SLUICE_ROLES: 'api' } });
  const worker = await stage.startService(target, {
    env: { SLUICE_ROLES: 'worker', SLUICE_CONCURRENCY: String(slots) },
  });
  await declareUpstream(intake.url, 'api', upstream.url);
  for (const [limit, definition] of Object.entries(limits)) await declareRateLimit(intake.url, limit, definition);
  const take = (label: string, count: number) =>
    postAll(intake.url, batches('api', label, count, { size: batchSize }), 1);
  const work = async (total: number) => {
    await setPaused(intake.url, 'api', false);
    while ((await doneJobs(target)) < total) await clock.sleep(pollMs);
  };
  await setPaused(intake.url, 'api', true);
  await take('warm', warmUpJobs);
  await work(warmUpJobs);
  await setPaused(intake.url, 'api', true);
  const intakeBill = await bill(target, jobs, () => take('run', jobs));
  const workBill = await bill(target, jobs, () => work(warmUpJobs + jobs));
  await worker.stop();
  await intake.stop();
  await upstream.close();
  return { name, intake: intakeBill, work: workBill, ...(await deadRows(target, warmUpJobs + jobs)) };
}

async function bill(target: BenchDatabase, jobs: number, work: () => Promise<void>): Promise<Bill> {
  await countStatements(target);
  const walBefore = await walPosition(target);
  await work();
  const wal = (await walPosition(target)) - walBefore;
  const costs = await statementCosts(target);
  await stopCounting(target);
  const sum = (pick: (cost: StatementCost) => number) => costs.reduce((all, cost) => all + pick(cost), 0) / jobs;
  return { statements: sum((cost) => cost.calls), buffers: sum((cost) => cost.buffers), walBytes: wal / jobs };
}

async function doneJobs({ database }: BenchDatabase): Promise<number> {
  const [row] = await database.query<{ count: number }>(
    '/* bench: */ select count(*)::int as count from sluice.done_jobs',
  );
  return row!.count;
}

async function walPosition({ database }: BenchDatabase): Promise<number> {
  const [row] = await database.query<{ bytes: number }>(
    `/* bench: */ select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8 as bytes`,
  );
  return row!.bytes;
}

async function deadRows(
  { database }: BenchDatabase,
  jobs: number,
): Promise<Pick<CostCase, 'deadRowsPerJob' | 'deadRowsByTable' | 'hotShare'>> {
  const rows = await database.query<{ name: string; dead: number; updated: number; hot: number }>(
    `select relname as name, (n_tup_upd + n_tup_del)::float8 as dead, n_tup_upd::float8 as updated, n_tup_hot_upd::float8 as hot
       from pg_stat_user_tables where schemaname = 'sluice' order by 2 desc`,
  );
  const sum = (pick: (row: (typeof rows)[number]) => number) => rows.reduce((all, row) => all + pick(row), 0);
  const updated = sum((row) => row.updated);
  return {
    deadRowsPerJob: sum((row) => row.dead) / jobs,
    deadRowsByTable: rows.map(({ name, dead }) => [name, dead / jobs] as const).filter(([, dead]) => dead >= 0.005),
    hotShare: updated === 0 ? null : sum((row) => row.hot) / updated,
  };
}
