/** How far ahead of its slots a worker claims: as the speed of its calls has it. */
import t from 'tap';
import { systemClock } from '../../src/system/clock.ts';
import { ClaimAhead } from '../../src/worker/claim-ahead.ts';

function newAhead() {
  let nowMs = 0;
  const ahead = new ClaimAhead({ ...systemClock, monotonicMs: () => nowMs });
  return {
    ahead,
    /** Calls end evenly at this many per second for so long. */
    run(perSecond: number, forMs: number) {
      const everyMs = 1000 / perSecond;
      for (let passed = everyMs; passed <= forMs; passed += everyMs) {
        nowMs += everyMs;
        ahead.ended();
        ahead.target();
      }
    },
    wait(ms: number) {
      nowMs += ms;
    },
  };
}

t.test('nothing at the start, and nothing where calls are slow', async (t) => {
  const { ahead, run } = newAhead();
  t.equal(ahead.target(), 0);
  run(40, 2000);
  t.equal(ahead.target(), 0, '40 calls a second use nothing up within 30 ms');
});

t.test('as much as fast calls use up within 30 ms, but never more than 512', async (t) => {
  const { ahead, run } = newAhead();
  run(5000, 200);
  const target = ahead.target();
  t.ok(target >= 120 && target <= 160, `150 at 5,000 a second, found ${target}`);
  run(200_000, 50);
  t.equal(ahead.target(), 512);
});

t.test('more where slots ran empty, less where jobs started late, and by itself back to the usual', async (t) => {
  const { ahead, run, wait } = newAhead();
  run(2000, 200);
  const usual = ahead.target();
  for (let claims = 0; claims < 100; claims += 1) ahead.claimed(true);
  const most = ahead.target();
  t.ok(most >= usual * 1.8 && most <= usual * 2.2, `${usual}, then ${most}`);
  wait(20);
  for (let jobs = 0; jobs < 50; jobs += 1) ahead.started(0);
  run(2000, 200);
  t.ok(ahead.target() < most, 'late starts');
  for (let claims = 0; claims < 400; claims += 1) ahead.claimed(false);
  t.ok(Math.abs(ahead.target() - usual) <= 2);
});

t.test('little after a pause', async (t) => {
  const { ahead, run, wait } = newAhead();
  run(5000, 200);
  wait(1000);
  t.ok(ahead.target() <= 2);
});

t.test('less after permits that ran out, and more again with claims that went well', async (t) => {
  const { ahead, run } = newAhead();
  run(5000, 200);
  const before = ahead.target();
  for (let jobs = 0; jobs < 50; jobs += 1) ahead.expired();
  const once = ahead.target();
  t.ok(once <= before * 0.9 && once >= before * 0.8, 'once for all of one claim');
  for (let claims = 0; claims < 10; claims += 1) {
    run(5000, 30);
    ahead.expired();
  }
  t.ok(ahead.target() <= before / 4);
  for (let claims = 0; claims < 100; claims += 1) ahead.claimed(false);
  t.ok(ahead.target() >= before * 0.9);
});
