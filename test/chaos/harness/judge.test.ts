/** The judge of a run of chaos finds what it is there to find: each fault is put into books that are otherwise right. */
import t from 'tap';
import { type ArrivedRequest, RequestLog } from '../../../src/simulator/request-log.ts';
import type { Books, RecordedCall } from './books.ts';
import { judge, type Terms } from './judge.ts';

const keys = ['a', 'b', 'c'];
const terms: Terms = { keys: new Set(keys), batches: 1, limit: 2, periodMs: 1000, permitMs: 40, slackMs: 100 };
const startMs = 1_800_000_000_000;

/** Of the n-th key, `afterMs` after its admission; by default one a second. */
function arrival(n: number, changed: Partial<ArrivedRequest> = {}, afterMs = 10): ArrivedRequest {
  const arrivedMs = n * 1000 + afterMs;
  return {
    number: n + 1,
    arrivedMs,
    arrivedAt: startMs + arrivedMs,
    method: 'POST',
    path: '/charges',
    key: keys[n]!,
    jobId: `job ${n}`,
    attempt: 1,
    headers: {},
    body: '',
    connection: 1,
    outcome: 'effect',
    status: 200,
    answeredMs: arrivedMs,
    retryAfterSeconds: null,
    ...changed,
  };
}

function call(n: number, changed: Partial<RecordedCall> = {}): RecordedCall {
  return {
    jobId: `job ${n}`,
    number: 1,
    workerId: 'worker',
    outcome: 'success',
    admittedAt: startMs + n * 1000,
    ...changed,
  };
}

const places = [...keys.keys()];
const accepted = places.map((n) => ({
  key: keys[n]!,
  jobId: `job ${n}`,
  state: 'succeeded',
  status: 200,
  excerpt: JSON.stringify({ effect: n + 1, key: keys[n] }),
}));
const batch = {
  batch_id: 'batch',
  status: 'completed',
  counts: { total: 3, accepted: 3, duplicate: 0, conflict: 0, rejected: 0 },
  jobs: { succeeded: 3 },
  progress: 1,
};
const good: Books = {
  batches: [batch],
  holdUps: [],
  accepted,
  storedBatches: 1,
  storedJobs: 3,
  calls: places.map((n) => call(n)),
  log: new RequestLog(places.map((n) => arrival(n))),
  audit: { max_starts: 1, bound: 2 },
  broken: [],
  standstills: [],
};
const logOf = (...requests: ArrivedRequest[]) => new RequestLog(requests);
const [first, second, third] = places.map((n) => arrival(n)) as [ArrivedRequest, ArrivedRequest, ArrivedRequest];

t.test('books that are right pass', async (t) => {
  const { faults, figures } = judge(good, terms);
  t.same(faults, []);
  t.match(figures, { accepted: 3, ended: 3, succeeded: 3, effects: 3, doubles: 0, lost: 0, batchesEnded: 1 });
  t.match(figures, { starts: 1, arrivals: 1, arrivalsOfAll: 1, late: 0, frozen: 0 });
});

t.test('a key that was called again and known there is no double', async (t) => {
  const again = arrival(2, { outcome: 'replayed', attempt: 2, number: 4 });
  const calls = [...good.calls, call(2, { number: 2, outcome: 'unknown' })];
  t.same(judge({ ...good, calls, log: logOf(first, second, third, again) }, terms).faults, []);
});

const changedItem = (changed: object) => [accepted[0]!, accepted[1]!, { ...accepted[2]!, ...changed }];
const wrong: Record<string, { readonly books: Partial<Books>; readonly says: RegExp }> = {
  'a key that was never accepted': {
    books: { accepted: accepted.slice(1) },
    says: /1 keys that were never accepted: a/,
  },
  'a key that was accepted twice': {
    books: { accepted: [...accepted, { ...accepted[0]!, jobId: 'job 7' }] },
    says: /1 keys that were accepted more than once: a/,
  },
  'a batch that nobody was told of': { books: { storedBatches: 2 }, says: /2 batches are stored, of 1/ },
  'a job that nobody was told of': { books: { storedJobs: 4 }, says: /4 jobs are stored, of 3/ },
  'an item without an effect': { books: { log: logOf(first, second) }, says: /1 items lost .*: c \(succeeded\)/ },
  'an item that failed': {
    books: { accepted: changedItem({ state: 'failed' }) },
    says: /1 items lost .*: c \(failed\)/,
  },
  'an item that has not ended': { books: { accepted: changedItem({ state: 'ready' }) }, says: /1 items lost/ },
  'the answer to another item': {
    books: { accepted: changedItem({ excerpt: accepted[0]!.excerpt }) },
    says: /1 answers that are not true: c/,
  },
  'an answer with another status': {
    books: { accepted: changedItem({ status: 500 }) },
    says: /1 answers that are not true/,
  },
  'a key with two effects': {
    books: {
      log: logOf(first, second, third, { ...third, attempt: 2 }),
      calls: [...good.calls, call(2, { number: 2 })],
    },
    says: /doubles: key c \(2 effects\)/,
  },
  'a job under two keys': {
    books: { log: logOf(first, second, third, arrival(2, { key: 'b', attempt: 2, outcome: 'replayed' })) },
    says: /doubles: job job 2 went out under two keys/,
  },
  'a job that succeeded twice': {
    books: { calls: [...good.calls, call(2, { number: 2 })] },
    says: /doubles: job job 2 succeeded twice on record/,
  },
  'an effect of nobody': {
    books: { log: logOf(first, second, third, arrival(2, { key: 'x', jobId: 'job x' })) },
    says: /1 effects that nobody submitted: x/,
  },
  'a call on no record': { books: { calls: good.calls.slice(1) }, says: /1 calls that are on no record: job 0 1/ },
  'a call that was written twice': {
    books: { log: logOf(first, second, third, { ...third, outcome: 'replayed' }) },
    says: /1 calls that were written twice: job 2 1/,
  },
  'more starts than allowed': {
    books: { audit: { max_starts: 3, bound: 2 } },
    says: /3 starts in one period by the stamps/,
  },
  'more arrivals than allowed': {
    books: {
      log: logOf(...places.map((n) => arrival(n, { arrivedMs: n * 10, arrivedAt: startMs + n * 10 }))),
      calls: places.map((n) => call(n, { admittedAt: startMs + n * 10 })),
    },
    says: /3 calls arrived in one period in time, of 2 allowed/,
  },
  'a batch that has not ended': {
    books: { batches: [{ ...batch, status: 'processing' }], holdUps: ['batch waits on a window'] },
    says: /1 batches have not ended\nbatch waits on a window/,
  },
  'a broken invariant': {
    books: { broken: [{ rule: 'one_state', count: 1, subject: 'job 1', detail: 'in none' }] },
    says: /the invariant one_state is broken \(1\): job 1 in none/,
  },
};

for (const [what, { books, says }] of Object.entries(wrong)) {
  t.test(`${what} is found`, async (t) => {
    t.match(judge({ ...good, ...books }, terms).faults.join('\n'), says);
  });
}

t.test('what came late counts for itself: by a busy machine, or out of a worker that stood still', async (t) => {
  // The three are 900 ms apart, and the last two come at once, 500 ms after the third was admitted.
  const calls = places.map((n) => call(n, { admittedAt: startMs + n * 900 }));
  const at = (n: number, arrivedMs: number) => arrival(n, { arrivedMs, arrivedAt: startMs + arrivedMs });
  const log = logOf(at(0, 1950), at(1, 2300), at(2, 2310));
  const busy = judge({ ...good, calls, log }, terms);
  t.same(busy.faults, []);
  t.match(busy.figures, { arrivals: 0, arrivalsOfAll: 3, late: 3, frozen: 0, latestMs: 1950 });

  const standstill = { workerId: 'worker', fromMs: startMs + 930, untilMs: startMs + 2290 };
  const frozen = judge({ ...good, calls, log, standstills: [standstill] }, terms);
  t.match(frozen.figures, { arrivals: 0, late: 1, frozen: 2 });
  t.match(frozen.faults, ['1 standstills that let out more than one frozen call: 2 calls']);
  const others = judge({ ...good, calls, log, standstills: [{ ...standstill, workerId: 'another' }] }, terms);
  t.match(others.figures, { late: 3, frozen: 0 });

  const atLimit = (afterMs: number) => logOf(first, second, arrival(2, {}, afterMs));
  t.match(judge({ ...good, log: atLimit(140) }, terms).figures, { late: 0 });
  t.match(judge({ ...good, log: atLimit(141) }, terms).figures, { late: 1 });
});
