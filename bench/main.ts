/**
 * `npm run bench`: how fast the service takes items in and gets jobs done, what that costs, and how other job queues do the
 * same work, beside what the machine could do at best. One command, one run, medians of three, tables and JSON;
 * `npm run bench:doc` puts the tables into docs/benchmarks.md. `--quick`: fewer jobs, one run each. `--only floors,drain`:
 * parts of it (their names: `parts` below). `--jobs`, `--slots`: of the drain; `--runs`; `--batch`: items of a batch;
 * `--profile FOLDER`: the drained service writes its CPU profile there.
 */
import { resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { table } from '../src/cli/demo/table.ts';
import { measureBacklog } from './measure-backlog.ts';
import { measureCosts } from './measure-costs.ts';
import { measureDrain } from './measure-drain.ts';
import { measureFloors } from './measure-floors.ts';
import { measureFootprint } from './measure-footprint.ts';
import { measureIntake } from './measure-intake.ts';
import { measureLatency } from './measure-latency.ts';
import { measurePeers } from './measure-peers.ts';
import { measureReplicas } from './measure-replicas.ts';
import { peersAreInstalled } from './peer-process.ts';
import { type BenchParts, type BenchResults, sectionsOf } from './report.ts';
import { describeMachine, load, machineInWords, writeResults } from './results.ts';
import { onStage, type Stage } from './stage.ts';
import { statementLibrary, stopCounting } from './statement-costs.ts';

const { values } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    only: { type: 'string' },
    jobs: { type: 'string' },
    slots: { type: 'string', default: '64' },
    batch: { type: 'string', default: '1000' },
    runs: { type: 'string' },
    profile: { type: 'string' },
  },
});
const { quick } = values;
const runs = Number(values.runs ?? (quick ? 1 : 3));
const slots = Number(values.slots);
const jobs = Number(values.jobs ?? (quick ? 5_000 : 50_000));
const nodeFlags = values.profile === undefined ? [] : ['--cpu-prof', `--cpu-prof-dir=${resolve(values.profile)}`];
const longestMinutes = 60;

type Measure = { readonly [Name in keyof BenchParts]: (stage: Stage) => Promise<BenchParts[Name]> };

/** In the order in which they run. */
const parts: Measure = {
  floors: (stage) => measureFloors(stage, { slots, calls: jobs, runs }),
  intake: (stage) => measureIntake(stage, { count: jobs, runs, batchSize: Number(values.batch) }),
  drain: (stage) => measureDrain(stage, { slots, jobs, runs, nodeFlags }),
  latency: (stage) => measureLatency(stage, quick ? 100 : 1_000),
  replicas: (stage) => measureReplicas(stage, { jobs, runs }),
  costs: (stage) => measureCosts(stage, { jobs }),
  footprint: (stage) => measureFootprint(stage, { jobs }),
  backlog: (stage) =>
    measureBacklog(stage, {
      jobs: quick ? jobs : 20_000,
      runs,
      latencyJobs: quick ? 50 : 300,
      few: 1_000,
      many: quick ? 100_000 : 1_000_000,
    }),
  peers: (stage) => measurePeers(stage, { jobs, runs, latencyJobs: quick ? 20 : 300 }),
};
const names = Object.keys(parts) as Array<keyof BenchParts>;
const installHint = 'the peers are not installed: npm ci --ignore-scripts --prefix bench/peers';

await onStage(
  longestMinutes,
  async (stage) => {
    const { database } = await stage.createEmptyDatabase('machine');
    const machine = await describeMachine(database);
    await stopCounting({ database });
    console.log(machineInWords(machine));
    let results: BenchResults = { at: new Date().toISOString(), machine, loadAtEnd: 0, quick, runs };
    for (const name of await chosen()) {
      results = { ...results, [name]: await parts[name](stage) };
      show(name, results);
      // Written after each part: what is done is not lost if a later one fails.
      await writeResults('bench', { ...results, loadAtEnd: load() });
    }
    const path = await writeResults('bench', { ...results, loadAtEnd: load() });
    console.log(`\nload at the end ${load()}; all figures are in ${path}`);
  },
  { preload: statementLibrary },
);

async function chosen(): Promise<Array<keyof BenchParts>> {
  const installed = await peersAreInstalled();
  if (values.only === undefined) {
    if (!installed) console.log(installHint);
    return names.filter((name) => name !== 'peers' || installed);
  }
  const wanted = values.only.split(',');
  const unknown = wanted.filter((name) => !names.includes(name as keyof BenchParts));
  if (unknown.length > 0) throw new Error(`no part is called ${unknown.join(' or ')}; there are ${names.join(', ')}`);
  if (wanted.includes('peers') && !installed) throw new Error(installHint);
  return names.filter((name) => wanted.includes(name));
}

function show(part: keyof BenchParts, results: BenchResults): void {
  for (const { title, header, rows, notes = [] } of sectionsOf(part, results)) {
    console.log(`\n${title}\n${table([header, ...rows])}`);
    for (const note of notes) console.log(`  ${note}`);
  }
}
