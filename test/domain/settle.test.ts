import fc from 'fast-check';
import t from 'tap';
import type { Upstream } from '../../src/domain/definitions.ts';
import { type CallResult, cancelledCode, type UpstreamAnswer } from '../../src/domain/outcome.ts';
import {
  decideSettlement,
  fuseReason,
  keyMayBeForgotten,
  onUnknownOf,
  refuseLateResend,
  type SettledCall,
  type SettledJob,
  type Settlement,
} from '../../src/domain/settle.ts';
import { isLegalTransition } from '../../src/domain/state-machine.ts';
import { claimedJob, upstream } from '../support/claimed-job.ts';

const context = { random01: 0.5, nowWallMs: Date.parse('2026-01-01T00:00:00Z') };

type Headers = UpstreamAnswer['headers'];
type Answered = Extract<CallResult, { kind: 'answered' }>;

function answered(
  status: number,
  headers: Headers = {},
  fault: Pick<Answered, 'bodyError' | 'bodyTimedOut'> = {},
): Answered {
  const answer = { status, headers, excerpt: '', truncated: false, sha256: '00'.repeat(32) };
  return { kind: 'answered', answer, sentAfterMs: 5, ...fault };
}

function noAnswer(reason: 'timeout' | 'reset' | 'aborted' = 'reset'): CallResult {
  return { kind: 'no_answer', reason, error: `it was a ${reason}`, sentAfterMs: 5 };
}

const refusedConnection: CallResult = { kind: 'not_sent', code: 'ECONNREFUSED', error: 'connect ECONNREFUSED' };

function settle(result: SettledCall, job: Partial<SettledJob> = {}, definition: Upstream = upstream()): Settlement {
  return decideSettlement(claimedJob(job), definition, result, context);
}

const done = (state: 'succeeded' | 'failed', reason: string | null, evidence: 'response' | null) =>
  ({ kind: 'done', state, reason, evidence }) as const;
const succeeded = done('succeeded', null, 'response');
const rejected = done('failed', 'rejected_by_upstream', 'response');
const exhausted = done('failed', 'attempts_exhausted', null);
const throttledTooLong = done('failed', 'throttled_too_long', null);
const ready = { kind: 'ready' } as const;
const scheduled = (delayMs: number) => ({ kind: 'scheduled', delayMs, reason: null }) as const;
const held = { kind: 'held', reason: 'outcome_unknown' } as const;
const blown = { kind: 'held', reason: 'fuse' } as const;

/** base_ms 500, first failure, random 0.5. */
const firstBackoff = scheduled(250);

t.test('2xx succeeds by its response and clears an unknown outcome', async (t) => {
  for (const status of [200, 201, 204, 299]) {
    t.same(settle(answered(status), { outcomeUnknown: true, attemptsUsed: 4 }), {
      next: succeeded,
      outcome: 'success',
      charge: 'attempt',
      throttle: null,
      retryAfterMs: null,
      retryAfterCapped: false,
      answeredWithoutThrottle: true,
      mayHaveHadEffect: true,
      outcomeUnknown: false,
      reconciliation: null,
      error: null,
    });
  }
});

t.test('Retry-After on a success is ignored', async (t) => {
  const settlement = settle(answered(200, { 'retry-after': '60' }));
  t.same(settlement.next, succeeded);
  t.equal(settlement.throttle, null);
  t.equal(settlement.retryAfterMs, null);
});

t.test('other 4xx and all 3xx fail at once', async (t) => {
  for (const status of [300, 304, 400, 402, 403, 404, 409, 410, 413, 418, 422, 451, 499]) {
    const settlement = settle(answered(status));
    t.same(settlement.next, rejected, String(status));
    t.equal(settlement.outcome, 'rejected');
    t.equal(settlement.charge, 'attempt');
    t.equal(settlement.answeredWithoutThrottle, true);
  }
});

t.test('401 blows the fuse: the job is held and has spent nothing, for the call was refused at the door', async (t) => {
  t.same(settle(answered(401), { attemptsUsed: 4, outcomeUnknown: true }), {
    next: blown,
    outcome: 'rejected',
    charge: 'none',
    throttle: null,
    retryAfterMs: null,
    retryAfterCapped: false,
    answeredWithoutThrottle: true,
    mayHaveHadEffect: false,
    outcomeUnknown: true,
    reconciliation: null,
    error: null,
  });
});

t.test('which answers blow the fuse is the definition’s', async (t) => {
  const definition = upstream({ fuse: { statuses: [403, 500, 503] } });
  const next = (status: number, headers: Headers = {}) => settle(answered(status, headers), {}, definition).next;
  t.same(
    [403, 500, 503].map((status) => next(status)),
    [blown, blown, blown],
    'also one that would be tried again',
  );
  t.same(next(401), rejected, 'no more than these');
  t.same(next(503, { 'retry-after': '5' }), blown, 'also where it names a time');
  t.same(settle(answered(401), {}, upstream({ fuse: { statuses: [] } })).next, rejected, 'none');
  t.same(settle(answered(401), {}, upstream({ retry_statuses: [401] })).next, blown, 'before retry_statuses');
  const expected = upstream({ success_statuses: [200, 401] });
  t.same(settle(answered(401), {}, expected).next, succeeded, 'a success is a success');
  const throttled = settle(answered(429), {}, upstream({ fuse: { statuses: [429] } }));
  t.same(throttled.next, ready, '429 is always a throttle');
});

t.test('an answer that blows the fuse and may come from behind the door counts as a call with an effect', async (t) => {
  const definition = upstream({ fuse: { statuses: [401, 402, 403, 407, 500] } });
  const mayHave = (status: number) => settle(answered(status), {}, definition).mayHaveHadEffect;
  t.same([401, 403, 407].map(mayHave), [false, false, false]);
  t.same([402, 500].map(mayHave), [true, true]);
});

t.test('a redirect is kept with where it pointed', async (t) => {
  const settlement = settle(answered(302, { location: 'http://169.254.169.254/' }));
  t.equal(settlement.error, 'answered 302 with Location http://169.254.169.254/; redirects are not followed');
  t.equal(settle(answered(304)).error, null);
  t.equal(settle(answered(400, { location: '/x' })).error, null, 'only a redirect redirects');
});

t.test('408, 425 and 5xx are retried after a backoff and spend an attempt', async (t) => {
  for (const status of [408, 425, 500, 501, 502, 503, 504, 599]) {
    const settlement = settle(answered(status));
    t.same(settlement.next, firstBackoff, String(status));
    t.equal(settlement.outcome, 'error');
    t.equal(settlement.charge, 'attempt');
    t.equal(settlement.throttle, null);
    t.equal(settlement.mayHaveHadEffect, true);
    t.equal(settlement.outcomeUnknown, false);
  }
});

t.test('each failure doubles the backoff, throttles do not', async (t) => {
  t.same(settle(answered(500), { attemptsUsed: 2, throttles: 50 }).next, scheduled(1000));
  t.same(settle(answered(500), { attemptsUsed: 0, throttles: 50 }).next, firstBackoff);
});

t.test('a status beyond 599 is nobody’s retry', async (t) => {
  t.same(settle(answered(600)).next, rejected);
  t.same(settle(answered(999)).next, rejected);
});

t.test('attempts end at max_attempts: of the item, else of the upstream', async (t) => {
  t.same(settle(answered(500), { attemptsUsed: 3 }).next, scheduled(2000), 'the fourth of five');
  t.same(settle(answered(500), { attemptsUsed: 4 }).next, exhausted, 'the fifth of five');
  t.same(settle(answered(500), { attemptsUsed: 0, maxAttempts: 1 }).next, exhausted);
  t.same(settle(answered(500), { attemptsUsed: 6, maxAttempts: 8 }).next.kind, 'scheduled');
  const two = upstream({ retry: { max_attempts: 2 } });
  t.same(settle(answered(500), { attemptsUsed: 1 }, two).next, exhausted);
  t.same(
    settle(answered(500), { attemptsUsed: 1, maxAttempts: null }, upstream()).next.kind,
    'scheduled',
    'the control',
  );
});

t.test('429 waits in its place, spends a throttle, and tells the cooldown', async (t) => {
  t.same(settle(answered(429, { 'retry-after': '30' }), { throttles: 3, attemptsUsed: 4 }), {
    next: ready,
    outcome: 'throttled',
    charge: 'throttle',
    throttle: { delayMs: 30_000, capped: false, status: 429, header: '30' },
    retryAfterMs: 30_000,
    retryAfterCapped: false,
    answeredWithoutThrottle: false,
    mayHaveHadEffect: false,
    outcomeUnknown: false,
    reconciliation: null,
    error: null,
  });
});

t.test(
  '429 without a usable Retry-After, or with 0, leaves the time to the streak; the two are told apart',
  async (t) => {
    const absent = settle(answered(429));
    t.same(absent.throttle, { delayMs: null, capped: false, status: 429, header: null });
    t.equal(absent.retryAfterMs, null);
    const garbage = settle(answered(429, { 'retry-after': 'soon' }));
    t.same(garbage.throttle, { delayMs: null, capped: false, status: 429, header: 'soon' });
    t.equal(garbage.retryAfterMs, null, 'ignored');
    const zero = settle(answered(429, { 'retry-after': '0' }));
    t.same(zero.throttle, { delayMs: null, capped: false, status: 429, header: '0' });
    t.equal(zero.retryAfterMs, 0, 'honoured');
    const past = settle(answered(429, { 'retry-after': 'Wed, 31 Dec 2025 23:59:55 GMT' }));
    t.equal(past.throttle?.delayMs, null);
    t.equal(past.retryAfterMs, 0);
  },
);

t.test('a throttle honours the date form, two headers, and the answer’s own Date', async (t) => {
  const delayOf = (headers: Headers) => settle(answered(429, headers)).throttle?.delayMs;
  t.equal(delayOf({ 'retry-after': 'Thu, 01 Jan 2026 00:02:00 GMT' }), 120_000);
  t.equal(delayOf({ 'retry-after': ['1', '30'] }), 30_000);
  t.equal(delayOf({ 'retry-after': 'Wed, 31 Dec 2025 23:59:00 GMT', date: 'Wed, 31 Dec 2025 23:58:00 GMT' }), 60_000);
  t.equal(delayOf({ 'retry-after': '2.0' }), 2000);
});

t.test('a throttle is capped by retry_after_cap_s and says so', async (t) => {
  const capped = settle(answered(429, { 'retry-after': '1771404540' }));
  t.same(capped.throttle, { delayMs: 86_400_000, capped: true, status: 429, header: '1771404540' });
  t.equal(capped.retryAfterCapped, true);
  const shorter = settle(answered(429, { 'retry-after': '61' }), {}, upstream({ retry: { retry_after_cap_s: 60 } }));
  t.equal(shorter.throttle?.delayMs, 60_000);
  t.equal(shorter.throttle?.capped, true);
});

t.test('the throttle after max_throttles ends the job, and its cooldown still counts', async (t) => {
  const four = upstream({ retry: { max_throttles: 4 } });
  t.same(settle(answered(429), { throttles: 3 }, four).next, ready, 'the fourth');
  const fifth = settle(answered(429, { 'retry-after': '9' }), { throttles: 4 }, four);
  t.same(fifth.next, throttledTooLong);
  t.equal(fifth.charge, 'throttle');
  t.equal(fifth.throttle?.delayMs, 9000);
  t.same(settle(answered(429), { throttles: 0 }, upstream({ retry: { max_throttles: 0 } })).next, throttledTooLong);
});

t.test(
  'throttles never spend attempts: a job survives any number below its own budget (garrytan/gstack#1337)',
  async (t) => {
    const settlement = settle(answered(429, { 'retry-after': '10' }), {
      throttles: 99,
      maxAttempts: 1,
      attemptsUsed: 0,
    });
    t.same(settlement.next, ready);
    t.equal(settlement.charge, 'throttle');
  },
);

t.test('503 with a Retry-After above 0 is a throttle, else a failure with backoff', async (t) => {
  for (const header of ['1', 'Thu, 01 Jan 2026 00:00:01 GMT', '0.5']) {
    const settlement = settle(answered(503, { 'retry-after': header }));
    t.same(settlement.next, ready, header);
    t.equal(settlement.charge, 'throttle');
    t.equal(settlement.throttle?.status, 503);
  }
  for (const header of ['0', 'soon', '-1', 'Wed, 31 Dec 2025 23:59:55 GMT']) {
    const settlement = settle(answered(503, { 'retry-after': header }));
    t.same(settlement.next, firstBackoff, header);
    t.equal(settlement.charge, 'attempt');
    t.equal(settlement.throttle, null);
    t.equal(settlement.answeredWithoutThrottle, true);
  }
});

t.test(
  '413 is retried only with a Retry-After; 400 not even then (sindresorhus/got#508, sindresorhus/ky#598)',
  async (t) => {
    t.same(settle(answered(413)).next, rejected);
    t.same(settle(answered(413, { 'retry-after': 'soon' })).next, rejected, 'not of the grammar: as absent');
    t.same(settle(answered(413, { 'retry-after': '1' })).next, scheduled(1000));
    t.same(settle(answered(413, { 'retry-after': '0' })).next, firstBackoff);
    t.same(settle(answered(413, { 'retry-after': '1' }), { attemptsUsed: 4 }).next, exhausted);
    t.same(settle(answered(400, { 'retry-after': '1' })).next, rejected);
    t.equal(settle(answered(400, { 'retry-after': '1' })).retryAfterMs, 1000, 'seen, and on record');
  },
);

t.test('a failure with Retry-After waits as told instead of its backoff; 0 leaves the backoff', async (t) => {
  for (const status of [408, 413, 500, 502, 504]) {
    const told = settle(answered(status, { 'retry-after': '7' }));
    t.same(told.next, scheduled(7000), String(status));
    t.equal(told.charge, 'attempt');
    t.equal(told.throttle, null, 'it closes nothing');
    t.equal(told.retryAfterMs, 7000);
    t.same(settle(answered(status, { 'retry-after': '0' })).next, firstBackoff);
  }
});

t.test('success_statuses replaces 2xx', async (t) => {
  const definition = upstream({ success_statuses: [200, 409] });
  t.same(settle(answered(409), {}, definition).next, succeeded);
  t.same(settle(answered(200), {}, definition).next, succeeded);
  t.same(settle(answered(201), {}, definition).next, rejected);
  const asked = upstream({ success_statuses: [503] });
  t.same(settle(answered(503, { 'retry-after': '5' }), {}, asked).next, succeeded);
});

t.test('retry_statuses replaces 408, 425, 5xx and 413', async (t) => {
  const definition = upstream({ retry_statuses: [409, 500] });
  t.same(settle(answered(409), {}, definition).next, firstBackoff);
  t.same(settle(answered(409, { 'retry-after': '3' }), {}, definition).next, scheduled(3000), 'like a 5xx');
  t.same(settle(answered(500), {}, definition).next, firstBackoff);
  for (const status of [408, 425, 502]) t.same(settle(answered(status), {}, definition).next, rejected, String(status));
  t.same(settle(answered(413, { 'retry-after': '1' }), {}, definition).next, rejected);
  t.same(
    settle(answered(413), {}, upstream({ retry_statuses: [413] })).next,
    firstBackoff,
    'listed, it needs no header',
  );
});

t.test('429 is a throttle whatever the lists say, network failures are retried whatever they say', async (t) => {
  const definition = upstream({ success_statuses: [429], retry_statuses: [] });
  t.equal(settle(answered(429), {}, definition).charge, 'throttle');
  t.equal(settle(answered(503, { 'retry-after': '1' }), {}, definition).charge, 'throttle');
  t.same(settle(answered(503), {}, definition).next, rejected, 'the control');
  t.same(settle(refusedConnection, {}, definition).next, firstBackoff);
  t.same(settle(noAnswer('timeout'), {}, definition).next, firstBackoff);
});

t.test('a call that surely never left spends an attempt and leaves the outcome known', async (t) => {
  t.same(settle(refusedConnection), {
    next: firstBackoff,
    outcome: 'not_sent',
    charge: 'attempt',
    throttle: null,
    retryAfterMs: null,
    retryAfterCapped: false,
    answeredWithoutThrottle: false,
    mayHaveHadEffect: false,
    outcomeUnknown: false,
    reconciliation: null,
    error: 'connect ECONNREFUSED',
  });
  t.same(settle(refusedConnection, { attemptsUsed: 4 }).next, exhausted);
  t.same(settle(refusedConnection, {}, upstream({ on_unknown: 'hold' })).next, firstBackoff, 'nothing is unknown');
  t.equal(settle(refusedConnection, { outcomeUnknown: true }).outcomeUnknown, true, 'nor explained');
});

t.test('a call that we called off before the write spends nothing and is no attempt', async (t) => {
  const settlement = settle({ kind: 'not_sent', code: cancelledCode, error: 'given up' }, { attemptsUsed: 4 });
  t.same(settlement.next, ready);
  t.equal(settlement.outcome, null);
  t.equal(settlement.charge, 'none');
});

t.test('an expired permit spends nothing and is no attempt', async (t) => {
  t.same(settle({ kind: 'permit_expired' }, { attemptsUsed: 4, throttles: 100, outcomeUnknown: true }), {
    next: ready,
    outcome: null,
    charge: 'none',
    throttle: null,
    retryAfterMs: null,
    retryAfterCapped: false,
    answeredWithoutThrottle: false,
    mayHaveHadEffect: false,
    outcomeUnknown: true,
    reconciliation: null,
    error: null,
  });
});

t.test('sent and unanswered is unknown: resent by default, with the same budget', async (t) => {
  for (const reason of ['timeout', 'reset'] as const) {
    t.same(settle(noAnswer(reason)), {
      next: firstBackoff,
      outcome: 'unknown',
      charge: 'attempt',
      throttle: null,
      retryAfterMs: null,
      retryAfterCapped: false,
      answeredWithoutThrottle: false,
      mayHaveHadEffect: true,
      outcomeUnknown: true,
      reconciliation: null,
      error: `it was a ${reason}`,
    });
    t.same(settle(noAnswer(reason), { attemptsUsed: 4 }).next, exhausted);
  }
});

t.test('what a drain or a lost lease left unanswered is due at once, and charged since it had left', async (t) => {
  for (const result of [noAnswer('aborted'), { kind: 'lease_expired' } as const]) {
    const settlement = settle(result);
    t.same(settlement.next, ready, result.kind);
    t.equal(settlement.outcome, 'unknown');
    t.equal(settlement.charge, 'attempt');
    t.equal(settlement.outcomeUnknown, true);
    t.equal(settlement.mayHaveHadEffect, true);
    t.same(settle(result, { attemptsUsed: 4 }).next, exhausted, 'poison that kills its worker comes to an end');
  }
});

t.test('on_unknown hold parks the job at once, whatever is left of its budget', async (t) => {
  const hold = upstream({ on_unknown: 'hold' });
  for (const result of [noAnswer(), noAnswer('timeout'), noAnswer('aborted'), { kind: 'lease_expired' } as const]) {
    t.same(settle(result, {}, hold).next, held);
    t.same(settle(result, { attemptsUsed: 4 }, hold).next, held);
  }
  t.same(settle(answered(500), {}, hold).next, firstBackoff, 'an answer is not unknown');
});

t.test('hold is the default only where nothing deduplicates an effect', async (t) => {
  const keyless = upstream({ idempotency_header: null });
  const table = (['GET', 'POST', 'PUT', 'PATCH', 'DELETE'] as const).map((method) => onUnknownOf(keyless, method));
  t.same(table, ['resend', 'hold', 'resend', 'hold', 'resend']);
  for (const method of ['GET', 'POST', 'PUT', 'PATCH', 'DELETE'] as const) {
    t.equal(onUnknownOf(upstream(), method), 'resend');
    t.equal(onUnknownOf(upstream({ idempotency_header: null, on_unknown: 'resend' }), method), 'resend');
    t.equal(onUnknownOf(upstream({ on_unknown: 'hold' }), method), 'hold');
  }
  t.same(settle(noAnswer(), { method: 'POST' }, keyless).next, held);
  t.same(settle(noAnswer(), { method: 'PUT' }, keyless).next, firstBackoff);
});

t.test('nothing is sent again later than the upstream remembers the key', async (t) => {
  const hour = upstream({ key_ttl_s: 3600 });
  const edge = 3_600_000 - 250;
  t.same(settle(noAnswer(), { firstSentAgeMs: edge }, hour).next, firstBackoff, 'on the edge');
  t.same(settle(noAnswer(), { firstSentAgeMs: edge + 1 }, hour).next, held, 'beyond');
  t.same(settle(answered(500), { firstSentAgeMs: edge + 1 }, hour).next, held, 'any other resend too');
  t.same(settle(refusedConnection, { firstSentAgeMs: edge + 1 }, hour).next, held);
  t.same(settle(answered(429), { firstSentAgeMs: 3_600_001 }, hour).next, held);
  t.same(settle(answered(429, { 'retry-after': '60' }), { firstSentAgeMs: 3_550_000 }, hour).next, held, 'by its end');
  t.same(settle(answered(500, { 'retry-after': '7200' }), {}, hour).next, held, 'this very call was the first');
  t.same(settle(noAnswer('aborted'), { firstSentAgeMs: 3_600_001 }, hour).next, held);
});

t.test('where every earlier answer was a throttle, nothing was done and no key can be forgotten', async (t) => {
  const hour = upstream({ key_ttl_s: 3600 });
  t.same(settle(answered(429, { 'retry-after': '7200' }), { firstSentAgeMs: null }, hour).next, ready);
  t.same(settle(refusedConnection, { firstSentAgeMs: null }, upstream({ key_ttl_s: 1 })).next, firstBackoff);
});

t.test('a job that waited too long after its settlement is held and not sent', async (t) => {
  const hour = upstream({ key_ttl_s: 3600 });
  t.equal(refuseLateResend(claimedJob({ firstSentAgeMs: 3_600_000 }), hour), null);
  const refused = refuseLateResend(claimedJob({ firstSentAgeMs: 3_600_001 }), hour);
  t.same(refused?.next, held);
  t.equal(refused?.outcome, null, 'no attempt was made');
  t.equal(keyMayBeForgotten({ firstSentAgeMs: null }, hour, 1e12), false);
});

t.test('an answer that comes after an unknown outcome explains it only where it is a success', async (t) => {
  t.equal(settle(answered(200), { outcomeUnknown: true }).outcomeUnknown, false);
  t.equal(settle(answered(500), { outcomeUnknown: true }).outcomeUnknown, true);
  t.equal(settle(answered(422), { outcomeUnknown: true }).outcomeUnknown, true);
  t.equal(settle(answered(429), { outcomeUnknown: true }).outcomeUnknown, true);
});

t.test(
  'a success whose body did not end by the deadline is a timeout (nodejs/undici#1987, workos/workos-node#1679)',
  async (t) => {
    const dripping = answered(200, {}, { bodyError: 'body not over within 2000 ms', bodyTimedOut: true });
    const settlement = settle(dripping);
    t.equal(settlement.outcome, 'timeout');
    t.same(settlement.next, firstBackoff);
    t.equal(settlement.outcomeUnknown, true);
    t.equal(settlement.error, 'body not over within 2000 ms');
    t.same(settle(dripping, {}, upstream({ on_unknown: 'hold' })).next, held);
  },
);

t.test(
  'with the head of a refusal, a failure or a throttle, the status decides whatever became of the body',
  async (t) => {
    const fault = { bodyError: 'body not over within 2000 ms', bodyTimedOut: true };
    t.same(settle(answered(422, {}, fault)).next, rejected);
    t.equal(settle(answered(500, {}, fault)).outcome, 'error');
    t.equal(settle(answered(429, { 'retry-after': '3' }, fault)).throttle?.delayMs, 3000);
  },
);

t.test('a success whose body broke off is a success, with the fault on record', async (t) => {
  const settlement = settle(answered(200, {}, { bodyError: 'other side closed' }));
  t.same(settlement.next, succeeded);
  t.equal(settlement.error, 'other side closed');
});

t.test('every member of the retry policy changes something (nodejs/undici#5682)', async (t) => {
  const nextWith = (retry: Record<string, number>, result: CallResult, job: Partial<SettledJob> = {}) =>
    settle(result, job, upstream({ retry })).next;
  t.same(nextWith({ base_ms: 100 }, answered(500)), scheduled(50));
  t.same(nextWith({ cap_ms: 10 }, answered(500)), scheduled(5));
  t.same(nextWith({ max_attempts: 1 }, answered(500)), exhausted);
  t.same(nextWith({ max_throttles: 0 }, answered(429)), throttledTooLong);
  t.same(nextWith({ retry_after_cap_s: 2 }, answered(500, { 'retry-after': '60' })), scheduled(2000));
});

const retryAfterText = fc.oneof(
  fc.constantFrom('0', '1', '30', '2.0', 'soon', '-3', '9999999999', 'Thu, 01 Jan 2026 00:02:00 GMT', ''),
  fc.string(),
);
const anyResult: fc.Arbitrary<SettledCall> = fc.oneof(
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
    .tuple(
      fc.integer({ min: 200, max: 999 }),
      fc.option(fc.oneof(retryAfterText, fc.array(retryAfterText)), { nil: undefined }),
      fc.boolean(),
    )
    .map(([status, header, timedOut]) =>
      answered(status, { 'retry-after': header }, timedOut ? { bodyError: 'late', bodyTimedOut: true } : {}),
    ),
);
const anyJob = fc.record({
  method: fc.constantFrom('GET', 'POST', 'PUT', 'PATCH', 'DELETE'),
  attemptsUsed: fc.nat(20),
  throttles: fc.nat(120),
  maxAttempts: fc.option(fc.integer({ min: 1, max: 20 })),
  firstSentAgeMs: fc.option(fc.nat(200_000_000)),
  outcomeUnknown: fc.boolean(),
}) as fc.Arbitrary<Partial<SettledJob>>;
const statuses = fc.option(fc.array(fc.integer({ min: 200, max: 599 })));
const anyUpstream = fc
  .record({
    idempotency_header: fc.constantFrom(null, 'Idempotency-Key'),
    key_ttl_s: fc.integer({ min: 1, max: 200_000 }),
    on_unknown: fc.constantFrom(null, 'resend', 'hold'),
    success_statuses: statuses,
    retry_statuses: statuses,
    retry: fc.record({
      max_attempts: fc.integer({ min: 1, max: 20 }),
      max_throttles: fc.nat(120),
      base_ms: fc.integer({ min: 1, max: 5000 }),
      cap_ms: fc.integer({ min: 1, max: 100_000 }),
    }),
  })
  .map(upstream);

t.test('property: the rules of accounting hold for every job, upstream and end of a call', async () => {
  fc.assert(
    fc.property(
      anyJob,
      anyUpstream,
      anyResult,
      fc.double({ min: 0, max: 1, noNaN: true }),
      (partial, definition, result, random01) => {
        const job = claimedJob(partial);
        const settlement = decideSettlement(job, definition, result, { ...context, random01 });
        const { next, charge, outcome, throttle } = settlement;
        const blown = next.kind === 'held' && next.reason === fuseReason;
        const rules: Record<string, boolean> = {
          'a throttle and nothing else is charged as one':
            (charge === 'throttle') === (outcome === 'throttled') && (throttle !== null) === (charge === 'throttle'),
          'what is no attempt costs nothing, and the other way round, but for an answer that blows a fuse':
            (outcome === null) === (charge === 'none') || (blown && outcome === 'rejected'),
          'every move is legal': isLegalTransition('running', next.kind === 'done' ? next.state : next.kind),
          'a wait is a whole number of milliseconds':
            next.kind !== 'scheduled' || (Number.isInteger(next.delayMs) && next.delayMs >= 0),
          'attempts never pass the maximum':
            next.kind === 'done' ||
            next.kind === 'held' ||
            charge !== 'attempt' ||
            job.attemptsUsed + 1 < (job.maxAttempts ?? definition.retry.max_attempts),
          'throttles never pass the maximum':
            next.kind !== 'ready' || charge !== 'throttle' || job.throttles + 1 <= definition.retry.max_throttles,
          'an unknown outcome stays so until a success':
            !job.outcomeUnknown || settlement.outcomeUnknown || outcome === 'success',
          'a success is the end': (outcome === 'success') === (next.kind === 'done' && next.state === 'succeeded'),
          'what may have had an effect was sent':
            !settlement.mayHaveHadEffect || ['no_answer', 'lease_expired', 'answered'].includes(result.kind),
          'no resend after the key is forgotten':
            next.kind !== 'scheduled' ||
            (job.firstSentAgeMs ?? 0) + next.delayMs <= definition.key_ttl_s * 1000 ||
            (job.firstSentAgeMs === null && !settlement.mayHaveHadEffect),
          'only an unknown outcome is held at once by on_unknown':
            next.kind !== 'held' ||
            blown ||
            settlement.outcomeUnknown ||
            job.firstSentAgeMs !== null ||
            settlement.mayHaveHadEffect,
        };
        for (const [rule, holds] of Object.entries(rules)) if (!holds) throw new Error(`broken: ${rule}`);
      },
    ),
    { numRuns: 2000 },
  );
});

t.test(
  'a secret that is not set in this process costs the job nothing: it waits for another replica, and is held in the end',
  async (t) => {
    const missing = {
      kind: 'not_sent',
      code: 'missing_secret',
      error: 'the environment variable X is not set',
    } as const;
    const its = upstream({ retry: { cap_ms: 7_000 } });
    const context = { random01: 0.5, nowWallMs: 0 };
    const first = decideSettlement(claimedJob({ attemptsUsed: 4 }), its, missing, context);
    t.match(first, {
      next: { kind: 'scheduled', delayMs: 7_000, reason: 'missing_secret' },
      outcome: 'not_sent',
      charge: 'none',
      mayHaveHadEffect: false,
    });
    t.match(decideSettlement(claimedJob({ calls: 18 }), its, missing, context).next, { kind: 'scheduled' });
    t.same(decideSettlement(claimedJob({ calls: 19 }), its, missing, context).next, {
      kind: 'held',
      reason: 'missing_secret',
    });
  },
);
