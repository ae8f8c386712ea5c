import t from 'tap';
import { prove, type ReportedItem } from '../../../src/cli/demo/proof.ts';
import { type ArrivedRequest, RequestLog } from '../../../src/simulator/request-log.ts';

const limit = 2;
const periodMs = 1000;

function arrived(fields: Partial<ArrivedRequest>): ArrivedRequest {
  return {
    number: 1,
    arrivedMs: 0,
    arrivedAt: 0,
    method: 'POST',
    path: '/charges',
    key: 'k1',
    jobId: 'j1',
    attempt: 1,
    headers: {},
    body: '',
    connection: 1,
    outcome: 'effect',
    status: 200,
    answeredMs: 0,
    retryAfterSeconds: null,
    ...fields,
  };
}

const succeeded = (key: string): ReportedItem => ({
  idempotency_key: key,
  verdict: 'accepted',
  job_state: 'succeeded',
});

t.test('every key done once and the limit kept: passed', async (t) => {
  const log = new RequestLog([
    arrived({ outcome: 'refused', status: 500 }),
    arrived({ arrivedMs: 500 }),
    arrived({ key: 'k2', jobId: 'j2', arrivedMs: 1000 }),
  ]);
  t.match(prove([succeeded('k1'), succeeded('k2')], log, limit, periodMs), { passed: true, keys: 2, mostStarts: 2 });
});

t.test('items that were not accepted ask for nothing', async (t) => {
  const others = ['duplicate', 'conflict', 'rejected'].map((verdict) => ({
    idempotency_key: 'k9',
    verdict,
    job_state: null,
  }));
  t.match(prove([succeeded('k1'), ...others], new RequestLog([arrived({})]), limit, periodMs), {
    passed: true,
    keys: 1,
  });
});

t.test('nothing accepted proves nothing', async (t) => {
  t.equal(prove([], new RequestLog(), limit, periodMs).passed, false);
});

t.test('succeeded here without an effect there is lost', async (t) => {
  const log = new RequestLog([arrived({ outcome: 'refused', status: 500 })]);
  t.match(prove([succeeded('k1')], log, limit, periodMs), { passed: false, lost: ['k1'] });
});

t.test('an effect there whose job has not succeeded here is lost', async (t) => {
  const item = { ...succeeded('k1'), job_state: 'running' };
  t.match(prove([item], new RequestLog([arrived({})]), limit, periodMs), { passed: false, lost: ['k1'] });
});

t.test('two effects of one key, or of one job under two keys, are doubles', async (t) => {
  const twice = new RequestLog([arrived({}), arrived({ arrivedMs: 5000, jobId: 'j2' })]);
  t.match(prove([succeeded('k1')], twice, limit, periodMs), { passed: false, doubled: ['key k1 (2 effects)'] });
  const twoKeys = new RequestLog([arrived({}), arrived({ arrivedMs: 5000, key: 'k2' })]);
  t.match(prove([succeeded('k1'), succeeded('k2')], twoKeys, limit, periodMs), {
    passed: false,
    doubled: ['job j1 (2 effects)'],
  });
});

t.test('an effect that nobody asked for is told', async (t) => {
  const log = new RequestLog([arrived({}), arrived({ key: 'k2', jobId: 'j2' })]);
  t.match(prove([succeeded('k1')], log, limit, periodMs), { passed: false, strange: ['k2'] });
});

t.test('one start too many in a period fails, refused calls included', async (t) => {
  const log = new RequestLog([
    arrived({ outcome: 'refused' }),
    arrived({ arrivedMs: 100, outcome: 'throttled' }),
    arrived({ arrivedMs: 999 }),
  ]);
  t.match(prove([succeeded('k1')], log, limit, periodMs), { passed: false, mostStarts: 3, lost: [] });
});
