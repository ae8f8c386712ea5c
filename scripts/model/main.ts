/**
 * `npm run model`: has spin search the model of a job's life (`docs/model/job.pml`) in every set-up for every promise, then
 * searches its broken variants, each of which must be found at the promise that it breaks. Prints what was searched and the
 * verdicts; ends with 1 on any surprise, a search that did not reach its end among them.
 * `npm run model -- --show VARIANT` prints the steps of a shortest counterexample.
 */
import { availableParallelism } from 'node:os';
import { type Defines, discardSearches, missingTools, neverReached, search, stepsOf } from './search.ts';
import { liveness, readModel, type Variant } from './source.ts';

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

const model = readModel();

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

function definesOf({ name, number }: Variant): Defines {
  return { FAULTS: 2, TROUBLE: 1, ACTS: 0, ...variantDefines[name], BROKEN: number };
}

function soughtBy({ rule }: Variant): 'promises' | 'liveness' {
  return rule === liveness ? 'liveness' : 'promises';
}

async function searchVariants(surprises: string[]): Promise<void> {
  const searches = await inTurn(
    model.variants.map(
      (variant) => () => search(variant.name, { defines: definesOf(variant), seek: soughtBy(variant) }),
    ),
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

async function show(name: string): Promise<void> {
  const variant = model.variants.find((each) => each.name === name);
  if (variant === undefined) {
    throw new Error(`there is no variant ${name}; there are ${model.variants.map((each) => each.name).join(', ')}`);
  }
  const found = await search(name, { defines: definesOf(variant), seek: soughtBy(variant), shortest: true });
  for (const step of await stepsOf(found, definesOf(variant))) process.stdout.write(`${step}\n`);
  process.stdout.write(`\n${variant.name}: ${variant.what}; breaks ${found.broken ?? 'nothing'}\n`);
}

/** Gives what is not as it should be. */
async function searchAll(): Promise<string[]> {
  const surprises: string[] = [];
  await searchModel(surprises);
  await searchVariants(surprises);
  return surprises;
}

try {
  const missing = await missingTools();
  if (missing.length > 0) {
    throw new Error(
      `npm run model needs ${missing.join(' and ')}, which this machine does not have.\n` +
        'Debian and Ubuntu: apt-get install spin gcc. macOS: brew install spin, and the command line tools for cc.',
    );
  }
  const shown = process.argv.indexOf('--show');
  if (shown > 0) {
    await show(process.argv[shown + 1] ?? '');
  } else {
    const started = performance.now();
    const surprises = await searchAll();
    for (const surprise of surprises) process.stdout.write(`SURPRISE: ${surprise}\n`);
    const verdict =
      surprises.length > 0
        ? 'the model and its promises do not agree'
        : 'every promise holds and every broken variant is found';
    process.stdout.write(`${verdict} (${((performance.now() - started) / 1000).toFixed(0)} s)\n`);
    if (surprises.length > 0) process.exitCode = 1;
  }
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = 1;
} finally {
  discardSearches();
}
