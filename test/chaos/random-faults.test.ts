/**
 * Half a minute of `npm run chaos`: every kind of fault once, three replicas, a quota, and books that must agree. The seed is
 * fixed, so that a run can be compared with the one before; long runs with other seeds are the program's.
 */
import t from 'tap';
import { reportLines } from './harness/report.ts';
import { runChaos } from './harness/run.ts';

t.setTimeout(240_000);

t.test(
  'replicas killed, stopped, drained, and a database that comes and goes: one effect and one true answer',
  async (t) => {
    const end = new AbortController();
    t.teardown(() => end.abort());
    const report = await runChaos({
      seconds: 20,
      seed: 4,
      replicas: 3,
      items: 400,
      fromSources: true,
      say: (line) => t.comment(line),
      signal: end.signal,
    });
    for (const line of reportLines(report).join('\n').split('\n')) t.comment(line);
    t.same(report.faults, []);
    t.match(report.figures, { accepted: 400, succeeded: 400, effects: 400, doubles: 0, lost: 0 });
    const happened = [...report.faultsByKind.values()].reduce((sum, each) => sum + each, 0);
    t.ok(happened >= 10 && report.faultsByKind.size >= 9, `${happened} faults of ${report.faultsByKind.size} kinds`);
    t.ok(report.figures.starts > report.terms.limit / 2, 'the limit was reached for');
  },
);
