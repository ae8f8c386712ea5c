/**
 * `npm run bench:profile`: where the time of a job goes. A drain without a limit: the worker (a process of its own, so that
 * the intake is not in it) under Node's profiler, then once more without it and with PostgreSQL counting every statement,
 * those inside of functions too. Neither rate is the service's: measuring costs. `--jobs`, `--slots`; `--window`: under a
 * fleet window far above the speed.
 */
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { table } from '../src/cli/demo/table.ts';
import { type GroupedBy, readProfile, type TimeOfPart, timeBy } from './cpu-profile.ts';
import { inWords } from './figures.ts';
import { drainOnce } from './measure-drain.ts';
import { describeMachine, load, machineInWords, resultPath, writeResults } from './results.ts';
import { declareRateLimit, declareUpstream } from './service-client.ts';
import { onStage, type Stage } from './stage.ts';
import { countStatements, type StatementCost, statementCosts, statementLibrary } from './statement-costs.ts';

const { values } = parseArgs({
  options: {
    jobs: { type: 'string', default: '40000' },
    slots: { type: 'string', default: '64' },
    window: { type: 'boolean', default: false },
  },
});
const jobs = Number(values.jobs);
const warmUpJobs = 10_000;
const longestMinutes = 8;
/** Between two samples. */
const intervalUs = 500;
const shownParts = 28;
const shownFunctions = 40;
const shownStatements = 40;

await onStage(
  longestMinutes,
  async (stage) => {
    const { database } = await stage.createDatabase('machine');
    const machine = await describeMachine(database);
    console.log(machineInWords(machine));
    const profiled = await drain(stage, 'profiled', { profile: true, statements: false });
    const counted = await drain(stage, 'counted', { profile: false, statements: true });
    const path = await writeResults('profile', { machine, loadAtEnd: load(), jobs, profiled, counted });
    console.log(`\nload at the end ${load()}; all figures are in ${path}`);
  },
  { preload: statementLibrary },
);

async function drain(stage: Stage, name: string, { profile, statements }: { profile: boolean; statements: boolean }) {
  const target = await stage.createDatabase(name);
  const upstream = await stage.startUpstream();
  const folder = join(stage.folder, 'profile');
  await mkdir(folder, { recursive: true });
  const intake = await stage.startService(target, { env: { SLUICE_ROLES: 'api' } });
  const worker = await stage.startService(target, {
    env: { SLUICE_ROLES: 'worker', SLUICE_CONCURRENCY: values.slots },
    nodeFlags: profile ? ['--cpu-prof', `--cpu-prof-interval=${intervalUs}`, `--cpu-prof-dir=${folder}`] : [],
  });
  await declareUpstream(intake.url, 'api', upstream.url);
  if (values.window) {
    await declareRateLimit(intake.url, 'far-above', { limit: 1_000_000, per: 1, upstreams: ['api'] });
  }
  const drained = { target, service: intake.url, servicePid: worker.pid, upstream, name: 'api' };
  await drainOnce({ ...drained, label: 'warm', count: warmUpJobs });
  const count = statements ? { beforeStart: () => countStatements(target, { nested: true }) } : {};
  const run = await drainOnce({ ...drained, label: 'run', count: jobs, ...count });
  const costs = statements ? await statementCosts(target) : [];
  await worker.stop(20_000);
  await intake.stop();
  await upstream.close();

  const { rate, service, postgres, jobsPerClaim, jobsPerSettle } = run;
  console.log(
    `\n${name}: ${inWords(rate)} jobs/s, ${inWords(jobsPerClaim)} jobs a claim, ${inWords(jobsPerSettle)} a settle; ` +
      `CPU per job: worker ${inWords(service)} us, PostgreSQL ${inWords(postgres)} us`,
  );
  if (statements) showStatements(costs);
  if (!profile) return { run, costs };
  const read = await readProfile(folder, resultPath('worker.cpuprofile'));
  const times = (by: GroupedBy) => timeBy(by, read, { span: run.span, intervalUs });
  const parts = times('part');
  const sampled = parts.reduce((sum, { selfUs }) => sum + selfUs, 0) / jobs;
  console.log(`sampled ${inWords(sampled)} us a job`);
  showTimes('the worker, by file and package: us per job', parts.slice(0, shownParts));
  showTimes('by function', times('function').slice(0, shownFunctions));
  showTimes('by the function of ours on whose behalf', times('owner').slice(0, shownFunctions));
  return { run, parts, functions: times('function').slice(0, 200), owners: times('owner').slice(0, 200) };
}

function showTimes(title: string, times: readonly TimeOfPart[]): void {
  console.log(`\n${title}\n${table(times.map(({ name, selfUs }) => [(selfUs / jobs).toFixed(2), name]))}`);
}

function showStatements(costs: readonly StatementCost[]): void {
  const rows = costs
    .slice(0, shownStatements)
    .map((cost) => [
      ((cost.ms * 1000) / jobs).toFixed(2),
      ((cost.planMs * 1000) / jobs).toFixed(2),
      (cost.calls / jobs).toFixed(3),
      (cost.buffers / jobs).toFixed(2),
      inWords(cost.walBytes / jobs),
      cost.top ? 'sent' : 'inside',
      cost.text,
    ]);
  console.log(
    `\nPostgreSQL, per job\n${table([['us', 'planning', 'calls', 'buffers', 'WAL bytes', '', ''], ...rows])}`,
  );
}
