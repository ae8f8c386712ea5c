/**
 * The arithmetic of rate windows against a log of every admission: whatever the history of tries, costs and times, no closed
 * interval of one horizon holds more than the limit, and a window that says it is open lets in what it said.
 */
import fc from 'fast-check';
import t from 'tap';
import {
  chargeWindow,
  emptyWindow,
  horizonUs,
  permitLeftMs,
  permitMs,
  rollWindow,
  subWindowUs,
  type WindowRule,
  type WindowState,
  windowOpensAtUs,
  windowRoom,
} from '../../src/domain/rate-window.ts';

const start = 1_790_000_000_000_000;
const second = 1_000_000;

const rules = fc.record({
  limit: fc.integer({ min: 1, max: 20 }),
  per: fc.constantFrom(1, 2, 7, 60),
  algorithm: fc.constantFrom('sliding_window', 'fixed_window', 'token_bucket'),
  burst: fc.integer({ min: 0, max: 30 }),
  slack_ms: fc.constantFrom(0, 25, 400),
}) satisfies fc.Arbitrary<WindowRule>;

/** Tries: a pause as a share of the period, in a thousandth, and a cost. */
const tries = fc.array(
  fc.record({
    pause: fc.oneof(fc.integer({ min: 0, max: 30 }), fc.integer({ min: 0, max: 1500 })),
    cost: fc.integer({ min: 1, max: 4 }),
  }),
  { minLength: 1, maxLength: 80 },
);

interface Admission {
  readonly at: number;
  readonly cost: number;
}

function play(rule: WindowRule, steps: readonly { pause: number; cost: number }[]): Admission[] {
  let now = start;
  let state = emptyWindow(rule, now);
  const log: Admission[] = [];
  for (const { pause, cost } of steps) {
    now += Math.floor((pause * rule.per * second) / 1000);
    state = rollWindow(state, rule, now);
    if (windowRoom(state, rule) < cost) continue;
    state = chargeWindow(state, rule, now, cost);
    log.push({ at: now, cost });
  }
  return log;
}

function costBetween(log: readonly Admission[], from: number, to: number): number {
  return log.reduce((sum, { at, cost }) => (at >= from && at <= to ? sum + cost : sum), 0);
}

t.test('sliding_window: no closed interval of one horizon admits more than the limit', async (t) => {
  fc.assert(
    fc.property(rules, tries, (anyRule, steps) => {
      const rule = { ...anyRule, algorithm: 'sliding_window' as const };
      const log = play(rule, steps);
      return log.every(({ at }) => costBetween(log, at - horizonUs(rule), at) <= rule.limit);
    }),
  );
  t.pass('held');
});

t.test(
  'one period and 20 ms after a full window there is still no room: its starts may have left 40 ms late',
  async (t) => {
    const rule: WindowRule = { limit: 1, per: 1, algorithm: 'sliding_window', burst: 0, slack_ms: 0 };
    const log = play(rule, [
      { pause: 0, cost: 1 },
      { pause: 1020, cost: 1 },
    ]);
    t.equal(log.length, 1, 'an admission one period later is still too early: the first may have been sent 40 ms late');
  },
);

t.test(
  'sliding_window: a start 40 ms late and an arrival within the slack keep the limit in every period',
  async (t) => {
    const delays = fc.array(fc.double({ min: 0, max: 1, noNaN: true }), { minLength: 80, maxLength: 80 });
    fc.assert(
      fc.property(rules, tries, delays, (anyRule, steps, late) => {
        const rule = { ...anyRule, algorithm: 'sliding_window' as const };
        const spreadUs = (permitMs + rule.slack_ms) * 1000;
        const arrivals = play(rule, steps).map(({ at, cost }, i) => ({
          at: at + Math.floor(late[i]! * spreadUs),
          cost,
        }));
        return arrivals.every(({ at }) => costBetween(arrivals, at, at + rule.per * second) <= rule.limit);
      }),
    );
    t.pass('held');
  },
);

t.test('fixed_window: at most the limit in every window, and no permit outlives its window', async (t) => {
  fc.assert(
    fc.property(rules, tries, (anyRule, steps) => {
      const rule = { ...anyRule, algorithm: 'fixed_window' as const };
      let now = start;
      let state = emptyWindow(rule, now);
      const perWindow = new Map<number, number>();
      for (const { pause, cost } of steps) {
        now += Math.floor((pause * rule.per * second) / 1000);
        state = rollWindow(state, rule, now);
        if (windowRoom(state, rule) < cost) continue;
        state = chargeWindow(state, rule, now, cost);
        const anchor = state.anchorUs!;
        perWindow.set(anchor, (perWindow.get(anchor) ?? 0) + cost);
        const lastUse = now + permitLeftMs(state, rule, now) * 1000;
        if (lastUse > anchor + rule.per * second || anchor > now) return false;
      }
      const anchors = [...perWindow.keys()].sort((a, b) => a - b);
      const apart = anchors.every((at, i) => i === 0 || at - anchors[i - 1]! >= rule.per * second);
      return apart && [...perWindow.values()].every((cost) => cost <= rule.limit);
    }),
  );
  t.pass('held');
});

t.test('token_bucket: at most burst plus rate times t in every interval t', async (t) => {
  fc.assert(
    fc.property(rules, tries, (anyRule, steps) => {
      const rule = { ...anyRule, algorithm: 'token_bucket' as const };
      const burst = rule.burst > 0 ? rule.burst : Math.ceil(rule.limit / rule.per);
      const log = play(rule, steps);
      return log.every((first, i) =>
        log.slice(i).every((last) => {
          const allowed = burst + (rule.limit * (last.at - first.at)) / (rule.per * second);
          return costBetween(log.slice(i), first.at, last.at) <= allowed + 1e-6;
        }),
      );
    }),
  );
  t.pass('held');
});

t.test('a window opens when it says: not a moment before, and for what was asked', async (t) => {
  fc.assert(
    fc.property(rules, tries, fc.integer({ min: 1, max: 4 }), (rule, steps, need) => {
      let now = start;
      let state = emptyWindow(rule, now);
      for (const { pause, cost } of steps) {
        now += Math.floor((pause * rule.per * second) / 1000);
        state = rollWindow(state, rule, now);
        if (windowRoom(state, rule) >= cost) state = chargeWindow(state, rule, now, cost);
      }
      const opensAt = windowOpensAtUs(state, rule, now, need);
      if (opensAt === null) return need > windowRoom(emptyWindow(rule, now), rule);
      const has = (at: number) => windowRoom(rollWindow(state, rule, at), rule) >= need;
      return has(opensAt) && (opensAt === now || !has(opensAt - 3));
    }),
  );
  t.pass('held');
});

t.test('idle windows and one sub-window before: both sides of the moment room comes back', async (t) => {
  const rule: WindowRule = { limit: 3, per: 1, algorithm: 'sliding_window', burst: 0, slack_ms: 25 };
  let state = rollWindow(emptyWindow(rule, start), rule, start);
  state = chargeWindow(state, rule, start, 3);
  const opens = windowOpensAtUs(state, rule, start, 1)!;
  t.equal(windowRoom(rollWindow(state, rule, opens - 1), rule), 0);
  t.equal(windowRoom(rollWindow(state, rule, opens), rule), 3);
  t.ok(opens - start <= horizonUs(rule) + subWindowUs(rule), 'no later than a horizon and one sub-window');
  t.ok(opens - start > second + 65_000, 'no earlier than period, permit and slack');
});

t.test(
  'OptimalBits/bull#2068 limit 2 per 6 s, one try every 5 s: all are admitted, tries never extend a window',
  async (t) => {
    const rule: WindowRule = { limit: 2, per: 6, algorithm: 'sliding_window', burst: 0, slack_ms: 25 };
    const log = play(
      rule,
      Array.from({ length: 20 }, (_, i) => ({ pause: i === 0 ? 0 : 834, cost: 1 })),
    );
    t.equal(log.length, 20);
  },
);

t.test(
  'a redefinition: what was admitted under the old rule still counts, the new limit is used at once',
  async (t) => {
    const old: WindowRule = { limit: 100, per: 60, algorithm: 'sliding_window', burst: 0, slack_ms: 25 };
    const used = chargeWindow(rollWindow(emptyWindow(old, start), old, start), old, start, 40);
    const at = start + 5 * second;
    t.equal(
      windowRoom(rollWindow(used, { ...old, limit: 5 }, at), { ...old, limit: 5 }),
      0,
      'lowered: no room, and never negative',
    );
    t.equal(windowRoom(rollWindow(used, { ...old, limit: 200 }, at), { ...old, limit: 200 }), 160, 'raised: at once');
    const short = { ...old, per: 1 };
    t.equal(windowRoom(rollWindow(used, short, at), short), 100, 'a shorter period lets go of what is older');
    const long = { ...old, per: 3600 };
    t.equal(windowRoom(rollWindow(used, long, at), long), 60, 'a longer one keeps it');
    const fixed: WindowRule = { ...old, algorithm: 'fixed_window' };
    t.equal(windowRoom(rollWindow(used, fixed, at), fixed), 60);
    const bucket: WindowRule = { ...old, algorithm: 'token_bucket', burst: 50 };
    t.equal(windowRoom(rollWindow(used, bucket, at), bucket), 10);
    const back = rollWindow(rollWindow(used, fixed, at), old, at);
    t.equal(windowRoom(back, old), 60, 'and back');
  },
);

t.test('limit 0 never opens, limit null is never full, a cost above the limit never fits', async (t) => {
  for (const algorithm of ['sliding_window', 'fixed_window', 'token_bucket'] as const) {
    const rule: WindowRule = { limit: 0, per: 1, algorithm, burst: 0, slack_ms: 25 };
    const zero: WindowState = rollWindow(emptyWindow(rule, start), rule, start + second);
    t.equal(windowRoom(zero, rule), 0);
    t.equal(windowOpensAtUs(zero, rule, start + second, 1), null);
    const none = { ...rule, limit: null };
    t.ok(windowRoom(rollWindow(emptyWindow(none, start), none, start), none) > 1e9);
    const three = { ...rule, limit: 3 };
    t.equal(windowOpensAtUs(rollWindow(emptyWindow(three, start), three, start), three, start, 4), null);
  }
});

t.test('a clock that steps back gives no room early', async (t) => {
  const rule: WindowRule = { limit: 1, per: 1, algorithm: 'sliding_window', burst: 0, slack_ms: 25 };
  const state = chargeWindow(rollWindow(emptyWindow(rule, start), rule, start), rule, start, 1);
  const back = rollWindow(state, rule, start - 10 * second);
  t.equal(windowRoom(back, rule), 0);
  t.equal(windowRoom(rollWindow(back, rule, start + second), rule), 0);
});
