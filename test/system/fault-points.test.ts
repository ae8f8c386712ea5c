import t, { type Test } from 'tap';
import { systemClock } from '../../src/system/clock.ts';
import {
  armFaultPoints,
  type FaultPlan,
  FaultPointError,
  noFaultPoints,
  parseFaultPlan,
} from '../../src/system/fault-points.ts';
import { createLogger } from '../../src/system/logger.ts';

function planOf(text: string): FaultPlan {
  const plan = parseFaultPlan(text);
  if (typeof plan === 'string') throw new Error(plan);
  return plan;
}

function arm(text: string) {
  const lines: string[] = [];
  const logger = createLogger('info', { write: (line) => void lines.push(line) });
  return { points: armFaultPoints(planOf(text), { clock: systemClock, logger }), lines };
}

async function codeAt(passed: Promise<void> | undefined): Promise<string | null> {
  try {
    await passed;
    return null;
  } catch (error) {
    return error instanceof FaultPointError ? error.code : 'another error';
  }
}

t.test('where nothing is armed, passing gives nothing to wait for', async (t) => {
  t.equal(noFaultPoints.pass('settle.before'), undefined);
});

t.test('a point does what it was told the first times, in order, and then nothing', async (t) => {
  const { points, lines } = arm('settle.before=40001,pass,57P01*2');
  const codes: Array<string | null> = [];
  for (let n = 0; n < 6; n += 1) codes.push(await codeAt(points.pass('settle.before')));
  t.same(codes, ['40001', null, '57P01', '57P01', null, null]);
  t.equal(await codeAt(points.pass('settle.after')), null, 'other points do nothing');
  t.equal(lines.length, 3, 'each is in the log');
  t.match(JSON.parse(lines[0]!), { fault_point: 'settle.before', action: { sqlState: '40001' } });
});

t.test('a pause holds what passes, and nobody else', async (t) => {
  const { points } = arm('send.before=pause:30');
  const order: string[] = [];
  const first = points.pass('send.before')?.then(() => order.push('paused'));
  await points.pass('send.before');
  order.push('next');
  await first;
  t.same(order, ['next', 'paused']);
});

t.test('what a point does comes after the turn in which it was passed', async (t) => {
  const { points } = arm('settle.after=57P01');
  let written = false;
  const seen = points.pass('settle.after')?.catch(() => written);
  written = true;
  t.equal(await seen, true);
});

t.test('the notation', async (t) => {
  t.same(
    [...planOf(' send.after = pass*2 , kill ; intake.before_commit=stop;send.after=pass')],
    [
      ['send.after', [{ kind: 'pass' }, { kind: 'pass' }, { kind: 'kill' }, { kind: 'pass' }]],
      ['intake.before_commit', [{ kind: 'stop' }]],
    ],
  );
  const refused = (t: Test, text: string, why: RegExp) => t.match(parseFaultPlan(text), why, text);
  refused(t, '', /^has no point ""/);
  refused(t, 'toString=kill', /^has no point "toString"/);
  refused(t, 'settle.before', /^must say what happens at settle\.before/);
  refused(t, 'settle.before=', /^has at settle\.before the action ""; it takes kill, stop, .*SQLSTATE/);
  refused(t, 'settle.before=kil', /the action "kil"/);
  refused(t, 'settle.before=kill*0', /from 1 to 10000 times/);
  refused(t, 'settle.before=kill*20000', /from 1 to 10000 times/);
  refused(t, 'settle.before=kill=stop', /^must say what happens/);
  refused(t, 'answer.read=40001', /it takes kill, stop, pass, pause:MILLISECONDS$/);
  refused(t, 'send.after=pause:5', /it takes kill, stop, pass$/);
});
