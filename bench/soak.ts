/**
 * `npm run bench:soak`: 10 minutes (`--minutes`) at half of the capacity and at all of it, each without a limit and with a
 * fleet window over the lane, with a transaction left open the whole time. Shows rate, latency, dead rows and the worker's
 * memory over time, and the last minute's rate beside the first's. `--only half,half-window,capacity,capacity-window`: some
 * of them (what is there of the others, of the same commit and length, is kept), or those that come by name only: `free`, the
 * last of these with nothing left open, and `lanes`, with ten lanes.
 * `--quick`: 20 seconds each. Leaves soak.json, soak.csv and soak.svg in bench/results; `npm run bench:doc` puts the table and
 * the picture into docs/benchmarks.md.
 */
import { readFile, writeFile } from 'node:fs/promises';
import { parseArgs } from 'node:util';
import { table } from '../src/cli/demo/table.ts';
import { inWords } from './figures.ts';
import { measureCapacity, type SoakCase, type SoakRun, type SoakSample, soak } from './measure-soak.ts';
import { type Panel, svgPlot, textPlot } from './plot.ts';
import { type SoakResults, soakSection } from './report-soak.ts';
import { describeMachine, load, machineInWords, resultPath, writeResults } from './results.ts';
import { onStage } from './stage.ts';

const { values } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    minutes: { type: 'string', default: '10' },
    only: { type: 'string', default: 'half,half-window,capacity,capacity-window' },
  },
});
const seconds = values.quick ? 20 : Math.round(Number(values.minutes) * 60);
const sampleSeconds = values.quick ? 2 : Math.min(10, seconds / 10);
const capacitySeconds = values.quick ? 5 : 20;
const names = ['half', 'half-window', 'capacity', 'capacity-window', 'free', 'lanes'];
const usual = { windowed: false, pinned: true, lanes: 1 };
const wanted = values.only.split(',');
const unknown = wanted.filter((name) => !names.includes(name));
if (unknown.length > 0) throw new Error(`no soak is called ${unknown.join(' or ')}; there are ${names.join(', ')}`);
const longestMinutes = 5 + Math.ceil((wanted.length * (seconds + 60)) / 60);

await onStage(longestMinutes, async (stage) => {
  const { database } = await stage.createEmptyDatabase('machine');
  const machine = await describeMachine(database);
  console.log(machineInWords(machine));
  const at = new Date().toISOString();
  const earlier = await runsOf(machine.commit);
  const capacity = earlier?.capacity ?? (await measureCapacity(stage, capacitySeconds));
  console.log(`\ncapacity, taken in and worked off at once: ${inWords(capacity)} jobs/s`);
  const runs: SoakRun[] = [...(earlier?.runs ?? [])];
  const save = async () => {
    const results: SoakResults = { at, machine, loadAtEnd: load(), capacity, seconds, sampleSeconds, runs };
    await writeFile(resultPath('soak.svg'), svgPlot('Rate, latency, dead rows and memory over time', panels(runs)));
    await writeFile(resultPath('soak.csv'), csv(runs));
    return { results, path: await writeResults('soak', results) };
  };
  for (const [index, soakCase] of cases(capacity).entries()) {
    console.log(`\n${soakCase.name}\n`);
    const run = await soak(stage, index, soakCase, { seconds, sampleSeconds }, showSample);
    runs.push(run);
    showRun(run);
    await save();
  }
  const { results, path } = await save();
  const { title, header, rows } = soakSection(results);
  console.log(`\n${title}\n${table([header, ...rows])}`);
  console.log(`\nload at the end ${load()}; all figures are in ${path}, with soak.csv and soak.svg beside it`);
});

/** What is there of other cases, of the same length and commit: it is kept. */
async function runsOf(commit: string | null): Promise<Pick<SoakResults, 'capacity' | 'runs'> | null> {
  const text = await readFile(resultPath('soak.json'), 'utf8').catch(() => null);
  if (text === null) return null;
  const before = JSON.parse(text) as SoakResults;
  if (commit === null || before.machine.commit !== commit || before.seconds !== seconds) return null;
  const again = new Set(cases(before.capacity).map(({ name }) => name));
  const runs = before.runs.filter(({ name }) => !again.has(name));
  return runs.length === 0 ? null : { capacity: before.capacity, runs };
}

function cases(capacity: number): SoakCase[] {
  const all: Record<string, SoakCase> = {
    half: { name: 'half of the capacity, no limit', perSecond: capacity / 2, ...usual },
    'half-window': { name: 'half of the capacity, a fleet window', perSecond: capacity / 2, ...usual, windowed: true },
    capacity: { name: 'at capacity, no limit', perSecond: null, ...usual },
    'capacity-window': { name: 'at capacity, a fleet window', perSecond: null, ...usual, windowed: true },
    free: {
      name: 'at capacity, a fleet window, nothing left open',
      perSecond: null,
      ...usual,
      windowed: true,
      pinned: false,
    },
    lanes: { name: 'at capacity, a fleet window, ten lanes', perSecond: null, ...usual, windowed: true, lanes: 10 },
  };
  return wanted.map((name) => all[name]!);
}

function showSample({ second, callsPerSecond, p50Ms, p99Ms, waiting, deadRows, workerMb }: SoakSample): void {
  const latency = p50Ms === null || p99Ms === null ? 'no call' : `p50 ${inWords(p50Ms)} ms, p99 ${inWords(p99Ms)} ms`;
  console.log(
    `  ${String(second).padStart(4)} s  ${inWords(callsPerSecond)} calls/s  ${latency}  ${inWords(waiting)} waiting  ` +
      `${inWords(deadRows)} dead rows  ${inWords(workerMb)} MB`,
  );
}

function showRun({ name, samples }: SoakRun): void {
  const line = (pick: (sample: SoakSample) => number | null) => ({
    name,
    points: samples.map((sample) => [sample.second, pick(sample)] as const),
  });
  console.log(
    `\n${textPlot(
      'calls/s',
      line((sample) => sample.callsPerSecond),
    )}`,
  );
  console.log(
    `\n${textPlot(
      'dead rows',
      line((sample) => sample.deadRows),
    )}`,
  );
}

function panels(runs: readonly SoakRun[]): Panel[] {
  const panel = (title: string, pick: (sample: SoakSample) => number | null): Panel => ({
    title,
    lines: runs.map(({ name, samples }) => ({
      name,
      points: samples.map((sample) => [sample.second, pick(sample)] as const),
    })),
  });
  return [
    panel('calls per second', (sample) => sample.callsPerSecond),
    panel('POST to call, p50, ms', (sample) => sample.p50Ms),
    panel('POST to call, p99, ms', (sample) => sample.p99Ms),
    panel('dead rows that cannot go', (sample) => sample.deadRows),
    panel('memory of the worker, MB', (sample) => sample.workerMb),
  ];
}

function csv(runs: readonly SoakRun[]): string {
  const columns = [
    'second',
    'callsPerSecond',
    'p50Ms',
    'p99Ms',
    'waiting',
    'deadRows',
    'workerMb',
    'walMbPerSecond',
    'upstreamUs',
  ] as const;
  const lines = runs.flatMap(({ name, samples }) =>
    samples.map((sample) => [`"${name}"`, ...columns.map((column) => sample[column] ?? '')].join(',')),
  );
  return `${[['run', ...columns].join(','), ...lines].join('\n')}\n`;
}
