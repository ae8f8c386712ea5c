import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import fc from 'fast-check';
import t from 'tap';
import {
  derivedKey,
  fingerprint,
  type KeyedItem,
  type KnownKey,
  keyFault,
  keyFromHeader,
  keyVerdicts,
  needsRetry,
} from '../../src/domain/idempotency.ts';

const request = {
  upstream: 'stripe',
  method: 'POST',
  path: '/v1/charges',
  headers: null,
  body: { json: { amount: 5 } },
} as const;

t.test('a key has 1 to 255 code points, whatever their size (paveg/hono-idempotency#93)', async (t) => {
  for (const key of ['a', 'x'.repeat(255), '😀'.repeat(128), '😀'.repeat(255), 'a b', 'é', 'e\u0301', '../../etc']) {
    t.equal(keyFault(key), null, key.slice(0, 20));
  }
  for (const key of ['', 'x'.repeat(256), '😀'.repeat(256), 'a'.repeat(4000)]) {
    t.type(keyFault(key), 'string', key.slice(0, 20));
  }
});

t.test('a long key is refused whether or not it compresses (triggerdotdev/trigger.dev#3560)', async (t) => {
  let random = '';
  for (let block = 0; random.length < 4000; block++) {
    random += createHash('sha256').update(String(block)).digest('base64');
  }
  t.equal(keyFault(random), keyFault('a'.repeat(4000)));
});

t.test('controls, lone surrogates and white space at the ends are refused (josipmusa/idempotency4j#50)', async (t) => {
  for (const key of [
    'a\u0000b',
    'a\nb',
    '\u007f',
    'a\u0085b',
    '\ud800',
    'a\udc00',
    ' ',
    '   ',
    ' a',
    'a ',
    'a\u00a0',
    '\ufeffa',
  ]) {
    t.type(keyFault(key), 'string', JSON.stringify(key));
  }
});

t.test('the fingerprint is the SHA-256 of the canonical form, without members that the request has not', async (t) => {
  const form = '{"body":{"amount":5},"method":"POST","path":"/v1/charges","upstream":"stripe"}';
  const expected = createHash('sha256').update(form).digest('hex');
  t.equal(fingerprint(request), expected);
  t.equal(fingerprint({ ...request, headers: {} }), expected, 'empty headers are no headers');
  t.equal(derivedKey(expected), `sluice-${expected}`);
});

t.test(
  'each member of the request, and nothing else, makes another fingerprint (josipmusa/idempotency4j#12)',
  async (t) => {
    const all = [
      request,
      { ...request, upstream: 'paypal' },
      { ...request, method: 'PUT' },
      { ...request, path: '/v1/refunds' },
      { ...request, headers: { 'x-a': '1' } },
      { ...request, headers: { 'x-a': '2' } },
      { ...request, body: null },
      { ...request, body: { json: null } },
      { ...request, body: { json: {} } },
      { ...request, body: { text: '' } },
      { ...request, body: { text: '{"amount":5}' } },
      { ...request, body: { json: '{"amount":5}' } },
      { ...request, body: { json: [1, 2] } },
      { ...request, body: { json: [2, 1] } },
    ] as const;
    t.equal(new Set(all.map(fingerprint)).size, all.length);
  },
);

t.test('the request header is a bare key or a quoted string', async (t) => {
  t.equal(keyFromHeader('abc'), 'abc');
  t.equal(keyFromHeader('"abc"'), 'abc');
  t.equal(keyFromHeader(String.raw`"a\"b\\c"`), String.raw`a"b\c`);
  t.equal(keyFromHeader('"half'), '"half', 'what is no quoted string is bare');
});

t.test('a duplicate needs a retry where its job ended without success', async (t) => {
  const states = ['scheduled', 'ready', 'running', 'succeeded', 'failed', 'held', 'cancelled', 'expired'] as const;
  t.strictSame(
    states.filter((state) => needsRetry('duplicate', state)),
    ['failed', 'cancelled', 'expired'],
  );
  t.equal(needsRetry('conflict', 'failed'), false);
  t.equal(needsRetry('duplicate', null), false);
});

const item = (key: string, fp: string, acceptable = true): KeyedItem => ({ key, fingerprint: fp, acceptable });
const words = (items: Array<KeyedItem | null>, known = new Map<string, KnownKey>()) =>
  keyVerdicts(items, known).map((each) => each.verdict);

t.test('a batch with repeats gets a verdict each, in order; again, all are known', async (t) => {
  const items = [item('K1', 'p'), item('K2', 'q'), item('K1', 'p'), item('K1', 'r'), item('K3', 's')];
  t.strictSame(words(items), ['accepted', 'accepted', 'duplicate', 'conflict', 'accepted']);
  t.match(keyVerdicts(items, new Map())[2], { first: 0 });
  const known = new Map(
    [['K1', 'p'] as const, ['K2', 'q'] as const, ['K3', 's'] as const].map(([key, fp]) => [
      key,
      { fingerprint: fp, jobId: key, jobState: 'ready' } satisfies KnownKey,
    ]),
  );
  t.strictSame(words(items, known), ['duplicate', 'duplicate', 'duplicate', 'conflict', 'duplicate']);
});

t.test('what cannot be accepted takes no key, and is a duplicate where its key is known', async (t) => {
  t.strictSame(words([item('K', 'p', false), item('K', 'p')]), ['rejected', 'accepted']);
  t.strictSame(words([item('K', 'p'), item('K', 'p', false)]), ['accepted', 'duplicate']);
  t.strictSame(words([item('K', 'p'), item('K', 'q', false)]), ['accepted', 'rejected']);
  t.strictSame(words([null, item('K', 'p')]), ['rejected', 'accepted']);
});

t.test('property: verdicts are those of taking the items one by one', async () => {
  const one = fc.option(
    fc.record({
      key: fc.constantFrom('a', 'b', 'c'),
      fingerprint: fc.constantFrom('p', 'q'),
      acceptable: fc.boolean(),
    }),
  );
  const stored = fc.dictionary(fc.constantFrom('a', 'b', 'c'), fc.constantFrom('p', 'q'));
  fc.assert(
    fc.property(fc.array(one), stored, (items, before) => {
      const known = new Map(
        Object.entries(before).map(([key, fp]) => [key, { fingerprint: fp, jobId: `stored ${key}`, jobState: null }]),
      );
      const model = new Map(Object.entries(before).map(([key, fp]) => [key, { fp, job: `stored ${key}` }]));
      const verdicts = keyVerdicts(items, known);
      items.forEach((each, position) => {
        const got = verdicts[position]!;
        const there = each === null ? undefined : model.get(each.key);
        const job = 'known' in got ? got.known.jobId : 'first' in got ? `new ${got.first}` : undefined;
        if (each !== null && there?.fp === each.fingerprint)
          assert.deepEqual([got.verdict, job], ['duplicate', there.job]);
        else if (!each?.acceptable) assert.equal(got.verdict, 'rejected');
        else if (there !== undefined) assert.deepEqual([got.verdict, job], ['conflict', there.job]);
        else {
          assert.equal(got.verdict, 'accepted');
          model.set(each.key, { fp: each.fingerprint, job: `new ${position}` });
        }
      });
    }),
    { numRuns: 500 },
  );
});
