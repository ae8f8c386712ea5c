import fc from 'fast-check';
import t from 'tap';
import { backoffMs } from '../../src/domain/retry-policy.ts';

const policy = { base_ms: 500, cap_ms: 30_000 };

t.test('the ceiling doubles with each failure until the cap', async (t) => {
  const ceilings = [1, 2, 3, 4, 5, 6, 7, 8].map((failures) => backoffMs(policy, failures, 1));
  t.same(ceilings, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
});

t.test('jitter is full: from nothing to the ceiling', async (t) => {
  t.equal(backoffMs(policy, 3, 0), 0);
  t.equal(backoffMs(policy, 3, 0.5), 1000);
});

t.test('a cap below the base is the cap', async (t) => {
  t.equal(backoffMs({ base_ms: 500, cap_ms: 100 }, 1, 1), 100);
});

t.test('a wrong argument throws and does not become a wait of 0 or NaN (earendil-works/pi#9571)', async (t) => {
  t.throws(() => backoffMs(policy, 0, 0.5), RangeError);
  t.throws(() => backoffMs(policy, Number.NaN, 0.5), RangeError);
  t.throws(() => backoffMs(policy, 1, Number.NaN), RangeError);
  t.throws(() => backoffMs(policy, 1, -0.1), RangeError);
  t.throws(() => backoffMs(policy, 1, 1.1), RangeError);
});

t.test('property: whole milliseconds within the ceiling, for any number of failures', async () => {
  const anyPolicy = fc.record({
    base_ms: fc.integer({ min: 1, max: 86_400_000 }),
    cap_ms: fc.integer({ min: 1, max: 86_400_000 }),
  });
  fc.assert(
    fc.property(
      anyPolicy,
      fc.integer({ min: 1, max: 100_000 }),
      fc.double({ min: 0, max: 1, noNaN: true }),
      (policy, failures, random) => {
        const ms = backoffMs(policy, failures, random);
        let ceiling = policy.base_ms;
        for (let n = 1; n < failures && ceiling < policy.cap_ms; n += 1) ceiling *= 2;
        return Number.isInteger(ms) && ms >= 0 && ms <= Math.min(policy.cap_ms, ceiling);
      },
    ),
  );
});
