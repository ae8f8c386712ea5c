import t from 'tap';
import { type RateLimit, rateLimitSchema } from '../../src/domain/definitions.ts';
import { admittedUs, type BatchLane, type BusyLane, type EtaFacts, projectEnd } from '../../src/domain/eta.ts';
import {
  chargeWindow,
  emptyWindow,
  rollWindow,
  type WindowState,
  windowOpensAtUs,
  windowRoom,
} from '../../src/domain/rate-window.ts';

const nowUs = 1_790_000_000_000_000;
const second = 1_000_000;

function rule(more: object): RateLimit {
  return rateLimitSchema.parse({ limit: 10, per: 1, ...more });
}

/** The window by itself: everything is let through the moment there is room. */
function simulate(limit: RateLimit, state: WindowState | null, count: number, cost = 1): number {
  let window = rollWindow(state ?? emptyWindow(limit, nowUs), limit, nowUs);
  let atUs = nowUs;
  for (let left = count; left > 0; ) {
    window = rollWindow(window, limit, atUs);
    if (windowRoom(window, limit) < cost) {
      atUs = windowOpensAtUs(window, limit, atUs, cost)!;
      continue;
    }
    window = chargeWindow(window, limit, atUs, cost);
    left -= 1;
  }
  return atUs;
}

function lane(more: Partial<BatchLane> & { readonly count?: number } = {}): BatchLane {
  const { count = 100, ...others } = more;
  return {
    id: 1,
    queue: 'default',
    upstream: 'api',
    partitionKey: '',
    limits: ['narrow'],
    paused: false,
    fifo: false,
    ready: { count, cost: count },
    scheduled: null,
    ...others,
  };
}

function busyOf(
  { id, queue, upstream, partitionKey, limits, paused, ready }: BatchLane,
  count = ready.count,
): BusyLane {
  return { id, queue, upstream, partitionKey, limits, paused, count, cost: count };
}

function facts(lanes: readonly BatchLane[], limits: Record<string, object>, more: Partial<EtaFacts> = {}): EtaFacts {
  return {
    nowUs,
    lanes,
    busy: lanes.map((each) => busyOf(each)),
    limits: new Map(Object.entries(limits).map(([name, each]) => [name, { rule: rule(each), windows: new Map() }])),
    cooldowns: [],
    slots: 32,
    running: 0,
    observed: { callsPerJob: 1, callMs: null, perSecond: null },
    ...more,
  };
}

/** Seconds from now, to a tenth; and what limits it. */
function endOf(given: EtaFacts): [seconds: number, limitedBy: string | null] | null {
  const end = projectEnd(given);
  return end === null ? null : [Math.round((end.atUs - nowUs) / (second / 10)) / 10, end.limitedBy];
}

t.test('a window lets through as much as it would if everything came at once', (t) => {
  for (const [name, limit] of Object.entries({
    'sliding, of a second': rule({}),
    'sliding, of a minute': rule({ limit: 7, per: 60 }),
    fixed: rule({ algorithm: 'fixed_window', limit: 10, per: 2 }),
    bucket: rule({ algorithm: 'token_bucket', limit: 10, per: 1, burst: 5 }),
  })) {
    for (const used of [0, 3, 10]) {
      let state: WindowState | null = null;
      if (used > 0) {
        const beforeUs = nowUs - 300_000;
        const cost = Math.min(used, windowRoom(emptyWindow(limit, beforeUs), limit));
        state = chargeWindow(emptyWindow(limit, beforeUs), limit, beforeUs, cost);
      }
      for (const count of [1, 5, 10, 11, 39, 250]) {
        const truth = simulate(limit, state, count) - nowUs;
        const told = admittedUs(state, limit, nowUs, { count, cost: count })! - nowUs;
        const off = Math.abs(told - truth);
        t.ok(
          off <= 0.03 * truth + 0.02 * limit.per * second,
          `${name}, ${used} used, ${count}: ${told} of ${truth} us`,
        );
      }
    }
  }
  t.end();
});

t.test('jobs that do not come out even with the limit leave room unused', (t) => {
  const limit = rule({ limit: 10 });
  const truth = simulate(limit, null, 100, 4) - nowUs;
  const told = admittedUs(null, limit, nowUs, { count: 100, cost: 400 })! - nowUs;
  t.ok(Math.abs(told - truth) < 0.05 * truth, `${told} of ${truth} us`);
  t.end();
});

t.test('1,000 jobs under 10 a second take 106 s, and the limit is named', (t) => {
  t.same(endOf(facts([lane({ count: 1000 })], { narrow: {} })), [105.9, 'narrow']);
  t.end();
});

t.test('of several limits the tightest decides', (t) => {
  const both = lane({ limits: ['narrow', 'wide'] });
  t.same(endOf(facts([both], { narrow: { limit: 10 }, wide: { limit: 50 } })), [9.6, 'narrow']);
  t.same(
    endOf(facts([both], { narrow: { limit: 100 }, wide: { limit: 300, per: 60 } })),
    [0.3, null],
    'all at once, as far as there are slots',
  );
  t.match(endOf(facts([both], { narrow: { limit: 50 }, wide: { limit: 60, per: 60 } })), [60.6, 'wide']);
  t.end();
});

t.test('what stands before it counts: in its lane as its place says, in other lanes by turns', (t) => {
  const own = lane({ count: 50 });
  const alone = endOf(facts([own], { narrow: {} }))!;
  t.same(alone, [4.3, 'narrow']);
  // 150 of another batch stand before in the same lane: its last job is at place 200.
  t.same(endOf(facts([lane({ count: 200 })], { narrow: {} })), [20.3, 'narrow']);
  const long = { ...busyOf(lane({ id: 2 })), count: 10_000, cost: 10_000 };
  const shared = facts([own], { narrow: {} }, { busy: [busyOf(own), long] });
  t.same(endOf(shared), [9.6, 'narrow'], 'a long lane beside it takes every other turn');
  const short = { ...long, count: 10, cost: 10 };
  t.same(endOf({ ...shared, busy: [busyOf(own), short] }), [5.4, 'narrow'], 'a short one only its own jobs');
  t.same(endOf({ ...shared, busy: [busyOf(own), { ...long, paused: true }] }), alone, 'a paused one none');
  t.same(endOf({ ...shared, busy: [busyOf(own), { ...long, limits: [] }] }), alone, 'one under no common limit none');
  t.same(endOf({ ...shared, busy: [busyOf(own, 5_000)] }), alone, 'what comes after it in its own lane does not count');
  t.end();
});

t.test('under a limit by partition the longest partition decides', (t) => {
  const limits = ['each'];
  const lanes = [
    lane({ id: 1, partitionKey: 'a', limits, count: 20 }),
    lane({ id: 2, partitionKey: 'b', limits, count: 100 }),
    lane({ id: 3, partitionKey: 'c', limits, count: 1 }),
  ];
  t.same(endOf(facts(lanes, { each: { by_partition: true } })), [9.6, 'each']);
  t.same(endOf(facts(lanes.slice(0, 1), { each: { by_partition: true } })), [1.1, 'each']);
  const used = facts(lanes, { each: { by_partition: true } });
  const window = { state: null, paused: true };
  (used.limits.get('each')!.windows as Map<string, unknown>).set('z', window);
  t.same(endOf(used), [9.6, 'each'], 'a window of another partition does not matter');
  (used.limits.get('each')!.windows as Map<string, unknown>).set('c', window);
  t.equal(endOf(used), null, 'one of its own that is paused does');
  t.end();
});

t.test('max_in_flight counts with the time a call takes', (t) => {
  const observed = { callsPerJob: 1, callMs: 500, perSecond: null };
  const limit = { limit: null, max_in_flight: 5 };
  t.same(endOf(facts([lane()], { narrow: limit }, { observed })), [10.5, 'narrow']);
  t.equal(endOf(facts([lane()], { narrow: limit })), null, 'which nobody knows yet');
  t.end();
});

t.test('without a limit: as fast as it has gone so far', (t) => {
  const free = lane({ limits: [] });
  t.equal(endOf(facts([free], {})), null);
  t.same(endOf(facts([free], {}, { observed: { callsPerJob: 1, callMs: 10, perSecond: 20 } })), [5, null]);
  t.end();
});

t.test('few slots or an order can be tighter than a limit', (t) => {
  const observed = { callsPerJob: 1, callMs: 1_000, perSecond: null };
  t.same(endOf(facts([lane()], { narrow: {} }, { observed, slots: 2 })), [51, null]);
  t.same(endOf(facts([lane({ fifo: true })], { narrow: {} }, { observed })), [101, null]);
  t.match(endOf(facts([lane()], { narrow: {} }, { observed })), [10.6, 'narrow'], 'with its last call');
  t.same(
    endOf(facts([lane({ fifo: true, count: 1_000 })], { narrow: { limit: 1_000 } })),
    [100, null],
    'before any call was seen a time is assumed',
  );
  t.end();
});

t.test('calls that fail and are made again take room as well', (t) => {
  const observed = { callsPerJob: 1.5, callMs: null, perSecond: null };
  t.same(endOf(facts([lane()], { narrow: {} }, { observed })), [15, 'narrow']);
  t.end();
});

t.test('a cooldown is waited for, and named where it is most of the wait', (t) => {
  const cooling = (seconds: number, more: object = {}) => ({
    cooldowns: [
      { kind: 'upstream', name: 'api', partitionKey: '', untilUs: nowUs + seconds * second, ...more } as const,
    ],
  });
  t.same(endOf(facts([lane()], { narrow: {} }, cooling(5))), [14.6, 'narrow']);
  t.same(endOf(facts([lane()], { narrow: {} }, cooling(60))), [69.6, 'api']);
  t.same(endOf(facts([lane()], { narrow: {} }, cooling(60, { name: 'other' }))), [9.6, 'narrow']);
  t.same(endOf(facts([lane()], { narrow: {} }, cooling(60, { partitionKey: 'p' }))), [9.6, 'narrow']);
  t.same(endOf(facts([lane()], { narrow: {} }, cooling(60, { kind: 'limit', name: 'narrow' }))), [69.6, 'narrow']);
  t.end();
});

t.test('what is not due waits for its time, and then for its turn', (t) => {
  const scheduled = (count: number, first: number, last = first) => ({
    count,
    cost: count,
    firstUs: nowUs + first * second,
    lastUs: nowUs + last * second,
  });
  const at = (first: number, last?: number) => lane({ count: 0, scheduled: scheduled(100, first, last) });
  t.same(endOf(facts([at(60)], { narrow: {} })), [69.6, 'narrow'], 'all at one time');
  t.same(endOf(facts([at(60, 3600)], { narrow: {} })), [3600, null], 'far apart: the last one');
  t.same(endOf(facts([lane({ scheduled: scheduled(1, 1) })], { narrow: {} })), [10.7, 'narrow']);
  t.end();
});

t.test('nothing is told where it stands still', (t) => {
  t.equal(endOf(facts([lane({ paused: true })], { narrow: {} })), null, 'paused');
  t.equal(endOf(facts([lane()], { narrow: { limit: 0 } })), null, 'a limit of 0');
  t.equal(endOf(facts([lane()], { narrow: {} }, { slots: 0 })), null, 'no worker');
  t.equal(endOf(facts([], {})), null, 'nothing is left');
  t.equal(endOf(facts([lane(), lane({ id: 2, paused: true })], { narrow: {} })), null, 'one of its lanes is paused');
  const paused = facts([lane()], { narrow: {} });
  (paused.limits.get('narrow')!.windows as Map<string, unknown>).set('', { state: null, paused: true });
  t.equal(endOf(paused), null, 'its window is paused');
  t.same(endOf(facts([], {}, { running: 3, observed: { callsPerJob: 1, callMs: 200, perSecond: null } })), [0.2, null]);
  t.end();
});

t.test('a million jobs in a thousand lanes are worked out at once', (t) => {
  const lanes = Array.from({ length: 1_000 }, (_, id) => lane({ id, count: 1_000 + id }));
  const end = endOf(facts(lanes, { narrow: { limit: 100 } }))!;
  const alone = endOf(facts([lane({ count: 1_499_500 })], { narrow: { limit: 100 } }))!;
  t.ok(Math.abs(end[0] - alone[0]) < 2, `${end[0]} s is what one lane with all of it takes, ${alone[0]} s`);
  t.end();
});
