/** What a client gives as a body is what the upstream gets, to the byte: through intake, store, claim and socket. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import t from 'tap';
import { startFleet } from '../support/fleet.ts';

t.setTimeout(60_000);

interface Received {
  readonly bytes: Buffer;
  readonly type: string | undefined;
  readonly length: string | undefined;
}

t.test('bodies come out byte for byte (brianc/node-postgres#2385, drizzle-team/drizzle-orm#5139)', async (t) => {
  const received = new Map<string, Received>();
  const upstream = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const { 'idempotency-key': key, 'content-type': type, 'content-length': length } = request.headers;
      received.set(String(key), { bytes: Buffer.concat(chunks), type, length });
      response.end('ok');
    });
  });
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  t.teardown(() => new Promise((resolve) => upstream.close(resolve).closeAllConnections()));
  const { client } = await startFleet(t);
  await client.putUpstream('raw', `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`);

  /** As it is sent to us in JSON, and the bytes that the upstream must see. */
  const bodies: Array<[key: string, member: string, bytes: string]> = [
    ['number-in-text', '"body":"10.5"', '"10.5"'],
    ['object-in-text', String.raw`"body":"{\"a\":1}"`, String.raw`"{\"a\":1}"`],
    ['nul', String.raw`"body":"a\u0000b"`, String.raw`"a\u0000b"`],
    ['lone-surrogate', String.raw`"body":["\ud800","\udfff"]`, String.raw`["\ud800","\udfff"]`],
    ['emoji', '"body":"😀 ü \u2028"', '"😀 ü \u2028"'],
    ['escaped-emoji', String.raw`"body":"\ud83d\ude00"`, '"😀"'],
    ['empty-object', '"body":{}', '{}'],
    ['empty-array', '"body":[]', '[]'],
    ['null', '"body":null', 'null'],
    ['false', '"body":false', 'false'],
    ['zero', '"body":0', '0'],
    ['empty-string', '"body":""', '""'],
    ['order', '"body":{"b":1,"a":{"d":[1,2,{}],"c":null}}', '{"b":1,"a":{"d":[1,2,{}],"c":null}}'],
    ['largest-integer', '"body":[9007199254740991,-9007199254740991]', '[9007199254740991,-9007199254740991]'],
    ['proto', '"body":{"__proto__":{"a":1},"constructor":"x"}', '{"__proto__":{"a":1},"constructor":"x"}'],
    ['large-integer-text', String.raw`"body_text":"{\"id\": 9007199254740993 }"`, '{"id": 9007199254740993 }'],
    ['text', String.raw`"body_text":"a\u0000\r\n😀"`, 'a\u0000\r\n😀'],
  ];
  const items = [
    ...bodies.map(([key, member]) => `{"idempotency_key":"${key}",${member}}`),
    '{"idempotency_key":"absent"}',
    '{"idempotency_key":"typed","body_text":"<a/>","headers":{"content-type":"application/xml"}}',
    '{"idempotency_key":"too-large","body":9007199254740993}',
  ];
  const batch = await client.call<{
    batch_id: string;
    items: Array<{ verdict: string; errors?: Array<{ code: string }> }>;
  }>('POST', '/v1/batches', { body: `{"defaults":{"upstream":"raw","path":"/x"},"items":[${items.join(',')}]}` });
  t.match(batch.items.at(-1), { verdict: 'rejected', errors: [{ code: 'unsafe_number' }] });
  const { jobs } = await client.waitForBatch(batch.batch_id, 20_000);
  t.equal(jobs.succeeded, items.length - 1);

  for (const [key, , expected] of bodies) {
    const bytes = Buffer.from(expected, 'utf8');
    t.same(received.get(key)?.bytes, bytes, key);
    t.equal(received.get(key)?.length, String(bytes.length));
  }
  t.match(received.get('order')?.type, 'application/json');
  t.match(received.get('typed'), { bytes: Buffer.from('<a/>'), type: 'application/xml' });
  t.match(received.get('absent'), { bytes: Buffer.alloc(0), type: undefined });
  t.notOk(received.has('too-large'));
});
