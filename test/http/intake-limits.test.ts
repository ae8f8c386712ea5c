/** What is too much for one request, over real sockets: both sides of each limit, and the service goes on. */
import { type IncomingMessage, request } from 'node:http';
import { isDeepStrictEqual } from 'node:util';
import t from 'tap';
import { defaults, type Intake, type Problem, useIntake } from '../support/intake.ts';

const limitBytes = 16 * 1_048_576;

async function listen(intake: Intake): Promise<string> {
  return intake.app.app.listen({ port: 0, host: '127.0.0.1' });
}

interface Sent {
  readonly status: number;
  readonly type: string | undefined;
  readonly body: Problem & { readonly counts?: { readonly accepted: number } };
}

/** `chunks` go out as they are asked for; without `contentLength` in chunked encoding. */
function send(url: string, chunks: Iterable<string | Buffer>, contentLength?: number): Promise<Sent> {
  return new Promise((resolve, reject) => {
    const headers = {
      'content-type': 'application/json',
      ...(contentLength === undefined ? {} : { 'content-length': contentLength }),
    };
    const req = request(`${url}/v1/batches`, { method: 'POST', headers }, (res) => {
      readText(res).then(
        (text) => resolve({ status: res.statusCode!, type: res.headers['content-type'], body: JSON.parse(text) }),
        reject,
      );
    });
    req.on('error', reject);
    const iterator = chunks[Symbol.iterator]();
    const write = () => {
      for (let next = iterator.next(); !next.done; next = iterator.next()) {
        if (!req.write(next.value)) {
          req.once('drain', write);
          return;
        }
      }
      req.end();
    };
    write();
  });
}

async function readText(stream: IncomingMessage): Promise<string> {
  let text = '';
  for await (const chunk of stream.setEncoding('utf8')) text += chunk;
  return text;
}

/** A batch of one item that has exactly this many bytes. */
function batchOf(bytes: number): string {
  const batch = (text: string) => JSON.stringify({ defaults, items: [{ idempotency_key: `${bytes}`, body: text }] });
  return batch('x'.repeat(bytes - batch('').length));
}

t.test('16 MiB are taken, a byte more is a 413 that names the limit (rybbit-io/rybbit#582)', async (t) => {
  const intake = await useIntake(t);
  const url = await listen(intake);
  const largest = batchOf(limitBytes);
  t.equal(Buffer.byteLength(largest), limitBytes);
  t.match(await send(url, [largest], limitBytes), { status: 202, body: { counts: { accepted: 1 } } });

  const tooLarge = batchOf(limitBytes + 1);
  const refused = {
    status: 413,
    type: 'application/problem+json',
    body: { code: 'payload_too_large', detail: /16777216 bytes \(16 MiB\)/ },
  };
  t.match(await send(url, [tooLarge], limitBytes + 1), refused, 'with a length');
  t.match(await send(url, [tooLarge]), refused, 'in chunks');
  t.equal(await intake.count('batches'), 1);
});

t.test(
  'a client that sends far too much gets its answer, and the next one is served (valyala/fasthttp#1348)',
  async (t) => {
    const intake = await useIntake(t);
    const url = await listen(intake);
    const chunk = Buffer.alloc(1_048_576, 'x');
    function* chunks() {
      for (let i = 0; i < 48; i++) yield chunk;
    }
    t.match(await send(url, chunks()), { status: 413, body: { code: 'payload_too_large' } });
    t.match(await send(url, chunks(), 48 * chunk.length), { status: 413, body: { code: 'payload_too_large' } });
    t.match(await send(url, [batchOf(1000)]), { status: 202 });
  },
);

t.test('10,000 items are taken, one more is a 413 that names the limit', async (t) => {
  const intake = await useIntake(t);
  const items = Array.from({ length: 10_001 }, (_, i) => ({ idempotency_key: `k${i}` }));
  const largest = await intake.post({ defaults, items: items.slice(0, 10_000) });
  t.match(largest, { status: 202, body: { counts: { total: 10_000, accepted: 10_000 } } });
  t.equal(largest.body.items.length, 10_000);
  t.ok(largest.body.items.every((item, index) => item.index === index && item.idempotency_key === `k${index}`));

  const refused = await intake.post<Problem>({ defaults, items });
  t.match(refused, { status: 413, body: { code: 'too_many_items', detail: /10001 items, the limit is 10000/ } });
  t.equal(await intake.count('batches'), 1);
});

t.test('deep nesting is refused, wherever it is, and the service goes on (honojs/node-server#327)', async (t) => {
  const { post } = await useIntake(t);
  const deep = (levels: number) => `${'['.repeat(levels)}${']'.repeat(levels)}`;
  const inBody = (json: string) =>
    `{"defaults":${JSON.stringify(defaults)},"items":[{"idempotency_key":"k","body":${json}}]}`;
  for (const body of [
    '['.repeat(100_000),
    deep(100_000),
    `{"items":${deep(100_000)}}`,
    inBody(deep(100_000)),
    inBody(`${'{"a":'.repeat(100_000)}1${'}'.repeat(100_000)}`),
    // The body is in an item, in the items, in the batch.
    inBody(deep(510)),
  ]) {
    t.match(await post(body), { status: 400, body: { code: 'malformed_json', detail: /512/ } }, body.slice(0, 20));
  }
  t.match(await post(inBody(deep(509))), { status: 202, body: { counts: { accepted: 1 } } });
});

t.test('a batch with every field of 10,000 items is far beyond what bind parameters could carry', async (t) => {
  const intake = await useIntake(t);
  const items = Array.from({ length: 10_000 }, (_, i) => ({
    idempotency_key: `key "${i}" \\ {}`,
    method: i % 2 === 0 ? 'PUT' : 'PATCH',
    path: `/charges/${i}?a=${i}`,
    headers: { 'x-number': `${i}`, 'x-quote': '"\\' },
    body: { text: 'line\nbreak\u0000\ud800', i },
    partition_key: `p${i % 500}`,
    priority: (i % 100) - 50,
    cost: (i % 3) + 1,
    max_attempts: (i % 9) + 1,
    payload_version: `${i % 7}`,
    run_at: i % 10 === 0 ? '2099-01-01T00:00:00Z' : null,
    expires_at: '2100-01-01T00:00:00Z',
  }));
  const { status, body } = await intake.post({ defaults, items });
  t.equal(status, 202);
  t.equal(body.counts.accepted, 10_000);
  const rows = await intake.database.query<Record<string, unknown>>(
    `select j.idempotency_key, j.method, j.path, j.headers::json as headers, j.body, j.partition_key, -j.rank as priority,
            j.cost, j.max_attempts, j.payload_version, j.run_at, j.expires_at, i.index
       from sluice.batch_items i join sluice.jobs j on j.id = i.job_id order by i.index`,
  );
  const expected = items.map((item, index) => ({
    ...item,
    body: JSON.stringify(item.body),
    run_at: item.run_at === null ? null : new Date(item.run_at),
    expires_at: new Date(item.expires_at),
    index,
  }));
  const different = rows.findIndex((row, index) => !isDeepStrictEqual(row, expected[index]));
  t.same(rows[different], expected[different], 'every field of every item is stored');
  t.equal(rows.length, expected.length);
  t.same([await intake.count('lanes'), await intake.count('parked_jobs')], [500, 1000]);
});
