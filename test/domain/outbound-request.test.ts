// biome-ignore-all lint/suspicious/noTemplateCurlyInString: it is how a definition names a secret
import { createHash } from 'node:crypto';
import fc from 'fast-check';
import t from 'tap';
import type { ClaimedJob } from '../../src/domain/job.ts';
import {
  buildOutboundRequest,
  buildReconcileRequest,
  checkItemHeaders,
  checkPath,
  isConnectionHeader,
  isHeaderValue,
  type OutboundRequest,
  outboundKey,
} from '../../src/domain/outbound-request.ts';
import { claimedJob, upstream } from '../support/claimed-job.ts';

const trace = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';

function build(
  job: Partial<ClaimedJob> = {},
  definition: Record<string, unknown> = {},
  secrets: Record<string, string> = {},
): OutboundRequest {
  const built = buildOutboundRequest(claimedJob(job), upstream(definition), (name) => secrets[name], trace);
  if ('kind' in built) throw new Error(built.error);
  return built;
}

t.test('outboundKey', async (t) => {
  const given = (key: string, tenant = 'default') => outboundKey({ tenant, key, keySource: 'given' });
  const hashed = /^sluice-[0-9a-f]{64}$/;

  t.test('a visible ASCII key of the default tenant goes out bare', async (t) => {
    for (const key of ['ord-1', '!', '~', 'a'.repeat(255), 'Sluice-1', 'sluice']) t.equal(given(key), key);
  });

  t.test('any other key goes out as a digest', async (t) => {
    for (const key of ['a b', 'é', '😀', 'a\u007f', 'sluice-', 'sluice-x', 'a'.repeat(256)])
      t.match(given(key), hashed, key);
  });

  t.test('a derived key goes out as it is, and a given one that looks like it does not', async (t) => {
    const key = `sluice-${'0'.repeat(64)}`;
    t.equal(outboundKey({ tenant: 'default', key, keySource: 'derived' }), key);
    t.not(given(key), key);
  });

  t.test('two tenants never share a key, not even a derived one', async (t) => {
    const derived = `sluice-${'0'.repeat(64)}`;
    t.match(given('1', 'a'), hashed);
    t.not(given('1', 'a'), given('1', 'b'));
    t.not(outboundKey({ tenant: 'a', key: derived, keySource: 'derived' }), derived);
  });

  t.test(
    'a fresh key is another with each wish for one, the same for all attempts after it, and nobody else has it',
    async (t) => {
      const fresh = (freshKeys: number, key = 'ord-1') =>
        outboundKey({ tenant: 'default', key, keySource: 'given', freshKeys });
      t.equal(fresh(0), 'ord-1');
      const keys = [fresh(1), fresh(2), fresh(11), fresh(1, 'ord-11'), fresh(0, 'é'), fresh(1, 'é')];
      for (const key of keys) t.match(key, hashed);
      t.equal(new Set(keys).size, keys.length);
      t.equal(fresh(1), fresh(1));
    },
  );

  t.test('the digest is over lengths in bytes and the texts', async (t) => {
    const digest = createHash('sha256').update('1:a3:é1').digest('hex');
    t.equal(given('é1', 'a'), `sluice-${digest}`);
  });

  t.test('property: different pairs of tenant and key give different outbound keys', async () => {
    const pair = fc.record({
      tenant: fc.constantFrom('default', 'a', 'a1', '1'),
      key: fc.string({ unit: 'grapheme', minLength: 1, maxLength: 6 }),
    });
    fc.assert(
      fc.property(
        pair,
        pair,
        (a, b) => (a.tenant === b.tenant && a.key === b.key) === (given(a.key, a.tenant) === given(b.key, b.tenant)),
      ),
      {
        examples: [
          [
            { tenant: 'a', key: '1x' },
            { tenant: 'a1', key: 'x' },
          ],
        ],
      },
    );
  });
});

t.test('buildOutboundRequest', async (t) => {
  t.test('carries the key, the job, the attempt, the version and the trace', async (t) => {
    const { headers } = build({ calls: 2, payloadVersion: '7' });
    t.match(headers, {
      'idempotency-key': 'ord-1',
      'sluice-job-id': claimedJob().jobId,
      'sluice-attempt': '3',
      'sluice-payload-version': '7',
      'content-type': 'application/json',
      traceparent: trace,
    });
    t.notOk('sluice-payload-version' in build().headers);
  });

  t.test('carries the same key on every attempt', async (t) => {
    const keys = [0, 1, 7].map((calls) => build({ calls, throttles: calls }).headers['idempotency-key']);
    t.same(keys, ['ord-1', 'ord-1', 'ord-1']);
  });

  t.test('uses the idempotency header of the upstream, or none', async (t) => {
    t.match(build({}, { idempotency_header: 'X-Request-Id' }).headers, { 'x-request-id': 'ord-1' });
    t.notOk(Object.values(build({}, { idempotency_header: null }).headers).includes('ord-1'));
  });

  t.test('sends a body byte for byte, with the type it has or is given', async (t) => {
    t.equal(build({ body: '{"a":"\\u0000"}' }).body, '{"a":"\\u0000"}');
    t.equal(build({ body: 'a=1', bodyIsText: true }).headers['content-type'], 'text/plain; charset=utf-8');
    const form = { body: 'a=1', bodyIsText: true, headers: { 'content-type': 'application/x-www-form-urlencoded' } };
    t.equal(build(form).headers['content-type'], 'application/x-www-form-urlencoded');
    t.equal(build({ body: null }).body, null);
    t.notOk('content-type' in build({ body: null }).headers);
  });

  t.test('lets the item add headers, but not displace the operator’s', async (t) => {
    const { headers } = build(
      { headers: { accept: 'text/plain', authorization: 'mine', traceparent: 'its own' } },
      { headers: { Authorization: 'Bearer operator' } },
    );
    t.match(headers, { accept: 'text/plain', authorization: 'Bearer operator', traceparent: 'its own' });
  });

  t.test('lets nobody displace the key or the Sluice headers, whatever is stored', async (t) => {
    const forged = { 'idempotency-key': 'forged', 'sluice-attempt': '99', 'sluice-job-id': 'forged' };
    const { headers } = build(
      { headers: forged },
      { headers: { 'Sluice-Job-Id': 'forged', 'IDEMPOTENCY-KEY': 'forged' } },
    );
    t.notOk(JSON.stringify(headers).includes('forged'));
    t.equal(headers['sluice-attempt'], '1');
  });

  t.test('fills in secrets and lists their values to be blotted out', async (t) => {
    const request = build(
      {},
      { headers: { authorization: 'Basic ${USER}:${PASS}', 'x-note': '$5 {USER}' } },
      { USER: 'u-12345678', PASS: '$&$1' },
    );
    t.equal(request.headers.authorization, 'Basic u-12345678:$&$1');
    t.equal(request.headers['x-note'], '$5 {USER}', 'only ${NAME} is a secret');
    t.same(request.secrets, ['u-12345678', '$&$1']);
  });

  t.test('is not sent where a secret is not set', async (t) => {
    const built = buildOutboundRequest(
      claimedJob(),
      upstream({ headers: { a: '${ONE}${TWO}' } }),
      () => undefined,
      trace,
    );
    t.match(built, { kind: 'not_sent', code: 'missing_secret', error: /ONE/ });
  });

  t.test('takes timeouts and address policy from the upstream', async (t) => {
    t.match(build(), { method: 'POST', timeoutMs: 15_000, connectTimeoutMs: 5000, allowPrivateAddresses: false });
    t.match(build({ method: 'GET' }, { timeout_ms: 7, connect_timeout_ms: 3, allow_private_addresses: true }), {
      method: 'GET',
      timeoutMs: 7,
      connectTimeoutMs: 3,
      allowPrivateAddresses: true,
    });
  });

  t.test('appends the path to base_url', async (t) => {
    const url = (base: string, path: string) => build({ path }, { base_url: base }).url.href;
    t.equal(url('https://api.example.test', '/v1/x?a=1&b=%20'), 'https://api.example.test/v1/x?a=1&b=%20');
    t.equal(url('https://api.example.test/', '/v1/x'), 'https://api.example.test/v1/x');
    t.equal(url('https://api.example.test/base', '/v1/x'), 'https://api.example.test/base/v1/x');
    t.equal(url('https://api.example.test/base/', '/v1/x'), 'https://api.example.test/base/v1/x');
    t.equal(url('https://api.example.test/base?key=1', '/x?a=2'), 'https://api.example.test/base/x?key=1&a=2');
    t.equal(url('https://api.example.test/base?key=1', '/x'), 'https://api.example.test/base/x?key=1');
    t.equal(url('http://api.example.test:8080', '/a b/é'), 'http://api.example.test:8080/a%20b/%C3%A9');
    t.equal(
      url('https://api.example.test', '//evil.test/x'),
      'https://api.example.test//evil.test/x',
      'even if it were stored',
    );
  });
});

t.test('buildReconcileRequest', async (t) => {
  const question = (
    job: Partial<ClaimedJob> = {},
    path = '/charges?key={key}',
    definition: Record<string, unknown> = {},
    secrets: Record<string, string> = {},
  ) => {
    const { reconcile, ...others } = upstream({ ...definition, reconcile: { path } });
    if (reconcile === null) throw new Error('cannot be');
    return buildReconcileRequest(claimedJob(job), { ...others, reconcile }, (name) => secrets[name], trace);
  };
  const sent = (...given: Parameters<typeof question>): OutboundRequest => {
    const built = question(...given);
    if ('kind' in built) throw new Error(built.error);
    return built;
  };

  t.test('is a GET with the headers of the call, without what makes it look like the call', async (t) => {
    const job = {
      method: 'POST',
      path: '/v1/charges',
      body: '{"amount":5}',
      headers: { 'x-account': 'a1', 'content-type': 'text/csv' },
      payloadVersion: '2',
      calls: 3,
    } as const;
    const headers = { authorization: 'Bearer ${API_KEY}', 'X-Version': '7' };
    const request = sent(
      job,
      undefined,
      { headers, timeout_ms: 7, connect_timeout_ms: 3 },
      { API_KEY: 's3cret-s3cret' },
    );
    t.same(
      { ...request, url: request.url.href },
      {
        url: 'https://api.example.test/charges?key=ord-1',
        method: 'GET',
        headers: {
          traceparent: trace,
          'x-account': 'a1',
          authorization: 'Bearer s3cret-s3cret',
          'x-version': '7',
          'sluice-job-id': claimedJob().jobId,
        },
        body: null,
        timeoutMs: 7,
        connectTimeoutMs: 3,
        allowPrivateAddresses: false,
        secrets: ['s3cret-s3cret'],
      },
    );
  });

  t.test('carries the key that the call carried, percent-encoded, wherever the path has it', async (t) => {
    const href = (idempotencyKey: string, path?: string, tenant = 'default') =>
      sent({ idempotencyKey, tenant }, path).url.href;
    t.equal(href('a/b?c&d=e#f%+'), 'https://api.example.test/charges?key=a%2Fb%3Fc%26d%3De%23f%25%2B');
    t.equal(href('$&$1', '/{key}/x?y={key}'), 'https://api.example.test/%24%26%241/x?y=%24%26%241');
    const outbound = outboundKey({ tenant: 'other', key: 'ord-1', keySource: 'given' });
    t.equal(href('ord-1', undefined, 'other'), `https://api.example.test/charges?key=${outbound}`);
    t.equal(
      href('é'),
      `https://api.example.test/charges?key=${outboundKey({ tenant: 'default', key: 'é', keySource: 'given' })}`,
    );
  });

  t.test('is not sent where the key would lead to another path, or a secret is missing', async (t) => {
    for (const idempotencyKey of ['.', '..']) {
      t.match(question({ idempotencyKey }, '/charges/{key}'), { kind: 'not_sent', code: 'invalid_path' });
      t.equal(sent({ idempotencyKey }).url.href, `https://api.example.test/charges?key=${idempotencyKey}`);
    }
    for (const idempotencyKey of ['...', 'a..b', '.a']) {
      t.equal(sent({ idempotencyKey }, '/charges/{key}').url.pathname, `/charges/${idempotencyKey}`);
    }
    t.match(question({}, undefined, { headers: { a: '${API_KEY}' } }), { kind: 'not_sent', code: 'missing_secret' });
  });

  t.test('property: no key leaves the path of reconcile', async () => {
    fc.assert(
      fc.property(
        fc.oneof(fc.string({ unit: fc.constantFrom('.', '/', '%', '2', 'e', '?', '#', '\\') }), fc.string()),
        (key) => {
          const built = question({ idempotencyKey: key }, '/a/{key}/b');
          return 'kind' in built || /^\/a\/[^/]*\/b$/.test(built.url.pathname);
        },
      ),
    );
  });
});

t.test('checkPath', async (t) => {
  t.test('accepts paths below the base_url, with queries', async (t) => {
    const paths = [
      '/',
      '/v1/charges',
      '/v1/charges?expand=a&b=1..2',
      '/a.b/c.',
      '/a/./b',
      '/%2fx',
      '/é',
      '/a b',
      '/x?u=https://y/..',
      '/a//b',
      '/a@b:80',
    ];
    for (const path of paths) t.equal(checkPath(path), null, path);
  });

  t.test('refuses what is absolute, climbs, or hides something', async (t) => {
    const paths = [
      '',
      'v1',
      'http://evil.test/',
      '//evil.test/x',
      '/..',
      '/../x',
      '/a/../b',
      '/a/..',
      '/%2e%2e/x',
      '/.%2E/x',
      '/%2E./x',
      '/a..b',
    ];
    const odd = [
      '/a\\b',
      '\\\\evil.test',
      '/a\nb',
      '/a\r\nhost: x',
      '/a\u0000',
      '/a\tb',
      '/\u007f',
      '/\u0085',
      '/a#b',
      '/\ud800',
      '/..%2f',
      '/..;/x',
    ];
    for (const path of [...paths, ...odd]) {
      t.match(checkPath(path), { pointer: '/path', code: 'invalid_path' }, encodeURIComponent(JSON.stringify(path)));
    }
  });

  t.test('says what it got, within reason', async (t) => {
    t.match(checkPath('x'), {
      message: 'path must start with / (it is appended to the base_url of its upstream), got "x"',
    });
    t.ok((checkPath('x'.repeat(10_000))?.message.length ?? 0) < 300);
  });

  t.test('does not repeat what may be a credential', async (t) => {
    for (const path of [
      'https://user:SECRET@api.test/x',
      '//user:SECRET@api.test/x',
      'x?api_key=SECRET',
      '/x?api_key=SECRET\\',
      '/x?a=1&b=\nSECRET',
      '/x#access_token=SECRET',
      '/..?SECRET',
    ]) {
      const message = checkPath(path)?.message ?? '';
      t.match(message, /, got "/, path);
      t.notMatch(message, /SECRET/, path);
    }
  });

  t.test('property: what is accepted stays on the host and below the path of base_url', async () => {
    const part = fc.constantFrom(
      '/',
      '.',
      '..',
      '%2e',
      '%2E',
      '\\',
      'a',
      '@evil.test',
      ':80',
      '?',
      '#',
      'http:',
      '//evil.test',
      ' ',
      '\t',
      'é',
      ';',
      '%5c',
      '%2f',
    );
    fc.assert(
      fc.property(
        fc.array(part, { maxLength: 8 }).map((parts) => parts.join('')),
        (path) => {
          if (checkPath(path) !== null) return true;
          const { url } = build({ path }, { base_url: 'https://api.example.test/base/' });
          return url.origin === 'https://api.example.test' && url.username === '' && url.pathname.startsWith('/base/');
        },
      ),
      { numRuns: 2000 },
    );
  });
});

t.test('checkItemHeaders', async (t) => {
  const codes = (headers: Record<string, string>, idempotencyHeader: string | null = 'Idempotency-Key') =>
    checkItemHeaders(headers, idempotencyHeader).map(({ pointer, code }) => `${code} ${pointer}`);

  t.test('accepts ordinary headers, credentials among them', async (t) => {
    t.same(
      codes({
        'Content-Type': 'text/csv',
        authorization: 'Bearer x',
        Cookie: 'a=b',
        'X-A': '',
        'x-b': 'a\tb',
        traceparent: trace,
        constructor: 'x',
      }),
      [],
    );
  });

  t.test('refuses a host that splits the request, and any host (CVE-2023-23936)', async (t) => {
    t.same(codes({ host: 'a\r\nx: y' }), ['forbidden_header /headers/host']);
    t.same(codes({ Host: 'api.example.test' }), ['forbidden_header /headers/Host']);
  });

  t.test('refuses values that no header holds, and does not repeat them', async (t) => {
    for (const value of ['a\nb', 'a\rb', 'a\u0000', 'é', '😀', '\u007f', '\u0085', '\ud800']) {
      const [fault] = checkItemHeaders({ 'x-a': value }, null);
      t.match(fault, { pointer: '/headers/x-a', code: 'invalid_header' }, encodeURIComponent(JSON.stringify(value)));
      t.notOk(fault?.message.includes(value));
    }
  });

  t.test('refuses names that are no tokens, and a name given twice', async (t) => {
    for (const name of ['bad name', '', 'a:b', 'a\nb', 'é', '(x)'])
      t.equal(checkItemHeaders({ [name]: '1' }, null)[0]?.code, 'invalid_header', name);
    t.same(codes({ 'X-A': '1', 'x-a': '2' }), ['invalid_header /headers/x-a']);
    t.same(codes({ 'a/b~c': '1' }), ['invalid_header /headers/a~1b~0c'], 'pointers are escaped (RFC 6901)');
  });

  t.test('refuses what steers the connection or frames the message (nodejs/undici#5059)', async (t) => {
    const forbidden = {
      'content-length': '1.1',
      'transfer-encoding': 'chunked',
      connection: 'x-api-key',
      expect: '100-continue',
    };
    const hopByHop = {
      'Keep-Alive': 'timeout=5',
      TE: 'trailers',
      Trailer: 'x',
      Upgrade: 'h2c',
      'Proxy-Authorization': 'x',
      'Proxy-Connection': 'close',
      'proxy-authenticate': 'x',
      'HTTP2-Settings': 'x',
    };
    for (const [name, value] of Object.entries({ ...forbidden, ...hopByHop }))
      t.same(codes({ [name]: value }), [`forbidden_header /headers/${name}`]);
    t.equal(isConnectionHeader('Transfer-Encoding'), true);
    t.equal(isConnectionHeader('accept'), false);
  });

  t.test('refuses the headers of the service and the idempotency header of the upstream, in any case', async (t) => {
    t.same(codes({ 'SLUICE-Job-Id': 'x', 'sluice-anything': 'x' }), [
      'forbidden_header /headers/SLUICE-Job-Id',
      'forbidden_header /headers/sluice-anything',
    ]);
    t.same(codes({ 'IDEMPOTENCY-KEY': 'x' }), ['forbidden_header /headers/IDEMPOTENCY-KEY']);
    t.same(codes({ 'idempotency-key': 'x' }, 'X-Request-Id'), [], 'of another upstream it is a header like any');
    t.same(codes({ 'x-request-id': 'x' }, 'X-Request-Id'), ['forbidden_header /headers/x-request-id']);
    t.same(codes({ 'idempotency-key': 'x' }, null), []);
  });

  t.test('names every fault', async (t) => {
    t.equal(codes({ host: 'x', 'x-a': 'é', accept: '*/*', te: 'x' }).length, 3);
  });

  t.test('isHeaderValue agrees with the check', async (t) => {
    t.equal(isHeaderValue('1.2'), true);
    t.equal(isHeaderValue('é'), false);
    t.equal(isHeaderValue('a\nb'), false);
  });
});
