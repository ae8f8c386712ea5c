import t from 'tap';
import { parseFaultPlan } from '../../../src/system/fault-points.ts';
import { fatalPoint, planFaults, plannedKinds } from './plan.ts';

const options = { seed: 1, seconds: 300, replicas: 3, leaseSeconds: 4 };
const seeds = Array.from({ length: 50 }, (_, n) => n);

t.test('five minutes bring 60 faults of all kinds, in time and on a replica that there is', async (t) => {
  for (const seed of seeds) {
    const plan = planFaults({ ...options, seed });
    t.equal(plan.length, 60);
    t.same(new Set(plan.map(({ kind }) => kind)), new Set(Object.keys(plannedKinds)));
    t.ok(plan.every(({ atMs }, n) => atMs >= (plan[n - 1]?.atMs ?? 0) && atMs <= 300_000));
    t.ok(plan.every(({ replica }) => [0, 1, 2].includes(replica)));
    const lasting = (wanted: string) => plan.filter(({ kind }) => kind === wanted).map(({ durationMs }) => durationMs);
    t.ok(lasting('stop_long').every((ms) => ms > 4_000 && ms <= 8_000));
    t.ok(lasting('stop_short').every((ms) => ms < 4_000 && ms > 0));
  }
});

t.test('a short run has one of each kind too', async (t) => {
  for (const seed of seeds) {
    const kinds = planFaults({ ...options, seed, seconds: 20 }).map(({ kind }) => kind);
    t.same([...kinds].sort(), [...Object.keys(plannedKinds), 'kill'].sort());
  }
});

t.test('a seed gives the same plan again, and another one another', async (t) => {
  t.same(planFaults(options), planFaults(options));
  t.notSame(planFaults(options), planFaults({ ...options, seed: 2 }));
});

t.test('about every other replica dies at a point, which the program understands', async (t) => {
  const points = seeds.flatMap((nth) => fatalPoint(7, nth) ?? []);
  t.ok(points.length > 10 && points.length < 40, `${points.length} of ${seeds.length}`);
  for (const point of points) t.type(parseFaultPlan(point), Map, point);
  t.same(
    seeds.map((nth) => fatalPoint(7, nth)),
    seeds.map((nth) => fatalPoint(7, nth)),
  );
});
