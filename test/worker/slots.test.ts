/** Jobs wait for a slot in their order, for a short time, and are given back after it. */
import t from 'tap';
import { systemClock } from '../../src/system/clock.ts';
import { Slots } from '../../src/worker/slots.ts';
import { eventually } from '../support/eventually.ts';

function newSlots({ size, goodForMs = 1_000 }: { size: number; goodForMs?: number }) {
  const started: string[] = [];
  const back: string[] = [];
  const bornMs = systemClock.monotonicMs();
  const slots = new Slots<string>({
    clock: systemClock,
    size,
    start: (job) => started.push(job),
    goodUntilMs: () => bornMs + goodForMs,
    giveBack: (jobs) => back.push(...jobs),
  });
  return { slots, started, back };
}

t.test('as many start as there are slots, and the next one when a call ends', async (t) => {
  const { slots, started, back } = newSlots({ size: 2 });
  t.equal(slots.free, 2);
  slots.add(['a', 'b', 'c', 'd']);
  t.same(started, ['a', 'b']);
  t.equal(slots.waiting, 2);
  t.equal(slots.free, 0, 'slots that jobs wait for are not free');
  slots.ended();
  t.same(started, ['a', 'b', 'c'], 'in their order');
  slots.ended();
  slots.ended();
  t.same(started, ['a', 'b', 'c', 'd']);
  t.equal(slots.free, 1);
  t.equal(slots.waiting, 0);
  t.same(back, []);
});

t.test('what waits for longer than it is good goes back, and what runs stays', async (t) => {
  const { slots, started, back } = newSlots({ size: 1, goodForMs: 30 });
  slots.add(['a', 'b', 'c']);
  await eventually('the others to be given back', () => back.length > 0);
  t.same(back, ['b', 'c']);
  t.same(started, ['a']);
  slots.ended();
  t.same(started, ['a'], 'what was given back does not start');
  t.equal(slots.free, 1);
});

t.test('some must not start before they are let go, and then in their order behind those that may', async (t) => {
  const { slots, started, back } = newSlots({ size: 3 });
  slots.add(['a'], ['x1', 'y', 'x2']);
  t.same(started, ['a']);
  t.equal(slots.free, 0, 'slots that they wait for are not free');
  slots.letGo((job) => job.startsWith('x'));
  t.same(started, ['a', 'x1', 'x2']);
  slots.ended();
  t.same(started, ['a', 'x1', 'x2'], 'the other is not let go');
  slots.clear(() => true);
  t.same(back, ['y']);
});

t.test('some of those that wait are asked back', async (t) => {
  const { slots, started, back } = newSlots({ size: 1 });
  slots.add(['a', 'x1', 'b', 'x2']);
  slots.clear((job) => job.startsWith('x'));
  t.same(back, ['x1', 'x2']);
  slots.ended();
  slots.ended();
  t.same(started, ['a', 'b']);
});

t.test('slots that are kept are for those who come for them, and for others when nobody does', async (t) => {
  const { slots, started } = newSlots({ size: 3 });
  slots.reserve(2);
  t.equal(slots.free, 1, 'slots that are kept are not free');
  slots.add(['a', 'b', 'c']);
  t.same(started, ['a']);
  slots.addReserved(['first', 'second']);
  t.same(started, ['a', 'first', 'second'], 'whoever waits');
  slots.ended();
  t.same(started, ['a', 'first', 'second', 'b']);
  slots.reserve(1);
  slots.ended();
  t.same(started, ['a', 'first', 'second', 'b']);
  slots.release(1);
  t.same(started, ['a', 'first', 'second', 'b', 'c']);
});
