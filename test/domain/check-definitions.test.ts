import t from 'tap';
import { checkConfigFile, checkDefinition, checkDefinitions } from '../../src/domain/check-definitions.ts';
import type { Fault } from '../../src/domain/errors.ts';

/** How a header refers to an environment variable. */
const ref = (name: string) => `\${${name}}`;
const secrets = new Set(['STRIPE_KEY', 'OTHER_KEY']);
const stripe = { base_url: 'https://api.example.test' };
const noNames = { upstreams: new Set<string>(), queues: new Set<string>() };

const codesOf = (faults: readonly Fault[]) => faults.map(({ pointer, code }) => `${pointer ?? ''} ${code}`);
const upstreamCodes = (upstream: unknown, options: object = {}) =>
  codesOf(checkDefinition('upstreams', 'stripe', upstream, noNames, { secrets, ...options }));
const limitCodes = (limit: object) =>
  codesOf(
    checkDefinition(
      'rate_limits',
      'l',
      { limit: 1, upstreams: ['stripe'], ...limit },
      { ...noNames, upstreams: new Set(['stripe']) },
      { secrets },
    ),
  );

t.test('the example of the documentation has no faults', async (t) => {
  const file = {
    revision: 1,
    upstreams: {
      stripe: {
        base_url: 'https://api.example.test',
        headers: { authorization: `Bearer ${ref('STRIPE_KEY')}` },
        idempotency_header: 'Idempotency-Key',
        timeout_ms: 15000,
        retry: { max_attempts: 5, base_ms: 500, cap_ms: 30000, max_throttles: 100 },
      },
    },
    rate_limits: {
      stripe: { limit: 100, per: 60, algorithm: 'sliding_window', upstreams: ['stripe'] },
      'per-account': { limit: 5, per: 1, by_partition: true, upstreams: ['stripe'] },
    },
    queues: { default: {}, sms: { ordering: 'fifo' } },
  };
  t.same(checkConfigFile(file, { secrets }), []);
  t.same(checkConfigFile(file, { secrets, readSecret: () => 'a value' }), []);
});

t.test('all faults come in one go, each with its pointer, code and words', async (t) => {
  const faults = checkConfigFile(
    {
      revision: -1,
      upstream: {},
      upstreams: {
        Stripe: { ...stripe, timeout: 5 },
        mail: { base_url: 'http://10.0.0.1', headers: { authorization: `Bearer ${ref('STRIPE_KEI')}` } },
      },
      rate_limits: {
        none: { limit: 1 },
        both: { limit: -1, per: 0, upstreams: ['mail', 'gone'] },
        lost: { limit: 1, upstreams: ['mial'], queues: ['defualt', 'default'] },
      },
      queues: { 'a/b': { ordering: 'lifo' } },
    },
    { secrets },
  );
  t.same(codesOf(faults), [
    '/revision invalid',
    '/upstream unknown_field',
    '/upstreams/Stripe invalid_name',
    '/upstreams/Stripe/timeout unknown_field',
    '/upstreams/mail/base_url base_url_private',
    '/upstreams/mail/headers/authorization secret_not_allowed',
    '/rate_limits/none limit_covers_nothing',
    '/rate_limits/both/limit invalid_limit',
    '/rate_limits/both/per invalid_period',
    '/rate_limits/both/upstreams/1 unknown_upstream',
    '/rate_limits/lost/upstreams/0 unknown_upstream',
    '/rate_limits/lost/queues/0 unknown_queue',
    '/queues/a~1b invalid_name',
    '/queues/a~1b/ordering invalid',
  ]);
  const messages = faults.map((fault) => fault.message).join('\n');
  for (const near of ['upstreams', 'timeout_ms', 'STRIPE_KEY', 'mail', 'default']) {
    t.match(messages, `(did you mean "${near}"?)`, near);
  }
});

t.test('what is no object is a fault, not an exception', async (t) => {
  for (const input of [null, undefined, 1, 'x', [], true]) {
    t.same(codesOf(checkDefinitions(input, noNames, { secrets })), [' invalid'], JSON.stringify(input));
    t.not(checkDefinition('queues', 'q', input, noNames, { secrets }).length, 0, JSON.stringify(input));
    t.same(codesOf(checkConfigFile({ queues: input }, { secrets })), ['/queues invalid'], JSON.stringify(input));
  }
});

t.test('names: both sides of the rule', async (t) => {
  const codes = (name: string) => codesOf(checkDefinition('queues', name, {}, noNames, { secrets }));
  for (const name of ['a', '0', 'a.b_c-d', 'x'.repeat(63), 'constructor', 'a..b']) t.same(codes(name), [], name);
  for (const name of ['', 'A', '-a', '.a', '_a', 'a b', 'é', 'a/b', 'x'.repeat(64), '__proto__', 'a\n']) {
    t.same(codes(name), [' invalid_name'], JSON.stringify(name));
  }
});

// taskforcesh/bullmq#2403, OptimalBits/bull#998: a zero or absent period must never mean "no limit".
t.test('periods and limits: both sides of every bound', async (t) => {
  for (const per of [1, 60, 2_678_400]) t.same(limitCodes({ per }), [], String(per));
  for (const per of [0, -1, null, 0.5, 2_678_401, 1e12, '60', true]) {
    t.same(limitCodes({ per }), ['/per invalid_period'], JSON.stringify(per));
  }
  for (const limit of [0, 1, 2_147_483_647, null]) t.same(limitCodes({ limit }), [], String(limit));
  for (const limit of [-1, 1.5, 2_147_483_648, '5', undefined]) {
    t.same(limitCodes({ limit }), ['/limit invalid_limit'], String(limit));
  }
  for (const max_in_flight of [1, null]) t.same(limitCodes({ max_in_flight }), [], String(max_in_flight));
  t.same(limitCodes({ max_in_flight: 0 }), ['/max_in_flight invalid_limit']);
  t.same(limitCodes({ algorithm: 'token_bucket', burst: -1 }), ['/burst invalid_limit']);
});

// node-cron#563 and kin: calendar windows are not offered, so a time zone must not be taken and then ignored.
t.test('a time zone is refused', async (t) => {
  t.same(limitCodes({ timezone: 'Europe/Berlin' }), ['/timezone unknown_field']);
});

t.test('a limit must cover something that exists, here or already stored', async (t) => {
  const known = { upstreams: new Set(['stored']), queues: new Map([['sms', {}]]) };
  const codes = (rate_limits: object) => codesOf(checkDefinitions({ rate_limits }, known, { secrets }));
  t.same(codes({ a: { limit: 1, upstreams: ['stored'] }, b: { limit: 1, queues: ['sms'] } }), []);
  t.same(codes({ a: { limit: 1, upstreams: ['sms'], queues: ['stored'] } }), [
    '/rate_limits/a/upstreams/0 unknown_upstream',
    '/rate_limits/a/queues/0 unknown_queue',
  ]);
  t.same(codes({ a: { limit: 1, upstreams: [], queues: [] } }), ['/rate_limits/a limit_covers_nothing']);
});

t.test('secrets: only listed names, and with a reader only those that are set', async (t) => {
  const codes = (value: string, options: object = {}) =>
    upstreamCodes({ ...stripe, headers: { 'x-key': value } }, options);
  t.same(codes(`${ref('STRIPE_KEY')}:${ref('OTHER_KEY')}`), []);
  t.same(codes(ref('PATH')), ['/headers/x-key secret_not_allowed']);
  t.same(codes(ref('PATH') + ref('HOME')).length, 2);
  t.same(codes('a ${ b'), ['/headers/x-key invalid']);
  t.same(codes(ref('not-a-name')), ['/headers/x-key invalid']);
  t.same(codes('$STRIPE_KEY and {braces}'), []);
  const readSecret = (name: string) => (name === 'STRIPE_KEY' ? 'sk' : undefined);
  t.same(codes(ref('STRIPE_KEY'), { readSecret }), []);
  t.same(codes(ref('OTHER_KEY'), { readSecret }), ['/headers/x-key missing_environment_variable']);
  t.same(codes(ref('PATH'), { readSecret }), ['/headers/x-key secret_not_allowed']);
});

t.test('addresses that are not public need allow_private_addresses', async (t) => {
  const hosts = [
    '127.0.0.1',
    'localhost:3000',
    'a.localhost',
    '0x7f.1',
    '2130706433',
    '[::1]',
    '[::ffff:8.8.8.8]',
    '10.1.2.3',
  ];
  hosts.push('192.168.1.1', '169.254.169.254', '100.64.0.1', 'LOCALHOST.', '[fe80::1]');
  for (const host of hosts) {
    t.same(upstreamCodes({ base_url: `http://${host}` }), ['/base_url base_url_private'], host);
    t.same(upstreamCodes({ base_url: `http://${host}`, allow_private_addresses: true }), [], host);
  }
  for (const host of [
    '8.8.8.8',
    '[2606:4700::1111]',
    'api.example.test',
    'localhost.example.test',
    '10.0.0.1.example.test',
  ]) {
    t.same(upstreamCodes({ base_url: `http://${host}` }), [], host);
  }
});

t.test('base_url: what could not be kept or called is refused', async (t) => {
  const bad = [
    'ftp://a.test',
    'a.test',
    '',
    'https://u:p@a.test',
    'https://u@a.test',
    'https://a.test/#x',
    'https://a.test/\u0000',
    'https://a.test/\ud800',
  ];
  for (const base_url of bad) t.same(upstreamCodes({ base_url }), ['/base_url invalid'], JSON.stringify(base_url));
  for (const base_url of [
    'http://a.test',
    'https://a.test:8443/v1/',
    'https://a.test/v1?tenant=1',
    'https://bücher.test',
  ]) {
    t.same(upstreamCodes({ base_url }), [], base_url);
  }
  t.same(upstreamCodes({}), ['/base_url required']);
});

// nodejs/undici#5059 and CVE-2023-23936: a header that would split or reframe the request is refused when it is defined.
t.test('headers of an upstream cannot steer the connection or the service', async (t) => {
  const codes = (headers: object) => upstreamCodes({ ...stripe, headers });
  t.same(codes({ 'X-Api-Key': 'v', accept: 'text/plain; q=0.5' }), []);
  for (const name of [
    'Host',
    'content-length',
    'Transfer-Encoding',
    'connection',
    'Sluice-Job-Id',
    'idempotency-key',
  ]) {
    t.same(codes({ [name]: 'v' }), [`/headers/${name} invalid`], name);
  }
  for (const value of ['a\r\nb: c', 'a\nb', 'é', '\u0000', '\ud800', '😀']) {
    t.same(codes({ 'x-a': value }), ['/headers/x-a invalid'], JSON.stringify(value));
  }
  t.same(codes({ 'bad name': 'v' }), ['/headers/bad name invalid']);
  t.same(codes({ 'X-A': '1', 'x-a': '2' }), ['/headers/x-a invalid']);
  t.same(upstreamCodes({ ...stripe, idempotency_header: null, headers: { 'idempotency-key': 'fixed' } }), []);
  for (const idempotency_header of ['Host', 'Sluice-Attempt', '', 'a b']) {
    t.same(upstreamCodes({ ...stripe, idempotency_header }), ['/idempotency_header invalid'], idempotency_header);
  }
});

t.test('reconcile: its path stays below base_url and names the key, an answer says one thing', async (t) => {
  const codes = (path: string) => upstreamCodes({ ...stripe, reconcile: { path } });
  t.same(codes('/charges?key={key}'), []);
  for (const path of ['charges', '//evil.test', '/../x', '/a\\b', '/\ud800']) {
    t.same(codes(path), ['/reconcile/path invalid'], JSON.stringify(path));
  }
  t.same(codes('/charges/{key}/state?of={key}'), []);
  t.same(codes('/charges'), ['/reconcile/path invalid'], 'no key');
  const statuses = (lists: object) => upstreamCodes({ ...stripe, reconcile: { path: '/{key}', ...lists } });
  t.same(statuses({ applied_when: [200, 409], absent_when: [404, 410] }), []);
  t.same(statuses({ absent_when: [404, 200] }), ['/reconcile/absent_when invalid'], 'with the default of the other');
  t.same(statuses({ applied_when: [] }), ['/reconcile/applied_when invalid']);
});

t.test('one wrong field does not hide what is wrong with the others', async (t) => {
  const headers = { host: 'x', 'x-a': ref('PATH') };
  t.same(upstreamCodes({ base_url: 'http://127.0.0.1', timeout_ms: 0, extra: 1, headers }), [
    '/timeout_ms invalid',
    '/extra unknown_field',
    '/base_url base_url_private',
    '/headers/host invalid',
    '/headers/x-a secret_not_allowed',
  ]);
  t.same(
    upstreamCodes({ headers: { 'bad name': 'x' }, allow_private_addresses: 'yes', base_url: 'http://127.0.0.1' }),
    ['/headers/bad name invalid', '/allow_private_addresses invalid', '/base_url base_url_private'],
  );
  t.same(limitCodes({ per: 0, upstreams: 'stripe' }), ['/per invalid_period', '/upstreams invalid']);
  t.same(limitCodes({ per: 0, upstreams: [] }), ['/per invalid_period', ' limit_covers_nothing']);
});

t.test('a message never repeats the value of a header', async (t) => {
  const faults = checkDefinition(
    'upstreams',
    's',
    { ...stripe, headers: { 'x-a': 'tópsecret-value', host: 'tópsecret-value', 'x-b': 17 } },
    noNames,
    { secrets },
  );
  t.not(faults.length, 0);
  t.notMatch(JSON.stringify(faults), 'psecret');
});
