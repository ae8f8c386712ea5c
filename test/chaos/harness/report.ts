/** The report of a run as text; nothing is decided here. */
import { table } from '../../../src/cli/demo/table.ts';
import type { ChaosReport } from './run.ts';

export function reportLines(report: ChaosReport): string[] {
  const { figures: f, terms, faultsByKind, answers, faults } = report;
  const { keys, batches, limit, periodMs, permitMs, slackMs } = terms;
  const ok = (holds: boolean) => (holds ? 'ok' : 'WRONG');
  const happened = [...faultsByKind.values()].reduce((sum, each) => sum + each, 0);
  const late = `${f.late} late by the machine, ${f.frozen} frozen between check and write, the latest after ${f.latestMs} ms`;
  const rows: Array<Array<string | number>> = [
    [ok(f.accepted === keys.size), 'accepted', f.accepted, `of ${keys.size} keys`],
    [ok(f.succeeded === keys.size), 'ended', f.ended, `${f.succeeded} of them as succeeded`],
    [
      ok(f.effects === keys.size),
      'effects',
      f.effects,
      `by ${f.calls} calls; ${f.replayed} of them repeated a known key`,
    ],
    [ok(f.doubles === 0), 'doubles', f.doubles],
    [ok(f.lost === 0), 'lost', f.lost],
    [ok(f.batchesEnded === batches), 'batches ended', f.batchesEnded, `of ${batches}`],
    [
      ok(f.starts <= f.startsBound),
      `most starts in ${periodMs} ms`,
      f.starts,
      `of ${f.startsBound}, by the workers' stamps`,
    ],
    [
      ok(f.arrivals <= limit),
      `most arrivals in ${periodMs} ms`,
      f.arrivals,
      `of ${limit}, at the upstream, of calls that came within ${permitMs} + ${slackMs} ms`,
    ],
    ['', '  of all calls', f.arrivalsOfAll, late],
    ['', 'refused by its quota', f.overQuota],
  ];
  return [
    'By the books of the service, its database and the upstream',
    table(rows),
    '',
    `Faults: ${happened} of ${faultsByKind.size} kinds`,
    table([...faultsByKind].sort(([a], [b]) => a.localeCompare(b)).map(([kind, count]) => [count, kind])),
    '',
    `Requests of the client: ${[...answers]
      .sort(([a], [b]) => a.localeCompare(b))
      .map(([kind, count]) => `${count} ${kind}`)
      .join(', ')}`,
    `The last job ended ${(report.settledMs / 1000).toFixed(1)} s after the last fault`,
    `Replicas started: ${report.replicasStarted}; ${report.failedStarts} starts failed and were repeated`,
    ...(faults.length === 0 ? [] : ['', 'What is wrong:', ...faults.map((fault) => `  ${fault}`)]),
    ...(report.logFolder === null ? [] : [`The log of every replica is in ${report.logFolder}`]),
  ];
}
