import fc from 'fast-check';
import t from 'tap';
import type { Upstream } from '../../src/domain/definitions.ts';
import { type CallResult, cancelledCode, type UpstreamAnswer } from '../../src/domain/outcome.ts';
import { decideReconciliation } from '../../src/domain/reconcile.ts';
import {
  asksFirst,
  decideSettlement,
  type SettledCall,
  type SettledJob,
  type Settlement,
} from '../../src/domain/settle.ts';
import { isLegalTransition } from '../../src/domain/state-machine.ts';
import { claimedJob, upstream } from '../support/claimed-job.ts';

const context = { random01: 0.5, nowWallMs: Date.parse('2026-01-01T00:00:00Z') };
const reconcile = { path: '/charges?key={key}' };
const askable = (more: Record<string, unknown> = {}) => upstream({ reconcile, ...more });
const unknown = { outcomeUnknown: true, firstSentAgeMs: 1_000, attemptsUsed: 1 };

function answered(status: number, headers: UpstreamAnswer['headers'] = {}): CallResult {
  const answer = { status, headers, excerpt: '', truncated: false, sha256: '00'.repeat(32) };
  return { kind: 'answered', answer, sentAfterMs: 5 };
}

function noAnswer(reason: 'timeout' | 'reset' | 'aborted' = 'reset'): CallResult {
  return { kind: 'no_answer', reason, error: `it was a ${reason}`, sentAfterMs: 5 };
}

const refusedConnection: CallResult = { kind: 'not_sent', code: 'ECONNREFUSED', error: 'connect ECONNREFUSED' };

function ask(
  result: SettledCall,
  job: Partial<SettledJob> = {},
  definition: Upstream = askable(),
  random = context,
): Settlement {
  return decideReconciliation(claimedJob({ ...unknown, ...job }), definition, result, random);
}

const held = { kind: 'held', reason: 'outcome_unknown' } as const;
const ready = { kind: 'ready' } as const;
const scheduled = (delayMs: number) => ({ kind: 'scheduled', delayMs, reason: null }) as const;
const exhausted = { kind: 'done', state: 'failed', reason: 'attempts_exhausted', evidence: null } as const;

t.test(
  'asked first is where an outcome is unknown, or the key may be forgotten, and the upstream can be',
  async (t) => {
    const known = { outcomeUnknown: false, firstSentAgeMs: 3_600_000 };
    const hour = { key_ttl_s: 3600 };
    t.equal(asksFirst({ ...known, outcomeUnknown: true }, askable()), true);
    t.equal(asksFirst({ ...known, outcomeUnknown: true }, upstream()), false, 'nobody to ask');
    t.equal(asksFirst(known, askable(hour)), false, 'on the edge');
    t.equal(asksFirst({ ...known, firstSentAgeMs: 3_600_001 }, askable(hour)), true, 'beyond');
    t.equal(asksFirst({ ...known, firstSentAgeMs: 3_600_001 }, upstream(hour)), false);
    t.equal(asksFirst({ outcomeUnknown: false, firstSentAgeMs: null }, askable({ key_ttl_s: 1 })), false);
  },
);

t.test('applied ends the job as succeeded by what the upstream said, and charges nothing', async (t) => {
  t.same(ask(answered(200), { attemptsUsed: 5, reconcileFailures: 7 }), {
    next: { kind: 'done', state: 'succeeded', reason: null, evidence: 'reconciled' },
    outcome: null,
    charge: 'none',
    throttle: null,
    retryAfterMs: null,
    retryAfterCapped: false,
    answeredWithoutThrottle: true,
    mayHaveHadEffect: false,
    outcomeUnknown: false,
    reconciliation: 'applied',
    error: null,
  });
});

t.test(
  'absent makes the outcome known and the job due at once, whatever on_unknown and the age of its key',
  async (t) => {
    for (const definition of [askable(), askable({ on_unknown: 'hold' }), askable({ key_ttl_s: 1 })]) {
      const settlement = ask(answered(404), {}, definition);
      t.same(settlement.next, ready);
      t.equal(settlement.outcomeUnknown, false);
      t.equal(settlement.reconciliation, 'absent');
      t.equal(settlement.charge, 'none');
      t.equal(settlement.outcome, null);
    }
  },
);

t.test('absent, where the call that did not work was the last: the attempts are exhausted', async (t) => {
  t.same(ask(answered(404), { attemptsUsed: 5 }).next, exhausted);
  t.same(ask(answered(404), { attemptsUsed: 4 }).next, ready, 'one is left');
  t.same(ask(answered(404), { attemptsUsed: 1, maxAttempts: 1 }).next, exhausted, "the item's own maximum");
  t.same(ask(answered(200), { attemptsUsed: 5 }).next.kind, 'done', 'applied needs no attempt');
});

t.test('which statuses say what is the definition’s', async (t) => {
  const definition = upstream({ reconcile: { ...reconcile, applied_when: [204, 302], absent_when: [200, 410] } });
  const verdict = (status: number) => ask(answered(status), {}, definition).reconciliation;
  t.same([204, 302, 200, 410, 404, 500].map(verdict), ['applied', 'applied', 'absent', 'absent', 'unclear', 'unclear']);
});

t.test('an answer that the fuse lists holds the job, whose outcome is as unknown as before', async (t) => {
  const settlement = ask(answered(401), { reconcileFailures: 2, attemptsUsed: 1 });
  t.match(settlement, {
    next: { kind: 'held', reason: 'fuse' },
    reconciliation: 'unclear',
    outcome: null,
    charge: 'none',
    outcomeUnknown: true,
    mayHaveHadEffect: false,
  });
  t.type(settlement.error, 'string');
  const telling = upstream({ reconcile: { ...reconcile, absent_when: [401] } });
  t.equal(ask(answered(401), {}, telling).reconciliation, 'absent', 'an answer that tells something is heard');
});

t.test('any other answer, and none, is asked again after a backoff and charges nothing', async (t) => {
  const ends: SettledCall[] = [
    answered(500),
    answered(403),
    answered(302),
    noAnswer('timeout'),
    noAnswer('reset'),
    refusedConnection,
    { kind: 'lease_expired' },
  ];
  for (const end of ends) {
    const settlement = ask(end);
    t.same(settlement.next, scheduled(250), JSON.stringify(end));
    t.equal(settlement.reconciliation, 'unclear');
    t.equal(settlement.charge, 'none');
    t.equal(settlement.outcome, null);
    t.equal(settlement.outcomeUnknown, true, 'still');
    t.equal(settlement.mayHaveHadEffect, false);
    t.type(settlement.error, 'string');
  }
  t.same(ask(answered(500), { reconcileFailures: 2, attemptsUsed: 0 }).next, scheduled(1000), 'by failures in a row');
  t.same(ask(answered(500, { 'retry-after': '7' })).next, scheduled(7000), 'as it was told');
  t.same(ask(noAnswer('aborted')).next, ready, 'handed back by a drain');
  t.equal(ask(noAnswer('aborted')).reconciliation, 'unclear', 'it was sent, so it is on record');
});

t.test('what tells nothing too often in a row is held for a person: max_throttles is the measure', async (t) => {
  const three = askable({ retry: { max_throttles: 3 } });
  for (const end of [answered(500), noAnswer(), noAnswer('aborted'), answered(429), refusedConnection]) {
    t.not(ask(end, { reconcileFailures: 2 }, three).next.kind, 'held', 'the third');
    t.same(ask(end, { reconcileFailures: 3 }, three).next, held, 'the fourth');
  }
  t.same(ask(answered(404), { reconcileFailures: 3 }, three).next, ready, 'an answer is an answer');
});

t.test('429, and 503 that names a time, is a throttle: a cooldown, and the job keeps its place', async (t) => {
  const settlement = ask(answered(429, { 'retry-after': '30' }));
  t.same(settlement.next, ready);
  t.same(settlement.throttle, { delayMs: 30_000, capped: false, status: 429, header: '30' });
  t.equal(settlement.reconciliation, 'throttled');
  t.equal(settlement.charge, 'none', 'no throttle of the job');
  t.equal(settlement.answeredWithoutThrottle, false);
  t.equal(settlement.outcomeUnknown, true);
  t.same(ask(answered(429)).throttle, { delayMs: null, capped: false, status: 429, header: null });
  t.equal(ask(answered(503, { 'retry-after': '2' })).throttle?.delayMs, 2000);
  t.equal(ask(answered(503)).throttle, null, 'without a time it is a failure');
  const gone = upstream({ reconcile: { ...reconcile, absent_when: [503, 429] } });
  t.equal(ask(answered(503, { 'retry-after': '2' }), {}, gone).reconciliation, 'absent', 'listed');
  t.equal(ask(answered(429), {}, gone).reconciliation, 'throttled', '429 is always a throttle');
});

t.test('what surely never left through us is as if it had not been claimed', async (t) => {
  for (const end of [
    { kind: 'permit_expired' } as const,
    { kind: 'not_sent', code: cancelledCode, error: 'given up' } as const,
  ]) {
    const settlement = ask(end, { reconcileFailures: 100 });
    t.same(settlement.next, ready);
    t.equal(settlement.reconciliation, null, 'nothing was asked');
    t.equal(settlement.outcomeUnknown, true);
  }
});

t.test('a job whose call got no answer is not held but asked about, also after its last attempt', async (t) => {
  const settle = (job: Partial<SettledJob>, definition: Upstream, end: SettledCall = noAnswer()) =>
    decideSettlement(claimedJob(job), definition, end, context).next;
  t.same(settle({}, askable({ on_unknown: 'hold' })), scheduled(250));
  t.same(settle({}, upstream({ on_unknown: 'hold' })), held, 'the control');
  t.same(settle({ attemptsUsed: 4 }, askable()), scheduled(4000));
  t.same(settle({ attemptsUsed: 4 }, upstream()), exhausted, 'the control');
  t.same(settle({}, askable(), { kind: 'lease_expired' }), ready);
  const late = { firstSentAgeMs: 2000 };
  t.same(settle(late, askable({ key_ttl_s: 1 }), answered(500)).kind, 'scheduled', 'asked before it is sent that late');
  t.same(settle(late, upstream({ key_ttl_s: 1 }), answered(500)), held, 'the control');
  t.same(settle(late, askable({ key_ttl_s: 1 }), answered(429)), ready);
  t.same(settle(late, upstream({ key_ttl_s: 1 }), answered(429)), held, 'the control');
  t.same(settle({ attemptsUsed: 4 }, askable(), answered(500)), exhausted, 'a known failure is no reason to ask');
});

const anyEnd: fc.Arbitrary<SettledCall> = fc.oneof(
  fc.constantFrom<SettledCall>(
    { kind: 'permit_expired' },
    { kind: 'lease_expired' },
    refusedConnection,
    { kind: 'not_sent', code: cancelledCode, error: 'given up' },
    noAnswer('timeout'),
    noAnswer('reset'),
    noAnswer('aborted'),
  ),
  fc
    .tuple(fc.integer({ min: 100, max: 999 }), fc.option(fc.constantFrom('0', '3', 'x'), { nil: undefined }))
    .map(([status, header]) => answered(status, { 'retry-after': header })),
);

t.test('property: asking spends nothing, tells the truth about what is known, and every move is legal', async () => {
  fc.assert(
    fc.property(
      fc.record({
        attemptsUsed: fc.nat(20),
        reconcileFailures: fc.nat(120),
        maxAttempts: fc.option(fc.integer({ min: 1, max: 20 })),
        firstSentAgeMs: fc.nat(200_000_000),
        outcomeUnknown: fc.boolean(),
      }),
      fc
        .record({ max_throttles: fc.nat(120), base_ms: fc.integer({ min: 1, max: 5000 }) })
        .map((retry) => askable({ retry })),
      anyEnd,
      fc.double({ min: 0, max: 1, noNaN: true, maxExcluded: true }),
      (job, definition, end, random01) => {
        const settlement = ask(end, job, definition, { ...context, random01 });
        const { next, reconciliation } = settlement;
        const rules: Record<string, boolean> = {
          'nothing is charged and no attempt is recorded': settlement.charge === 'none' && settlement.outcome === null,
          'every move is legal': isLegalTransition('running', next.kind === 'done' ? next.state : next.kind),
          'an outcome becomes known by a verdict alone':
            settlement.outcomeUnknown ===
            (job.outcomeUnknown && reconciliation !== 'applied' && reconciliation !== 'absent'),
          'success is applied': (next.kind === 'done' && next.state === 'succeeded') === (reconciliation === 'applied'),
          'what was sent is on record':
            reconciliation !== null ||
            end.kind === 'permit_expired' ||
            (end.kind === 'not_sent' && end.code === cancelledCode),
          'questions end':
            next.kind === 'held' ||
            (reconciliation !== 'unclear' && reconciliation !== 'throttled') ||
            job.reconcileFailures < definition.retry.max_throttles,
        };
        for (const [rule, holds] of Object.entries(rules)) if (!holds) throw new Error(`broken: ${rule}`);
      },
    ),
    { numRuns: 1000 },
  );
});
