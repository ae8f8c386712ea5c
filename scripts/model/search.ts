/**
 * One search of the model by spin: generated, compiled and run in a folder of its own, and what came of it. Knows spin's ways
 * of telling; what a result means for whoever asked is not decided here.
 */
import { spawn } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { liveness, modelFile, readModel, ruleOf } from './source.ts';

/** What the preprocessor is told: `-DFAULTS=2`. */
export type Defines = Readonly<Record<string, number>>;

/** Longer than any path of the model; a search that meets it says so, and is a surprise. */
const depth = 100_000;

export interface Search {
  readonly states: number;
  readonly depth: number;
  readonly seconds: number;
  /** The promise that was found broken; null: none. */
  readonly broken: string | null;
  /** Steps of the model that no path took, as `stepOf` names them. */
  readonly unreached: ReadonlySet<string>;
  readonly directory: string;
}

interface SearchOptions {
  readonly defines: Defines;
  readonly seek: 'promises' | 'liveness';
  /** Breadth first: slower, and the counterexample is a shortest one. */
  readonly shortest?: boolean;
}

const model = readModel();
const root = mkdtempSync(join(tmpdir(), 'sluice-model-'));

async function run(directory: string, command: string, args: readonly string[]): Promise<string> {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { cwd: directory, stdio: ['ignore', 'pipe', 'pipe'] });
    let output = '';
    child.stdout.on('data', (bytes: Buffer) => (output += bytes));
    child.stderr.on('data', (bytes: Buffer) => (output += bytes));
    child.on('error', reject);
    child.on('close', () => resolve(output));
  });
}

function flags(defines: Defines): string[] {
  return Object.entries(defines).map(([name, value]) => `-D${name}=${value}`);
}

/** `name` is the search's own: its folder is called so. */
export async function search(name: string, { defines, seek, shortest = false }: SearchOptions): Promise<Search> {
  const directory = join(root, name);
  mkdirSync(directory);
  copyFileSync(modelFile, join(directory, 'job.pml'));
  const generated = await run(directory, 'spin', ['-a', ...flags(defines), 'job.pml']);
  if (/error/i.test(generated)) throw new Error(`spin does not take the model:\n${generated}`);
  const small = 'BROKEN' in defines;
  const mode = seek === 'promises' ? ['-DSAFETY', '-DNOCLAIM'] : [];
  const compiled = await run(directory, 'cc', [
    small ? '-O0' : '-O2', // a variant is found before a better search would have been compiled
    '-w',
    ...mode,
    ...(shortest && seek === 'promises' ? ['-DBFS'] : []),
    ...['-o', 'pan', 'pan.c'],
  ]);
  if (/error/i.test(compiled)) throw new Error(`the search does not compile:\n${compiled}`);
  const started = performance.now();
  const output = await run(directory, './pan', [`-m${depth}`, ...(seek === 'liveness' ? ['-a', '-A'] : [])]);
  const seconds = (performance.now() - started) / 1000;
  return {
    states: numberIn(output, /(\d+) states, stored/) ?? Number.NaN,
    depth: numberIn(output, /depth reached (\d+)/) ?? Number.NaN,
    seconds,
    broken: await whatFell(directory, defines, output),
    unreached: unreachedIn(output),
    directory,
  };
}

function numberIn(text: string, pattern: RegExp): number | null {
  const found = pattern.exec(text)?.[1];
  return found === undefined ? null : Number(found);
}

/** By the line of the assertion, as the replay of the trail tells it. */
async function whatFell(directory: string, defines: Defines, output: string): Promise<string | null> {
  if (/acceptance cycle/.test(output)) return liveness;
  if (/assertion violated/.test(output)) {
    const replay = await run(directory, 'spin', ['-t', ...flags(defines), 'job.pml']);
    const line = [...replay.matchAll(/job\.pml:(\d+), Error: assertion violated/g)].at(-1)?.[1];
    return ruleOf(model.lines[Number(line) - 1] ?? '') ?? `an assertion in line ${line}`;
  }
  if (!/errors: 0/.test(output) || /search depth too small|Search not completed|out of memory/.test(output)) {
    return `no end: ${output.trim().split('\n').slice(0, 3).join(' / ')}`;
  }
  return null;
}

function stepOf(process: string, state: number | string): string {
  return `${process} ${state}`;
}

function unreachedIn(output: string): Set<string> {
  const steps = new Set<string>();
  let process = '';
  for (const line of output.split('\n')) {
    process = /unreached in (?:proctype )?(.*)/.exec(line)?.[1] ?? process;
    const state = /job\.pml:\d+, state (\d+)/.exec(line)?.[1];
    if (state !== undefined) steps.add(stepOf(process, state));
  }
  return steps;
}

/** The steps of each line of the model: one for every place where an inline is used. Read from what spin generated. */
function stepsByLine(directory: string): Map<number, string[]> {
  const [code, table, head] = ['pan.c', 'pan.t', 'pan.h'].map((file) => readFileSync(join(directory, file), 'utf8'));
  const numbers = (name: string): number[] =>
    (new RegExp(`^\\w+ ${name} \\[\\] = \\{([^}]*)\\}`, 'm').exec(code!)?.[1] ?? '').split(',').map(Number);
  const steps = new Map<number, string[]>();
  for (const [, process, name] of head!.matchAll(/#define _nstates(\d+)\s+\d+\s*\/\* ([\w:]+) \*\//g)) {
    const lines = numbers(`src_ln${process}`);
    const merged = new Set(
      [...table!.matchAll(new RegExp(`reached${process}\\[(\\d+)\\] = 1`, 'g'))].map((m) => Number(m[1])),
    );
    const counted = numbers(`reached${process}`);
    lines.forEach((line, state) => {
      if (state === 0 || counted[state] !== 0 || merged.has(state)) return;
      steps.set(line, [...(steps.get(line) ?? []), stepOf(name === ':init:' ? 'init' : name!, state)]);
    });
  }
  return steps;
}

/** The steps of a counterexample that a search has found: process, line and text of the model. */
export async function stepsOf({ directory }: Search, defines: Defines): Promise<string[]> {
  const replay = await run(directory, 'spin', ['-t', '-p', ...flags(defines), 'job.pml']);
  return [...replay.matchAll(/proc +(\d+) \((\w+)[^)]*\) job\.pml:(\d+)/g)]
    .map(([, process, name, line]) => {
      const text = model.lines[Number(line) - 1]!.trim();
      return text === 'do' ? '' : `${`${process} ${name}`.padEnd(12)} ${line!.padStart(4)}  ${text}`;
    })
    .filter((step, i, steps) => step !== '' && step !== steps[i - 1]);
}

/** Lines that no set-up reaches, but for those that only a broken variant takes and the ends of processes that have none. */
export function neverReached(searches: readonly Search[]): number[] {
  return [...stepsByLine(searches[0]!.directory)]
    .filter(([line, steps]) => {
      const text = model.lines[line - 1] ?? '';
      if (text === '}' || /broken\(/.test(text)) return false;
      return steps.every((step) => searches.every(({ unreached }) => unreached.has(step)));
    })
    .map(([line]) => line);
}

/** Of what a search needs, what this machine does not have. */
export async function missingTools(): Promise<string[]> {
  const missing: string[] = [];
  for (const [tool, flag] of [
    ['spin', '-V'],
    ['cc', '--version'],
  ] as const) {
    await run(root, tool, [flag]).catch(() => missing.push(tool));
  }
  return missing;
}

export function discardSearches(): void {
  rmSync(root, { recursive: true, force: true });
}
