/**
 * Several claimers on one rate window: the claim as it is, which skips a window that another claimer holds and comes back
 * after a moment, against one that waits for the window's row. The second is made here by changing `lock_window` in the
 * bench's own database. No calls: claim and settle in turn, so that the window is as contended as it can be.
 * `node --import tsx bench/claim-waits.ts [--quick]`; figures go into docs/decisions/0002-claim.md.
 */
import { parseArgs } from 'node:util';
import { table } from '../src/cli/demo/table.ts';
import { claimJobs } from '../src/postgres/claim-jobs.ts';
import type { Database } from '../src/postgres/database.ts';
import { windowRowsFunctions } from '../src/postgres/window-rows.ts';
import { systemClock as clock } from '../src/system/clock.ts';
import { inPercent, inWords, percentile, type Spread, spread, spreadInWords } from './figures.ts';
import { addProductJobs, newWorker, prepareProduct, settleAll } from './product-turn.ts';
import { describeMachine, load, machineInWords, writeResults } from './results.ts';
import { onStage } from './stage.ts';

const { values } = parseArgs({ options: { quick: { type: 'boolean', default: false } } });
const jobs = values.quick ? 6_000 : 20_000;
const size = 32;
const runs = 3;
const longestMinutes = 5;

/** As the claim loop does where a claim found its window held. */
const busyMs = () => 2 * (0.5 + Math.random());

interface Variant {
  readonly name: string;
  readonly lockWindow: string;
}

const skips = lockWindowText();
const variants: readonly Variant[] = [
  { name: 'skips a held window', lockWindow: skips },
  { name: 'waits for it', lockWindow: skips.replaceAll('for no key update skip locked', 'for no key update') },
];

interface Run {
  readonly rate: number;
  readonly claims: number;
  readonly empty: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
}

interface VariantFigures {
  readonly variant: string;
  readonly claimers: number;
  readonly jobsPerSecond: Spread;
  readonly claimsPer1000Jobs: Spread;
  /** Share of claims that came back with nothing. */
  readonly empty: Spread;
  readonly claimP50Ms: Spread;
  readonly claimP99Ms: Spread;
}

await onStage(longestMinutes, async (stage) => {
  const { database } = await stage.createDatabase('waits');
  const machine = await describeMachine(database);
  console.log(`${machineInWords(machine)}; ${inWords(jobs)} jobs a run, ${size} a claim\n`);
  await prepareProduct(database, { one: { limit: 10_000_000, per: 1 } });
  const workers = [await newWorker(database), await newWorker(database), await newWorker(database)];

  const found = new Map<string, Run[]>();
  const keyOf = (variant: Variant, claimers: number) => `${variant.name}/${claimers}`;
  for (let run = -1; run < runs; run += 1) {
    for (const variant of variants) {
      await database.query(variant.lockWindow);
      for (const claimers of [1, 3]) {
        await addProductJobs(database, jobs);
        const measured = await drainWith(database, workers.slice(0, claimers));
        const key = keyOf(variant, claimers);
        // The first warms up.
        if (run >= 0) found.set(key, [...(found.get(key) ?? []), measured]);
      }
    }
  }
  const figures = variants.flatMap((variant) =>
    [1, 3].map((claimers) => toFigures(variant.name, claimers, found.get(keyOf(variant, claimers))!)),
  );
  console.log(
    table([
      [
        '',
        'claimers',
        'jobs/s, median (least to most)',
        'claims per 1,000 jobs',
        'of them empty',
        'claim p50, ms',
        'p99, ms',
      ],
      ...figures.map((each) => [
        each.variant,
        String(each.claimers),
        spreadInWords(each.jobsPerSecond),
        inWords(each.claimsPer1000Jobs.median),
        inPercent(each.empty.median),
        inWords(each.claimP50Ms.median),
        inWords(each.claimP99Ms.median),
      ]),
    ]),
  );
  const path = await writeResults('claim-waits', { machine, loadAtEnd: load(), jobs, size, figures });
  console.log(`\nload at the end ${load()}; all figures are in ${path}`);
});

function toFigures(variant: string, claimers: number, all: readonly Run[]): VariantFigures {
  const column = (pick: (run: Run) => number) => spread(all.map(pick));
  return {
    variant,
    claimers,
    jobsPerSecond: column((run) => run.rate),
    claimsPer1000Jobs: column((run) => (run.claims * 1000) / jobs),
    empty: column((run) => run.empty / run.claims),
    claimP50Ms: column((run) => run.p50Ms),
    claimP99Ms: column((run) => run.p99Ms),
  };
}

async function drainWith(database: Database, workers: readonly string[]): Promise<Run> {
  let done = 0;
  let empty = 0;
  const tookMs: number[] = [];
  const claimer = async (worker: string) => {
    while (done < jobs) {
      const startMs = clock.monotonicMs();
      const claim = await claimJobs(database, worker, size);
      tookMs.push(clock.monotonicMs() - startMs);
      if (claim.jobs.length === 0) {
        empty += 1;
        if (done < jobs) await clock.sleep(busyMs());
        continue;
      }
      await settleAll(database, worker, claim.jobs);
      done += claim.jobs.length;
    }
  };
  const startMs = clock.monotonicMs();
  await Promise.all(workers.map(claimer));
  const rate = (jobs * 1000) / (clock.monotonicMs() - startMs);
  tookMs.sort((a, b) => a - b);
  return { rate, claims: tookMs.length, empty, p50Ms: percentile(tookMs, 50), p99Ms: percentile(tookMs, 99) };
}

/** The one function out of the text that installs the claim. */
function lockWindowText(): string {
  const found = /create or replace function sluice\.lock_window[\s\S]*?end \$\$;/.exec(windowRowsFunctions.sql);
  if (found === null || !found[0].includes('skip locked')) throw new Error('lock_window is not what this bench knows');
  return found[0];
}
