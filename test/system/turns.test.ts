import t from 'tap';
import { systemClock } from '../../src/system/clock.ts';
import { Turns } from '../../src/system/turns.ts';

t.test('turns are given in the order of coming, and never more than there are', async (t) => {
  const turns = new Turns(2, systemClock);
  t.equal(await turns.take(0), true);
  t.equal(await turns.take(0), true);
  const served: number[] = [];
  const waiting = [0, 1, 2].map(async (n) => {
    t.equal(await turns.take(60_000), true);
    served.push(n);
  });
  turns.give();
  await waiting[0];
  t.same(served, [0]);
  turns.give();
  turns.give();
  await Promise.all(waiting);
  t.same(served, [0, 1, 2]);
});

t.test('who has waited long enough leaves the line, and takes no turn along', async (t) => {
  const turns = new Turns(1, systemClock);
  await turns.take(0);
  t.equal(await turns.take(5), false);
  turns.give();
  t.equal(await turns.take(0), true);
});
