/**
 * `npm run model`: has spin search the model of a job's life (`docs/model/job.pml`) in every set-up for every promise, then
 * searches its broken variants, each of which must be found at the promise that it breaks. Prints what was searched and the
 * verdicts; ends with 1 on any surprise, a search that did not reach its end among them.
 * `npm run model -- --show VARIANT` prints the steps of a shortest counterexample.
 */
import { spawn } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { liveness, modelFile, readModel, ruleOf, type Variant } from './model-source.ts';

type Defines = Readonly<Record<string, number>>;

interface SetUp {
  readonly name: string;
  readonly what: string;
  readonly defines: Defines;
}

/** Together they reach every step of the model; apart they stay small enough to be searched to the end. */
const setUps: readonly SetUp[] = [
  {
    name: 'window',
    what: 'a rate window, an upstream that knows keys; two faults, one bad answer',
    defines: { FAULTS: 2, TROUBLE: 1, ACTS: 0 },
  },
  {
    name: 'no-window',
    what: 'no rate window: nothing but the lease bounds a start; two faults, one bad answer',
    defines: { WINDOWED: 0, FAULTS: 2, TROUBLE: 1, ACTS: 0 },
  },
  {
    name: 'hold',
    what: 'an upstream that knows no keys, on_unknown hold; two faults, one bad answer, one act of a person',
    defines: { DEDUPS: 0, HOLD: 1, FAULTS: 2, TROUBLE: 1, ACTS: 1 },
  },
  {
    name: 'people',
    what: 'a cancel, a retry, a receipt or an expiry at any moment; one fault, two bad answers',
    defines: { FAULTS: 1, TROUBLE: 2, ACTS: 1 },
  },
  {
    name: 'bad-day',
    what: 'an upstream that may never answer well; one fault',
    defines: { FAULTS: 1, TROUBLE: 255, ACTS: 0 },
  },
];

/** Where a variant shows; the others do with a window and two faults. */
const variantDefines: Readonly<Record<string, Defines>> = {
  cooldown_for_ever: { FAULTS: 0, TROUBLE: 255 },
  throttles_free: { FAULTS: 0, TROUBLE: 255 },
  unknown_free: { FAULTS: 0, TROUBLE: 255 },
  reconcile_in_claim: { FAULTS: 0, WINDOWED: 0 },
  lease_not_checked: { WINDOWED: 0 },
  break_not_seen: { WINDOWED: 0 },
  reaped_alive: { WINDOWED: 0 },
  cooldown_unlocked: { WINDOWED: 0 },
  unknown_is_not_sent: { DEDUPS: 0, HOLD: 1 },
  unwritten_not_known: { DEDUPS: 0, HOLD: 1 },
  outcome_dropped: { DEDUPS: 0, HOLD: 1 },
  unknown_forgotten: { FAULTS: 0, TROUBLE: 3 },
};

/** Longer than any path of the model; a search that meets it says so, and is a surprise. */
const depth = 100_000;

interface Search {
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

async function search(name: string, { defines, seek, shortest = false }: SearchOptions): Promise<Search> {
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

/** As many at a time as there are processors, at most two: each may take some 500 MB. */
async function inTurn<T>(tasks: ReadonlyArray<() => Promise<T>>): Promise<T[]> {
  const results = new Array<T>(tasks.length);
  let next = 0;
  const worker = async (): Promise<void> => {
    while (next < tasks.length) {
      const mine = next++;
      results[mine] = await tasks[mine]!();
    }
  };
  await Promise.all(Array.from({ length: Math.min(2, availableParallelism()) }, worker));
  return results;
}

function print(rows: ReadonlyArray<readonly string[]>): void {
  const widths = rows[0]!.map((_, column) => Math.max(...rows.map((row) => row[column]!.length)));
  const numeric = widths.map((_, column) => rows.slice(1).every((row) => /^[\d.,]*$/.test(row[column]!)));
  for (const row of rows) {
    const cells = row.map((cell, i) => (numeric[i] ? cell.padStart(widths[i]!) : cell.padEnd(widths[i]!)));
    process.stdout.write(`${cells.join('  ').trimEnd()}\n`);
  }
  process.stdout.write('\n');
}

const count = (n: number): string => n.toLocaleString('en-US');
const setting = (name: string): string => setUps.find((setUp) => setUp.name === name)!.what;

async function searchModel(surprises: string[]): Promise<void> {
  const runs = setUps.flatMap(({ name, defines }) =>
    (['promises', 'liveness'] as const).map((seek) => ({ name, seek, defines })),
  );
  const searches = await inTurn(
    runs.map(({ name, seek, defines }) => async () => {
      const result = await search(`${name}-${seek}`, { defines, seek });
      process.stderr.write(`${name}, ${seek}: ${result.seconds.toFixed(1)} s\n`);
      return result;
    }),
  );
  const all = runs.map((each, i) => ({ ...each, ...searches[i]! }));
  print([
    ['set-up', 'searched for', 'states', 'depth', 'seconds', 'found broken'],
    ...all.map(({ name, seek, states, depth, seconds, broken }) => [
      name,
      seek === 'promises' ? 'all promises but the last' : liveness,
      count(states),
      count(depth),
      seconds.toFixed(1),
      broken ?? 'none',
    ]),
  ]);
  for (const { name } of setUps) process.stdout.write(`${name}: ${setting(name)}\n`);
  process.stdout.write('\n');
  for (const { name, broken } of all) if (broken !== null) surprises.push(`${name}: ${broken}`);

  print([
    ['promise', 'verdict', 'set-ups', 'states'],
    ...model.rules.map((rule) => {
      const searched = all.filter(({ seek }) => (seek === 'liveness') === (rule === liveness));
      const fell = searched.filter(({ broken }) => broken === rule);
      const ended = searched.every(({ broken }) => broken === null);
      const verdict =
        fell.length > 0 ? `BROKEN in ${fell.map(({ name }) => name).join(', ')}` : ended ? 'holds' : 'OPEN';
      return [rule, verdict, String(searched.length), count(searched.reduce((sum, { states }) => sum + states, 0))];
    }),
  ]);

  const never = neverReached(all.filter(({ seek }) => seek === 'promises'));
  if (never.length > 0) surprises.push(`no path takes these lines of the model: ${never.join(', ')}`);
}

/** Lines that no set-up reaches, but for those that only a broken variant takes and the ends of processes that have none. */
function neverReached(searches: readonly Search[]): number[] {
  return [...stepsByLine(searches[0]!.directory)]
    .filter(([line, steps]) => {
      const text = model.lines[line - 1] ?? '';
      if (text === '}' || /broken\(/.test(text)) return false;
      return steps.every((step) => searches.every(({ unreached }) => unreached.has(step)));
    })
    .map(([line]) => line);
}

function definesOf({ name, number }: Variant): Defines {
  return { FAULTS: 2, TROUBLE: 1, ACTS: 0, ...variantDefines[name], BROKEN: number };
}

async function searchVariants(surprises: string[]): Promise<void> {
  const searches = await inTurn(
    model.variants.map((variant) => () => {
      const seek = variant.rule === liveness ? 'liveness' : 'promises';
      return search(variant.name, { defines: definesOf(variant), seek });
    }),
  );
  print([
    ['broken variant', 'must break', 'broken', 'states', 'what is broken'],
    ...model.variants.map(({ name, rule, what }, i) => {
      const { broken, states } = searches[i]!;
      if (broken !== rule) surprises.push(`${name}: ${rule} should be broken, found: ${broken ?? 'nothing'}`);
      return [name, rule, broken === rule ? 'found' : (broken ?? 'NOT FOUND'), count(states), what];
    }),
  ]);
}

/** The steps of a counterexample, as lines of the model. */
async function show(name: string): Promise<void> {
  const variant = model.variants.find((each) => each.name === name);
  if (variant === undefined) {
    throw new Error(`there is no variant ${name}; there are ${model.variants.map((each) => each.name).join(', ')}`);
  }
  const seek = variant.rule === liveness ? 'liveness' : 'promises';
  const { broken, directory } = await search(name, { defines: definesOf(variant), seek, shortest: true });
  const replay = await run(directory, 'spin', ['-t', '-p', ...flags(definesOf(variant)), 'job.pml']);
  let last = '';
  for (const [, who, line] of replay.matchAll(/proc +(\d+ \(\w+)[^)]*\) job\.pml:(\d+)/g)) {
    const step = `${`${who!.replace(' (', ' ')}`.padEnd(12)} ${line!.padStart(4)}  ${model.lines[Number(line) - 1]!.trim()}`;
    if (step !== last && !step.endsWith('  do')) process.stdout.write(`${step}\n`);
    last = step;
  }
  process.stdout.write(`\n${variant.name}: ${variant.what}; breaks ${broken ?? 'nothing'}\n`);
}

async function installed(): Promise<boolean> {
  const missing: string[] = [];
  for (const [tool, flag] of [
    ['spin', '-V'],
    ['cc', '--version'],
  ] as const) {
    await run(root, tool, [flag]).catch(() => missing.push(tool));
  }
  if (missing.length === 0) return true;
  process.stderr.write(
    `npm run model needs ${missing.join(' and ')}, which this machine does not have.\n` +
      'Debian and Ubuntu: apt-get install spin gcc. macOS: brew install spin, and the command line tools for cc.\n',
  );
  return false;
}

const surprises: string[] = [];
try {
  const shown = process.argv.indexOf('--show');
  if (!(await installed())) {
    process.exitCode = 1;
  } else if (shown > 0) {
    await show(process.argv[shown + 1] ?? '');
  } else {
    const started = performance.now();
    await searchModel(surprises);
    await searchVariants(surprises);
    const seconds = ((performance.now() - started) / 1000).toFixed(0);
    for (const surprise of surprises) process.stdout.write(`SURPRISE: ${surprise}\n`);
    process.stdout.write(
      surprises.length > 0
        ? `the model and its promises do not agree (${seconds} s)\n`
        : `every promise holds and every broken variant is found (${seconds} s)\n`,
    );
    if (surprises.length > 0) process.exitCode = 1;
  }
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = 1;
} finally {
  rmSync(root, { recursive: true, force: true });
}
