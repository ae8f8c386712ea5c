/**
 * `npm run bench`: how fast the service takes items in and gets jobs done, beside what the machine could do at best. One
 * command, one run, medians of three, a table and JSON. `--quick`: fewer jobs. `--only floors,intake,drain,latency`: parts
 * of it. `--jobs`, `--slots`: of the drain; `--batch`: items of a batch; `--profile FOLDER`: the service writes its CPU profile there.
 */
import { resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { table } from '../src/cli/demo/table.ts';
import { inWords, type Spread, spreadInWords } from './figures.ts';
import { type DrainFigures, measureDrain } from './measure-drain.ts';
import { type FloorFigures, measureFloors } from './measure-floors.ts';
import { type IntakeFigures, measureIntake } from './measure-intake.ts';
import { type LatencyFigures, measureLatency } from './measure-latency.ts';
import { describeMachine, load, machineInWords, writeResults } from './results.ts';
import { onStage } from './stage.ts';

const { values } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    only: { type: 'string', default: 'floors,intake,drain,latency' },
    jobs: { type: 'string' },
    slots: { type: 'string', default: '64' },
    batch: { type: 'string', default: '1000' },
    runs: { type: 'string', default: '3' },
    profile: { type: 'string' },
  },
});
const parts = new Set(values.only.split(','));
const runs = Number(values.runs);
const slots = Number(values.slots);
const jobs = Number(values.jobs ?? (values.quick ? 5_000 : 20_000));
const nodeFlags = values.profile === undefined ? [] : ['--cpu-prof', `--cpu-prof-dir=${resolve(values.profile)}`];
const longestMinutes = 10;

await onStage(longestMinutes, async (stage) => {
  const { database } = await stage.createDatabase('machine');
  const machine = await describeMachine(database);
  console.log(`${machineInWords(machine)}\n`);
  const floors = parts.has('floors') ? await measureFloors(stage, { slots, calls: jobs, runs }) : null;
  if (floors !== null) showFloors(floors);
  const intake = parts.has('intake')
    ? await measureIntake(stage, { count: jobs, runs, batchSize: Number(values.batch) })
    : null;
  if (intake !== null) showIntake(intake);
  const drain = parts.has('drain') ? await measureDrain(stage, { slots, jobs, runs, nodeFlags }) : null;
  if (drain !== null) showDrain(drain, floors);
  const latency = parts.has('latency') ? await measureLatency(stage, values.quick ? 100 : 500) : null;
  if (latency !== null) showLatency(latency);
  const path = await writeResults('bench', { machine, loadAtEnd: load(), floors, intake, drain, latency });
  console.log(`\nload at the end ${load()}; all figures are in ${path}`);
});

function showFloors({ slots, undici, sender }: FloorFigures): void {
  show(`calls alone, ${slots} at a time: calls/s, median (least to most)`, [
    ['undici', spreadInWords(undici)],
    ['our sender', spreadInWords(sender), share(sender, undici, 'undici')],
  ]);
}

function showIntake({ batchSize, rates }: IntakeFigures): void {
  show(
    `intake, batches of ${inWords(batchSize)}: items/s`,
    rates.flatMap(({ inFlight, raw, http }) => [
      [`raw unnest insert of the same rows, ${inFlight} in flight`, spreadInWords(raw)],
      [`POST /v1/batches, ${inFlight} in flight`, spreadInWords(http), share(http, raw, 'the raw insert')],
    ]),
  );
}

function showDrain({ slots, jobs, free, windowed }: DrainFigures, floors: FloorFigures | null): void {
  show(`drain of ${inWords(jobs)} jobs through real calls, ${slots} slots, one replica`, [
    [
      'no limit: jobs/s',
      spreadInWords(free.rate),
      floors === null ? '' : share(free.rate, floors.undici, 'undici alone'),
    ],
    ['window far above: jobs/s', spreadInWords(windowed.rate), share(windowed.rate, free.rate, 'no limit')],
  ]);
  const both = (pick: (figures: DrainFigures['free']) => Spread) => [
    inWords(pick(free).median),
    inWords(pick(windowed).median),
  ];
  show('of these', [
    ['', 'no limit', 'window'],
    ['WAL bytes per job', ...both((figures) => figures.walBytesPerJob)],
    ['jobs per claim', ...both((figures) => figures.jobsPerClaim)],
    ['jobs per settle', ...both((figures) => figures.jobsPerSettle)],
    ...(['service', 'postgres', 'upstream'] as const).map((name) => [
      `CPU ms per 1,000 jobs: ${name}`,
      ...both((figures) => figures.cpuMsPer1000[name]),
    ]),
    ['processors busy with something else', ...both((figures) => figures.elsewhere)],
  ]);
}

function showLatency({ jobs, p50Ms, p99Ms, mostMs }: LatencyFigures): void {
  show(`POST to call on an idle service, ${jobs} jobs one by one: ms`, [
    ['p50', 'p99', 'most'],
    [p50Ms, p99Ms, mostMs].map(String),
  ]);
}

function share(part: Spread, whole: Spread, of: string): string {
  return `${(part.median / whole.median).toFixed(2)} of ${of}`;
}

function show(title: string, rows: ReadonlyArray<ReadonlyArray<string>>): void {
  console.log(`\n${title}\n${table(rows)}`);
}
