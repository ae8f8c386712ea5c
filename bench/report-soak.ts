/** The figures of `npm run bench:soak` as one table. */
import { inPercent, inWords } from './figures.ts';
import type { SoakRun } from './measure-soak.ts';
import type { Section } from './report.ts';
import type { Machine } from './results.ts';

export interface SoakResults {
  /** When it began, ISO 8601. */
  readonly at: string;
  readonly machine: Machine;
  readonly loadAtEnd: number;
  /** Jobs per second, taken in and worked off at once. */
  readonly capacity: number;
  /** Of a run. */
  readonly seconds: number;
  readonly sampleSeconds: number;
  readonly runs: readonly SoakRun[];
}

export function soakSection({ capacity, seconds, runs }: SoakResults): Section {
  const of = seconds >= 300 ? 'minute' : 'fifth';
  return {
    name: 'soak',
    title: `${inWords(seconds / 60)} minutes with a transaction left open; the capacity is ${inWords(capacity)} jobs/s, taken in and worked off at once`,
    header: [
      '',
      `first ${of}, calls/s`,
      `last ${of}, calls/s`,
      'last of first',
      'at equal speed of the machine',
      'p99 at the end, ms',
      'dead rows at the end',
      `worker's memory after the first ${of} and at the end, MB`,
    ],
    rows: runs.map((run) => {
      const end = run.samples.at(-1)!;
      return [
        run.name,
        inWords(run.first),
        inWords(run.last),
        inPercent(run.last / run.first),
        run.perSecond !== null || run.firstUs === null || run.lastUs === null
          ? '-'
          : inPercent((run.last * run.lastUs) / (run.first * run.firstUs)),
        end.p99Ms === null ? '-' : inWords(end.p99Ms),
        inWords(end.deadRows),
        `${inWords(run.workerMbThen)}, ${inWords(run.workerMbEnd)}`,
      ];
    }),
  };
}
