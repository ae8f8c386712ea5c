import fc from 'fast-check';
import t from 'tap';
import { fullestInterval } from '../../src/simulator/fullest-interval.ts';

t.test('no starts make an empty interval', async (t) => {
  t.same(fullestInterval([], 1000), { count: 0, startMs: null });
});

t.test('two starts exactly one length apart are not in one interval, a hair less are', async (t) => {
  t.equal(fullestInterval([0, 1000], 1000).count, 1);
  t.equal(fullestInterval([0, 999.9], 1000).count, 2);
});

t.test('the order of the times does not matter, and the fullest interval is named by its first start', async (t) => {
  t.same(fullestInterval([5000, 10, 5600, 5100, 900], 1000), { count: 3, startMs: 5000 });
});

t.test('it agrees with counting from every start', async () => {
  fc.assert(
    fc.property(
      fc.array(fc.integer({ min: 0, max: 5000 }), { maxLength: 60 }),
      fc.integer({ min: 1, max: 2000 }),
      (times, length) => {
        const counts = times.map((from) => times.filter((time) => time >= from && time < from + length).length);
        return fullestInterval(times, length).count === Math.max(0, ...counts);
      },
    ),
  );
});

t.test('a length of 0 or NaN is refused', async (t) => {
  t.throws(() => fullestInterval([1], 0), RangeError);
  t.throws(() => fullestInterval([1], Number.NaN), RangeError);
});
