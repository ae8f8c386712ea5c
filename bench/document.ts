/**
 * `npm run bench:doc`: puts the figures of the last `npm run bench` and `npm run bench:soak` into docs/benchmarks.md, each
 * table between its markers, and the picture of the soak beside it. A part that was not run keeps the table that is there.
 * Refuses figures of `--quick` runs, which say nothing (`--rehearse` prints the page with them instead of writing it).
 */
import { copyFile, readFile, writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { type BenchParts, type BenchResults, type Section, sectionsOf } from './report.ts';
import { type SoakResults, soakSection } from './report-soak.ts';
import { machineInWords, resultPath } from './results.ts';

const { values } = parseArgs({ options: { rehearse: { type: 'boolean', default: false } } });
const page = fileURLToPath(new URL('../docs/benchmarks.md', import.meta.url));
const picture = fileURLToPath(new URL('../docs/benchmarks-soak.svg', import.meta.url));
const shortestSoakSeconds = 600;
const parts: ReadonlyArray<keyof BenchParts> = [
  'floors',
  'intake',
  'drain',
  'latency',
  'replicas',
  'costs',
  'footprint',
  'backlog',
  'peers',
];

const blocks = new Map<string, string>();
const bench = await read<BenchResults>('bench.json');
if (bench !== null && worthIt('npm run bench', !bench.quick && bench.runs >= 3)) {
  blocks.set('machine', provenance(bench, `medians of ${bench.runs}, least to most in brackets`));
  for (const part of parts) for (const section of sectionsOf(part, bench)) blocks.set(section.name, markdown(section));
}
const soak = await read<SoakResults>('soak.json');
if (soak !== null && worthIt('npm run bench:soak', soak.seconds >= shortestSoakSeconds)) {
  const shown = '![Rate, latency, dead rows and memory over time](benchmarks-soak.svg)';
  blocks.set('soak', [provenance(soak, ''), markdown(soakSection(soak)), shown].join('\n\n'));
  if (!values.rehearse) await copyFile(resultPath('soak.svg'), picture);
}

const before = await readFile(page, 'utf8');
const missing = [...blocks.keys()].filter((name) => !before.includes(`<!-- bench:${name} -->`));
if (missing.length > 0) throw new Error(`docs/benchmarks.md has no place for ${missing.join(', ')}`);
const after = before.replace(
  /(<!-- bench:([a-z-]+) -->\n)[\s\S]*?(<!-- bench:end -->)/g,
  (whole, start: string, name: string, end: string) => {
    const block = blocks.get(name);
    return block === undefined ? whole : `${start}${block}\n${end}`;
  },
);
if (values.rehearse) console.log(after);
else await writeFile(page, after);
console.error(`${blocks.size} tables: ${[...blocks.keys()].join(', ')}`);

async function read<T>(name: string): Promise<T | null> {
  const text = await readFile(resultPath(name), 'utf8').catch(() => null);
  return text === null ? null : (JSON.parse(text) as T);
}

function worthIt(command: string, full: boolean): boolean {
  if (full || values.rehearse) return true;
  console.error(`left out: the last ${command} was a short one`);
  return false;
}

function provenance({ at, machine, loadAtEnd }: BenchResults | SoakResults, how: string): string {
  const { commit, memoryGb } = machine;
  return [
    `Measured ${at.slice(0, 10)}${commit === null ? '' : ` at commit ${commit}`}`,
    machineInWords(machine),
    `${memoryGb} GB`,
    `load at the end ${loadAtEnd}`,
    ...(how === '' ? [] : [how]),
  ].join('; ');
}

function markdown({ title, header, rows, notes = [] }: Section): string {
  const line = (cells: readonly string[]) => `| ${cells.map((cell) => cell.replace(/ {2,}/g, ' ')).join(' | ')} |`;
  const lines = [`${title}:`, '', line(header), line(header.map(() => '---')), ...rows.map((row) => line(row))];
  return [...lines, ...notes.flatMap((note) => ['', note])].join('\n');
}
