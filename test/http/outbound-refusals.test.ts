/**
 * Where calls may not go and what items may not bring, as a client and an operator meet it: refused with a code when it is
 * declared or submitted, where it can be known then, else when the call connects, and with nothing sent.
 */
import t from 'tap';
import { createSender } from '../../src/outbound/send-request.ts';
import { systemClock } from '../../src/system/clock.ts';
import type { Job, VerdictItem } from '../support/client.ts';
import { waitFor } from '../support/client.ts';
import { codesOf, type Problem, useIntake } from '../support/intake.ts';
import { rawUpstream } from '../support/raw-upstream.ts';
import { startWorker } from '../support/worker.ts';

const privateHosts: Readonly<Record<string, readonly string[]>> = {
  loopback: ['127.0.0.1', '127.9.9.9', 'localhost', 'x.localhost', '[::1]', '0.0.0.0', '[::]'],
  'loopback in other spellings': ['127.1', '0x7f.0.0.1', '0177.0.0.1', '2130706433'],
  private: ['10.0.0.1', '172.16.0.1', '172.31.255.255', '192.168.1.1', '[fc00::1]', '[fd12:3456::1]'],
  'link-local': ['169.254.1.1', '[fe80::1]'],
  'carrier-grade NAT': ['100.64.0.1', '100.127.255.255'],
  multicast: ['224.0.0.1', '239.1.2.3', '[ff02::1]'],
  'IPv4-mapped': ['[::ffff:127.0.0.1]', '[::ffff:10.0.0.1]', '[::ffff:169.254.169.254]', '[::ffff:8.8.8.8]'],
  metadata: ['169.254.169.254', '[fd00:ec2::254]', '100.100.100.200', '192.0.0.192'],
};

t.test('an upstream at an address that is not public is refused when it is declared', async (t) => {
  const { app } = await useIntake(t);
  const put = (host: string, more: object = {}) =>
    app.app.inject({
      method: 'PUT',
      url: '/admin/upstreams/inside',
      payload: { base_url: `http://${host}/v1`, ...more },
    });
  for (const [kind, hosts] of Object.entries(privateHosts)) {
    for (const host of hosts) {
      const answer = await put(host);
      t.equal(answer.statusCode, 422, `${kind}: ${host}`);
      const { code, errors } = answer.json<Problem>();
      t.match(
        { code, errors },
        { code: 'invalid_definition', errors: [{ pointer: '/base_url', code: 'base_url_private' }] },
      );
    }
  }
  t.equal((await put('127.0.0.1', { allow_private_addresses: true })).statusCode, 201, 'unless it is allowed');
  t.equal((await put('127.0.0.1', { allow_private_addresses: false })).statusCode, 422, 'or no more');
});

const refusedItems: ReadonlyArray<readonly [item: object, code: string]> = [
  ...[
    'https://evil.test/x',
    'http://127.0.0.1/',
    '//evil.test/x',
    'x',
    '',
    '/..',
    '/a/../b',
    '/a/%2e%2E/b',
    '/a/..%2f',
    '/a\\b',
    '\\\\evil.test\\x',
    '/a\u0000',
    '/a\r\nhost: evil.test',
    '/a\tb',
    '/a\u007f',
    '/a#b',
  ].map((path) => [{ path }, 'invalid_path'] as const),
  // CVE-2023-23936 and nodejs/undici#5059.
  ...[
    { host: 'a\r\nx: y' },
    { Host: 'evil.test' },
    { 'content-length': '1.1' },
    { 'Content-Length': '5' },
    { 'transfer-encoding': 'chunked' },
    { connection: 'x-api-key' },
    { 'keep-alive': 'timeout=5' },
    { 'proxy-authorization': 'Basic eDp5' },
    { 'proxy-connection': 'close' },
    { te: 'trailers' },
    { trailer: 'x' },
    { upgrade: 'h2c' },
    { expect: '100-continue' },
    { 'Sluice-Attempt': '1' },
    { 'sluice-anything': 'x' },
    { 'idempotency-key': 'mine' },
    { 'IDEMPOTENCY-KEY': 'mine' },
  ].map((headers) => [{ headers }, 'forbidden_header'] as const),
  ...[
    { x: 'a\nb' },
    { x: 'a\rb' },
    { x: 'a\u0000' },
    { x: 'é' },
    { x: '😀' },
    { 'bad name': '1' },
    { '': '1' },
    { 'x:y': '1' },
  ].map((headers) => [{ headers }, 'invalid_header'] as const),
];

t.test('an item that would leave its upstream or steer the connection is rejected, alone', async (t) => {
  const { submit, app, count } = await useIntake(t);
  const items = [
    ...refusedItems.map(([item], index) => ({ idempotency_key: `k${index}`, ...item })),
    { idempotency_key: 'good', headers: { authorization: 'Bearer x', 'x-a': 'b' } },
  ];
  const inDefaults = await Promise.all(
    refusedItems.map(([item]) =>
      submit([{ idempotency_key: 'd' }], { defaults: { upstream: 'api', path: '/x', ...item } }),
    ),
  );
  const lines = await app.app.inject({
    method: 'POST',
    url: '/v1/batches?upstream=api&path=/charges',
    headers: { 'content-type': 'application/x-ndjson' },
    payload: items.map((item) => JSON.stringify(item)).join('\n'),
  });
  const streamed = lines.body
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as VerdictItem);
  const answered = await submit(items);
  for (const [index, [item, code]] of refusedItems.entries()) {
    for (const [how, verdict] of Object.entries({
      item: answered[index],
      line: streamed[index],
      default: inDefaults[index]?.[0],
    })) {
      t.match([verdict?.verdict, codesOf(verdict)], ['rejected', [code]], `${how} ${JSON.stringify(item)}`);
    }
  }
  t.match([answered.at(-1)?.verdict, streamed.at(-2)?.verdict], ['duplicate', 'accepted']);
  t.equal(await count('jobs'), 1);
});

t.test(
  'a name that leads inside is found out when the call connects: nothing is sent, and the job says why',
  async (t) => {
    const { submit, putUpstream, connectionString, get } = await useIntake(t);
    const inside = await rawUpstream(t);
    const retry = { max_attempts: 2, base_ms: 1, cap_ms: 1 };
    await putUpstream('api', { base_url: inside.url('/', 'rebind.test').href, retry });
    // Public for whoever asked before, as a check at submission would; inside when the call is made (h4ckf0r0day/obscura#279).
    const answers = [['93.184.216.34', '127.0.0.1'], ['127.0.0.1'], ['::ffff:127.0.0.1']];
    const sender = createSender({
      clock: systemClock,
      lookup: (_host, _options, callback) => {
        const addresses = answers.length > 1 ? answers.shift()! : answers[0]!;
        callback(
          null,
          addresses.map((address) => ({ address, family: address.includes(':') ? 6 : 4 })),
        );
      },
    });
    t.teardown(() => sender.close());
    const [item] = await submit([{ idempotency_key: 'k' }]);
    await startWorker(t, { connectionString, around: () => sender });
    const { body: job } = await waitFor(
      () => get<Job & { attempts: Array<{ error: string }> }>(`/v1/jobs/${item!.job_id}`),
      ({ body }) => body.state === 'failed',
      10_000,
    );
    t.match(job, { reason: 'attempts_exhausted', attempts_used: 2, response: null });
    const refused = {
      outcome: 'not_sent',
      sent_at: null,
      status: null,
      error: /rebind\.test.*is not a public address/,
    };
    t.match(job.attempts, [refused, refused]);
    t.equal(inside.connections.length, 0);
  },
);
