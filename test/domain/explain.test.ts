/** What a job waits for, from facts alone: each cause by itself, several at once, and how long a window takes for a place. */
import fc from 'fast-check';
import t from 'tap';
import { type RateLimit, rateLimitSchema } from '../../src/domain/definitions.ts';
import { earliestAdmissionUs, explainWait, type WaitFacts, type WindowFacts } from '../../src/domain/explain.ts';
import { chargeWindow, emptyWindow, rollWindow, type WindowState, windowRoom } from '../../src/domain/rate-window.ts';

const second = 1_000_000;
const nowUs = 1_790_000_000 * second;

function facts(overrides: Partial<WaitFacts> = {}): WaitFacts {
  return {
    nowUs,
    state: 'ready',
    reason: null,
    queue: 'default',
    upstream: 'api',
    cost: 1,
    calls: 0,
    fuse: null,
    dueAtUs: null,
    lease: null,
    queuePaused: false,
    upstreamPaused: false,
    ahead: { count: 0, cost: 0 },
    fifo: null,
    windows: [],
    cooldowns: [],
    workers: { live: 1, slots: 32, running: 0 },
    ...overrides,
  };
}

function ruleOf(definition: Partial<RateLimit>): RateLimit {
  return rateLimitSchema.parse({ limit: 10, per: 60, upstreams: ['api'], ...definition });
}

/** A window in which so much was admitted just now. */
function used(rule: RateLimit, cost: number): WindowState {
  return chargeWindow(rollWindow(emptyWindow(rule, nowUs), rule, nowUs), rule, nowUs, cost);
}

function windowOf(definition: Partial<RateLimit>, more: Partial<WindowFacts> & { cost?: number } = {}): WindowFacts {
  const rule = ruleOf(definition);
  const { cost = 0, ...rest } = more;
  return { name: 'ten', partitionKey: null, rule, stored: used(rule, cost), paused: false, inFlight: 0, ...rest };
}

function kinds(overrides: Partial<WaitFacts>): string[] {
  return explainWait(facts(overrides)).waitingOn.map(({ kind }) => kind);
}

t.test('a ready job with nothing in its way waits for nothing, and is runnable', async (t) => {
  t.same(explainWait(facts()), { runnable: true, position: 1, waitingOn: [] });
  t.same(explainWait(facts({ ahead: { count: 4, cost: 9 } })), { runnable: true, position: 5, waitingOn: [] });
});

t.test('slots: taken ones are waited for, by a job that is runnable all the same', async (t) => {
  const { runnable, waitingOn } = explainWait(facts({ workers: { live: 2, slots: 8, running: 8 } }));
  t.equal(runnable, true);
  t.match(waitingOn, [{ kind: 'slot', name: null, untilUs: null, detail: 'all 8 slots of 2 workers are taken' }]);
  t.same(kinds({ workers: { live: 1, slots: 8, running: 7 } }), []);
  const none = explainWait(facts({ workers: { live: 0, slots: 0, running: 0 } }));
  t.match(none, { runnable: true, waitingOn: [{ kind: 'slot', detail: /no process/ }] });
  t.same(
    kinds({ queuePaused: true, workers: { live: 0, slots: 0, running: 0 } }),
    ['queue_paused'],
    'not what it waits for',
  );
});

t.test('pauses of its queue and its upstream', async (t) => {
  t.match(explainWait(facts({ queuePaused: true })), {
    runnable: false,
    waitingOn: [{ kind: 'queue_paused', name: 'default', untilUs: null }],
  });
  t.match(explainWait(facts({ upstreamPaused: true })).waitingOn, [{ kind: 'upstream_paused', name: 'api' }]);
  t.same(kinds({ queuePaused: true, upstreamPaused: true }), ['queue_paused', 'upstream_paused']);
});

t.test('cooldowns: until their time, and after it while the ramp is full', async (t) => {
  const cooldown = { name: 'api', partitionKey: 'a', untilUs: nowUs + 1, room: 1, reason: 'throttled', status: 429 };
  t.match(explainWait(facts({ cooldowns: [cooldown] })), {
    runnable: false,
    waitingOn: [{ kind: 'cooldown', name: 'api', partitionKey: 'a', untilUs: nowUs + 1, detail: /429/ }],
  });
  const over = { ...cooldown, untilUs: nowUs };
  t.same(kinds({ cooldowns: [over] }), [], 'a probe may go');
  t.match(explainWait(facts({ cooldowns: [{ ...over, room: 0 }] })).waitingOn, [{ kind: 'cooldown', untilUs: null }]);
  t.same(kinds({ cooldowns: [{ ...over, room: null }] }), []);
});

t.test('windows: used up, paused, of limit 0, too full for its cost, or with enough calls in flight', async (t) => {
  t.same(kinds({ windows: [windowOf({}, { cost: 9 })] }), [], 'one is left');
  const { runnable, waitingOn } = explainWait(facts({ windows: [windowOf({}, { cost: 10, partitionKey: 'a' })] }));
  t.equal(runnable, false);
  t.match(waitingOn, [{ kind: 'window', name: 'ten', partitionKey: 'a', detail: '0 of 10 per 60 s are left' }]);
  t.ok(waitingOn[0]!.untilUs! > nowUs + 60 * second && waitingOn[0]!.untilUs! < nowUs + 62 * second);
  t.match(explainWait(facts({ windows: [windowOf({}, { paused: true })] })).waitingOn, [
    { kind: 'window', untilUs: null, detail: /paused/ },
  ]);
  t.match(explainWait(facts({ windows: [windowOf({ limit: 0 })] })).waitingOn, [
    { kind: 'window', untilUs: null, detail: /0/ },
  ]);
  t.match(explainWait(facts({ cost: 3, windows: [windowOf({}, { cost: 8 })] })).waitingOn, [
    { kind: 'window', detail: '2 of 10 per 60 s are left, and it costs 3' },
  ]);
  t.match(explainWait(facts({ cost: 11, windows: [windowOf({})] })).waitingOn, [
    { kind: 'window', untilUs: null, detail: /fail/ },
  ]);
  t.match(explainWait(facts({ windows: [windowOf({ max_in_flight: 2 }, { inFlight: 2 })] })).waitingOn, [
    { kind: 'window', untilUs: null, detail: /in flight/ },
  ]);
  t.same(kinds({ windows: [windowOf({ max_in_flight: 2 }, { inFlight: 1 })] }), []);
  t.same(
    kinds({ windows: [windowOf({ limit: null, max_in_flight: 2 }, { inFlight: 1 })], ahead: { count: 9, cost: 9 } }),
    [],
  );
  t.same(kinds({ windows: [windowOf({}, { stored: null })] }), [], 'one that nothing was admitted through');
});

t.test(
  'a window that those before it will use up is waited for; slots come first where the window is open',
  async (t) => {
    const ahead = { count: 10, cost: 10 };
    const windows = [windowOf({}, { cost: 0 })];
    const full = { live: 1, slots: 4, running: 4 };
    t.match(explainWait(facts({ windows, ahead })), {
      runnable: false,
      position: 11,
      waitingOn: [{ kind: 'window', detail: '10 of 10 per 60 s are left, and 10 before it in its lane go first' }],
    });
    t.same(kinds({ windows, ahead, workers: full }), ['slot', 'window']);
    t.same(
      kinds({ windows: [windowOf({}, { cost: 10 })], ahead, workers: full }),
      ['window'],
      'slots are not the matter',
    );
    t.same(kinds({ windows, ahead: { count: 9, cost: 9 }, workers: full }), ['slot']);
  },
);

t.test('fifo: the one that holds the lane, and the place among all that is unfinished', async (t) => {
  const holder = { jobId: 'j', state: 'scheduled', dueAtUs: nowUs + second } as const;
  t.match(explainWait(facts({ fifo: { before: 3, holder }, ahead: { count: 2, cost: 2 } })), {
    runnable: false,
    position: 4,
    waitingOn: [{ kind: 'fifo', name: 'default', untilUs: nowUs + second, detail: /job j .* scheduled/ }],
  });
  t.match(explainWait(facts({ fifo: { before: 0, holder: null } })), { runnable: true, position: 1 });
});

t.test('what a fuse holds tells which answer blew it, and what to do; so does what is about to be held', async (t) => {
  const fuse = { batchId: 'b-1', jobId: 'j-1', status: 401, at: new Date('2026-01-01T00:00:00.123Z') };
  const { waitingOn } = explainWait(facts({ state: 'held', reason: 'fuse', fuse }));
  t.match(waitingOn, [{ kind: 'held', name: 'fuse', untilUs: null }]);
  for (const part of ['j-1', '401', '2026-01-01T00:00:00.123Z', 'POST /v1/batches/b-1/resume']) {
    t.ok(waitingOn[0]!.detail.includes(part), part);
  }
  const about = explainWait(facts({ fuse }));
  t.equal(about.runnable, false);
  t.same(about.waitingOn, waitingOn);
  t.match(explainWait(facts({ state: 'scheduled', dueAtUs: nowUs + second, fuse })).waitingOn, [
    { kind: 'scheduled' },
    { kind: 'held' },
  ]);
  const other = explainWait(facts({ state: 'held', reason: 'outcome_unknown', fuse }));
  t.match(other.waitingOn, [{ kind: 'held', name: 'outcome_unknown' }], 'held for another reason');
  t.equal(other.waitingOn.length, 1);
});

t.test('scheduled, held, running, ended', async (t) => {
  t.match(explainWait(facts({ state: 'scheduled', dueAtUs: nowUs + second })), {
    runnable: false,
    position: 1,
    waitingOn: [{ kind: 'scheduled', untilUs: nowUs + second, detail: /run_at/ }],
  });
  t.match(explainWait(facts({ state: 'scheduled', dueAtUs: nowUs + second, calls: 2 })).waitingOn, [
    { detail: /backoff/ },
  ]);
  t.match(explainWait(facts({ state: 'scheduled', dueAtUs: nowUs + second, reason: 'missing_secret' })).waitingOn, [
    { detail: /missing_secret/ },
  ]);
  const cooldown = { name: 'api', partitionKey: null, room: 1, reason: 'throttled', status: 429 };
  const due = { state: 'scheduled', dueAtUs: nowUs + second, queuePaused: true } as const;
  t.same(kinds({ ...due, cooldowns: [{ ...cooldown, untilUs: nowUs + 2 * second }] }), [
    'scheduled',
    'queue_paused',
    'cooldown',
  ]);
  t.same(
    kinds({ ...due, cooldowns: [{ ...cooldown, untilUs: nowUs + 1 }] }),
    ['scheduled', 'queue_paused'],
    'over by then',
  );
  t.same(
    kinds({ ...due, queuePaused: false, windows: [windowOf({}, { cost: 10 })] }),
    ['scheduled'],
    'who knows of the window then',
  );
  t.match(explainWait(facts({ state: 'held', reason: 'fuse' })), {
    runnable: false,
    position: 1,
    waitingOn: [{ kind: 'held', name: 'fuse', untilUs: null }],
  });
  const lease = { workerId: 'w', expiresAtUs: nowUs + second };
  t.match(explainWait(facts({ state: 'running', lease })), {
    runnable: false,
    position: null,
    waitingOn: [{ kind: 'lease', name: 'w', untilUs: nowUs + second, detail: /under way/ }],
  });
  t.match(explainWait(facts({ state: 'running', lease: { ...lease, expiresAtUs: nowUs } })).waitingOn, [
    { detail: /lost/ },
  ]);
  t.match(explainWait(facts({ state: 'failed', reason: 'attempts_exhausted' })), {
    runnable: false,
    position: null,
    waitingOn: [{ kind: 'ended', name: 'failed', detail: /attempts_exhausted/ }],
  });
  t.match(explainWait(facts({ state: 'succeeded' })).waitingOn, [{ kind: 'ended', name: 'succeeded' }]);
});

t.test(
  'a window tells a time before which it can not have admitted what is needed, and soon after which it can',
  (t) => {
    const stepUs = 10_000;
    const definition = fc.record({
      limit: fc.integer({ min: 1, max: 6 }),
      per: fc.integer({ min: 1, max: 3 }),
      algorithm: fc.constantFrom('sliding_window' as const, 'fixed_window' as const, 'token_bucket' as const),
      burst: fc.integer({ min: 0, max: 4 }),
    });
    fc.assert(
      fc.property(
        definition,
        fc.integer({ min: 0, max: 6 }),
        fc.integer({ min: 1, max: 20 }),
        (defined, before, need) => {
          const rule = ruleOf(defined);
          let state = rollWindow(emptyWindow(rule, nowUs), rule, nowUs);
          state = chargeWindow(state, rule, nowUs, Math.min(before, windowRoom(state, rule)));
          const told = earliestAdmissionUs(state, rule, nowUs, need)!;
          // Whatever there is room for is taken at the next step, one by one.
          let atUs = nowUs;
          for (let left = need; left > 0; ) {
            state = rollWindow(state, rule, atUs);
            const taken = Math.min(left, windowRoom(state, rule));
            state = chargeWindow(state, rule, atUs, taken);
            left -= taken;
            if (left > 0) atUs += stepUs;
          }
          // A sliding window counts for a permit, the slack and up to two sub-windows longer than its period, in each round.
          const rounds = Math.ceil(need / Math.max(1, rule.limit!)) + 1;
          const latest = told + rounds * (65_000 + 2 * rule.per * 10_000 + stepUs);
          return told <= atUs && atUs <= latest;
        },
      ),
      { numRuns: 500 },
    );
    t.end();
  },
);
