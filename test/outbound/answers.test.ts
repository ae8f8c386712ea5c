import { createHash } from 'node:crypto';
import { once } from 'node:events';
import net from 'node:net';
import v8 from 'node:v8';
import vm from 'node:vm';
import zlib from 'node:zlib';
import t from 'tap';
import { answer, rawUpstream } from '../support/raw-upstream.ts';
import { answered, setupSender } from './setup-sender.ts';

const sha256 = (bytes: Buffer | string) => createHash('sha256').update(bytes).digest('hex');
const excerptBytes = 64 * 1024;
const mostRead = excerptBytes + 1024 * 1024;

t.test('the request goes out as it was given, and nothing else with it', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }) => socket.write(answer(200)));
  const { send } = setupSender(t);
  const body = '{"a":"é😀\\u0000"}';
  await send({
    url: upstream.url('/v1/x?a=1&b=%20'),
    body,
    headers: { 'content-type': 'application/json', 'x-a': '' },
  });
  const bytes = Buffer.from(body);
  t.equal(
    Buffer.from(upstream.received(), 'latin1').toString(),
    [
      'POST /v1/x?a=1&b=%20 HTTP/1.1',
      `host: 127.0.0.1:${upstream.port}`,
      'connection: keep-alive',
      'content-type: application/json',
      'x-a: ',
      `content-length: ${bytes.length}`,
      '',
      body,
    ].join('\r\n'),
  );
});

t.test('without a body, POST says so and GET says nothing', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }) => socket.write(answer(200)));
  const { send } = setupSender(t);
  await send({ url: upstream.url('/post'), body: null });
  t.match(upstream.received(), 'content-length: 0');
  await send({ url: upstream.url('/get'), method: 'GET', body: null });
  t.notMatch(upstream.received().split('GET ')[1], 'content-length');
});

t.test('a header given twice arrives as both (aaronpowell/httpstatus#153)', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }) => {
    socket.write(answer(429, '', ['Retry-After: 1', 'X-One: 1', 'retry-after: 30']));
  });
  const { send } = setupSender(t);
  t.match(answered(await send({ url: upstream.url() })).answer, {
    status: 429,
    headers: { 'retry-after': ['1', '30'], 'x-one': '1' },
  });
});

t.test('an error status keeps its body and its connection (nodejs/undici#4222)', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }, _request, index) => {
    socket.write(index === 0 ? answer(500, '{"err":"x"}') : answer(200));
  });
  const { send } = setupSender(t, { connectionsPerOrigin: 1 });
  t.match(answered(await send({ url: upstream.url() })).answer, {
    status: 500,
    excerpt: '{"err":"x"}',
    truncated: false,
  });
  t.equal(answered(await send({ url: upstream.url() })).answer.status, 200);
  t.equal(upstream.connections.length, 1);
});

t.test(
  'bodies of errors are read or dropped: no socket and no memory is kept (proconnect-gouv/proconnect-identite#1904)',
  async (t) => {
    const body = Buffer.alloc(200 * 1024, 'x');
    const upstream = await rawUpstream(t, ({ socket }, _request, index) =>
      socket.write(answer(index % 2 === 0 ? 429 : 500, body)),
    );
    const { send } = setupSender(t, { connectionsPerOrigin: 10 });
    v8.setFlagsFromString('--expose-gc');
    const collect = vm.runInNewContext('gc') as () => void;
    const used = () => {
      collect();
      const { heapUsed, external } = process.memoryUsage();
      return heapUsed + external;
    };
    const before = used();
    let left = 500;
    const digests = new Set<string>();
    await Promise.all(
      Array.from({ length: 25 }, async () => {
        while (left > 0) {
          left -= 1;
          const { answer } = answered(await send({ url: upstream.url() }));
          digests.add(`${answer.sha256} ${answer.excerpt.length} ${answer.truncated}`);
        }
      }),
    );
    t.same([...digests], [`${sha256(body)} ${excerptBytes} true`]);
    t.ok(upstream.mostOpen() <= 10, `${upstream.mostOpen()} sockets at one time`);
    t.equal(upstream.connections.length, upstream.mostOpen(), 'none was given up');
    // Buffers are given back a turn or two after their collection; those that somebody holds never are.
    while (used() - before > 20 * 1024 * 1024) await new Promise(setImmediate);
    t.pass('of 100 MB of bodies less than 20 MB is still in use');
  },
);

t.test('an endless body is cut, and the digest is over what was read', async (t) => {
  const chunk = Buffer.alloc(16 * 1024, 'e');
  const upstream = await rawUpstream(t, ({ socket }) => {
    socket.write('HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n');
    const pour = () => {
      while (!socket.destroyed && socket.write(`4000\r\n${chunk}\r\n`));
      socket.once('drain', pour);
    };
    pour();
  });
  const { send } = setupSender(t);
  const result = answered(await send({ url: upstream.url() }));
  t.match(result.answer, { status: 200, truncated: true });
  t.equal(result.answer.excerpt.length, excerptBytes);
  t.equal(result.answer.sha256, sha256(Buffer.alloc(mostRead, 'e')));
  t.notOk('bodyError' in result, 'what is cut by rule is no fault');
  await upstream.connections[0]?.closed;
});

t.test('a body up to the bound is read whole; one byte more is cut', async (t) => {
  for (const [length, connections] of [
    [mostRead, 1],
    [mostRead + 1, 2],
  ] as const) {
    const body = Buffer.alloc(length, 'b');
    const upstream = await rawUpstream(t, ({ socket }) => socket.write(answer(200, body)));
    const { send } = setupSender(t, { connectionsPerOrigin: 1 });
    const { answer: first } = answered(await send({ url: upstream.url() }));
    t.equal(first.sha256, sha256(body.subarray(0, mostRead)));
    t.equal(first.truncated, true);
    await send({ url: upstream.url() });
    t.equal(upstream.connections.length, connections, `${length} bytes`);
  }
});

t.test('the excerpt is the whole body up to 64 KiB, and says when it is not', async (t) => {
  const sizes = [0, 1, excerptBytes - 1, excerptBytes, excerptBytes + 1];
  const upstream = await rawUpstream(t, ({ socket }, _request, index) =>
    socket.write(answer(200, Buffer.alloc(sizes[index] ?? 0, 'b'))),
  );
  const { send } = setupSender(t);
  for (const size of sizes) {
    const { answer } = answered(await send({ url: upstream.url() }));
    t.equal(answer.excerpt.length, Math.min(size, excerptBytes), `${size} bytes`);
    t.equal(answer.truncated, size > excerptBytes, `${size} bytes`);
    t.equal(answer.sha256, sha256(Buffer.alloc(size, 'b')));
  }
});

t.test('an excerpt does not end in half a character, and has no NUL', async (t) => {
  const bodies = [
    Buffer.from(`a${'é'.repeat(excerptBytes)}`),
    Buffer.from(`${'x'.repeat(excerptBytes - 1)}😀`),
    Buffer.from('a\0b'),
    Buffer.from([0x66, 0xff]),
  ];
  const upstream = await rawUpstream(t, ({ socket }, _request, index) => socket.write(answer(200, bodies[index])));
  const { send } = setupSender(t);
  const excerpts: string[] = [];
  for (const body of bodies) {
    const { answer } = answered(await send({ url: upstream.url() }));
    excerpts.push(answer.excerpt);
    t.equal(answer.sha256, sha256(body));
  }
  t.equal(excerpts[0], `a${'é'.repeat(excerptBytes / 2 - 1)}`);
  t.equal(excerpts[1], 'x'.repeat(excerptBytes - 1));
  t.equal(excerpts[2], 'a\ufffdb');
  t.equal(excerpts[3], 'f\ufffd');
});

t.test('a Content-Encoding is not undone, so a bomb stays small (CVE-2026-22036)', async (t) => {
  const bomb = zlib.gzipSync(Buffer.alloc(50 * 1024 * 1024));
  const chain = Array<string>(1000).fill('gzip').join(', ');
  const upstream = await rawUpstream(t, ({ socket }, _request, index) => {
    socket.write(answer(200, bomb, [`content-encoding: ${index === 0 ? 'gzip' : chain}`]));
  });
  const { send } = setupSender(t);
  for (const encoding of ['gzip', chain]) {
    const { answer } = answered(await send({ url: upstream.url() }));
    t.equal(answer.sha256, sha256(bomb), 'as it came on the wire');
    t.equal(answer.headers['content-encoding'], encoding);
  }
});

t.test('a Content-Length that promises more than comes is an answer with a broken body', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }) => socket.end('HTTP/1.1 200 X\r\ncontent-length: 10\r\n\r\nabc'));
  const { send } = setupSender(t);
  const result = answered(await send({ url: upstream.url() }));
  t.match(result, { answer: { status: 200, excerpt: 'abc', truncated: true }, bodyError: /other side closed/ });
  t.equal(result.bodyTimedOut, undefined);
});

t.test('what comes beyond a Content-Length does not reach the next call', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }, request) => {
    const honest = answer(200, request.includes('/second') ? 'second' : 'ab');
    socket.write(request.includes('/first') ? Buffer.concat([honest, answer(500, 'smuggled')]) : honest);
  });
  const { send } = setupSender(t, { connectionsPerOrigin: 1 });
  t.equal(answered(await send({ url: upstream.url('/first') })).answer.excerpt, 'ab');
  t.match(answered(await send({ url: upstream.url('/second') })).answer, { status: 200, excerpt: 'second' });
});

t.test(
  'redirects are not followed, whatever the status and wherever they lead (nodejs/undici#872, formbricks/formbricks#7877)',
  async (t) => {
    const elsewhere = await rawUpstream(t, ({ socket }) => socket.write(answer(200)));
    const location = elsewhere.url('/secret').href;
    const statuses = [301, 302, 303, 307, 308];
    const upstream = await rawUpstream(t, ({ socket }, _request, index) =>
      socket.write(answer(statuses[index] ?? 500, '', [`location: ${location}`])),
    );
    const { send } = setupSender(t);
    for (const status of statuses) {
      const { answer } = answered(await send({ url: upstream.url(), headers: { authorization: 'x', cookie: 'y' } }));
      t.match(answer, { status, headers: { location } });
    }
    t.equal(elsewhere.connections.length, 0);
  },
);

t.test('interim answers are passed over', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }) => {
    socket.write('HTTP/1.1 102 X\r\nretry-after: 9\r\n\r\nHTTP/1.1 103 X\r\nlink: <x>\r\n\r\n');
    socket.write(answer(201, 'done'));
  });
  const { send } = setupSender(t);
  const { answer: final } = answered(await send({ url: upstream.url() }));
  t.match(final, { status: 201, excerpt: 'done' });
  t.notOk('retry-after' in final.headers);
});

t.test('an interim answer is none, if nothing follows it', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }) => socket.end('HTTP/1.1 103 X\r\n\r\n'));
  const { send } = setupSender(t);
  t.match(await send({ url: upstream.url() }), { kind: 'no_answer', reason: 'reset' });
});

t.test('what is no HTTP is no answer', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }) => socket.write('SSH-2.0-OpenSSH_9.7\r\n'));
  const { send } = setupSender(t);
  t.match(await send({ url: upstream.url() }), {
    kind: 'no_answer',
    reason: 'reset',
    error: /does not match the HTTP/,
  });
  await upstream.connections[0]?.closed;
});

t.test('a head too large to read is no answer', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }) => socket.write(answer(200, '', [`x-a: ${'a'.repeat(100_000)}`])));
  const { send } = setupSender(t);
  t.match(await send({ url: upstream.url() }), {
    kind: 'no_answer',
    reason: 'reset',
    error: /UND_ERR_HEADERS_OVERFLOW/,
  });
});

t.test('nobody listening is not sent', async (t) => {
  const listener = net.createServer().listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const { port } = listener.address() as net.AddressInfo;
  listener.close();
  await once(listener, 'close');
  const { send } = setupSender(t);
  t.match(await send({ url: new URL(`http://127.0.0.1:${port}/`) }), {
    kind: 'not_sent',
    code: 'ECONNREFUSED',
    error: /ECONNREFUSED/,
  });
});

t.test('no TLS where TLS is wanted is not sent', async (t) => {
  const upstream = await rawUpstream(t);
  const { send } = setupSender(t);
  const url = upstream.url();
  url.protocol = 'https:';
  const call = send({ url });
  while (upstream.connections[0] === undefined) await new Promise(setImmediate);
  upstream.connections[0].socket.write('HTTP/1.1 400 no TLS here\r\n\r\n');
  t.match(await call, { kind: 'not_sent', error: /SSL|TLS|wrong version/i });
});

t.test(
  'a header that no request can hold is not sent, named without its value, and costs no connection (CVE-2023-23936)',
  async (t) => {
    const upstream = await rawUpstream(t, ({ socket }) => socket.write(answer(200)));
    const { send } = setupSender(t, { connectionsPerOrigin: 1 });
    const secret = 'line one\r\nx-injected: 1';
    for (const headers of [
      { authorization: secret },
      { 'x-emoji': '😀' },
      { 'bad name': '1' },
      { 'transfer-encoding': 'chunked' },
      { expect: '100-continue' },
    ]) {
      const result = await send({ url: upstream.url('/bad'), headers });
      t.match(result, { kind: 'not_sent', code: 'invalid_header' });
      t.notMatch(JSON.stringify(result), 'injected');
    }
    t.equal(upstream.connections.length, 0);
    answered(await send({ url: upstream.url(), headers: { host: 'api.example.test', 'x-latin': 'é' } }));
    t.match(upstream.received(), /host: api\.example\.test\r\n/);
  },
);

t.test('secrets that an answer repeats are blotted out, in the body and in headers', async (t) => {
  const secrets = ['abcdefgh', 'abcdefgh-and-more', 'short'];
  const upstream = await rawUpstream(t, ({ socket }) => {
    socket.write(
      answer(401, '{"key":"abcdefgh-and-more","also":"abcdefgh","short":"short"}', [
        'x-echo: abcdefgh!',
        'x-echo: abcdefgh?',
      ]),
    );
  });
  const { send } = setupSender(t);
  const { answer: kept } = answered(await send({ url: upstream.url(), secrets }));
  t.match(kept.excerpt, /^\{"key":"\*+","also":"\*{8}","short":"short"\}$/);
  t.same(kept.headers['x-echo'], ['********!', '********?']);
  t.equal(kept.sha256, sha256('{"key":"abcdefgh-and-more","also":"abcdefgh","short":"short"}'));
});

t.test('a secret is blotted out as JSON and URLs spell it, too', async (t) => {
  const secret = 'pa"ss\\word/+=&';
  const echo = `${JSON.stringify({ secret })} ?key=${encodeURIComponent(secret)} ${secret}`;
  const upstream = await rawUpstream(t, ({ socket }) => {
    socket.write(answer(400, echo, [`location: /x?key=${encodeURIComponent(secret)}`]));
  });
  const { send } = setupSender(t);
  const { answer: kept } = answered(await send({ url: upstream.url(), secrets: [secret] }));
  t.match(kept.excerpt, /^\{"secret":"\*+"\} \?key=\*+ \*+$/);
  t.equal(kept.headers.location, '/x?key=********');
});

t.test('a secret across the end of the excerpt, or across two packets, is blotted out whole', async (t) => {
  const secret = 'abcdefghijklmnop';
  const upstream = await rawUpstream(t, ({ socket }, _request, index) => {
    if (index === 0) return socket.write(answer(200, `${'x'.repeat(excerptBytes - 10)}${secret}${'y'.repeat(100)}`));
    socket.write('HTTP/1.1 200 X\r\ncontent-length: 18\r\n\r\n<abcdefgh', () => {
      setImmediate(() => socket.write('ijklmnop>'));
    });
  });
  const { send } = setupSender(t);
  const { answer: first } = answered(await send({ url: upstream.url(), secrets: [secret] }));
  t.equal(first.excerpt, `${'x'.repeat(excerptBytes - 10)}${'*'.repeat(10)}`);
  const { answer: second } = answered(await send({ url: upstream.url(), secrets: [secret] }));
  t.equal(second.excerpt, `<${'*'.repeat(16)}>`);
});

t.test('a secret in which an answer breaks off is blotted out as far as it came', async (t) => {
  const secrets = ['abcdefghijklmnop', 'other-secret'];
  const bodies = ['<abcdefghijklmno', '<abcd', '<abc', '<other-secre', '<abcdefghijklmnop>'];
  const upstream = await rawUpstream(t, ({ socket }, _request, index) => {
    socket.write(`HTTP/1.1 200 X\r\ncontent-length: 100\r\n\r\n${bodies[index]}`, () => socket.destroy());
  });
  const { send } = setupSender(t);
  const kept: string[] = [];
  for (const _ of bodies) kept.push(answered(await send({ url: upstream.url(), secrets })).answer.excerpt);
  t.same(kept, [`<${'*'.repeat(15)}`, '<****', '<abc', `<${'*'.repeat(11)}`, `<${'*'.repeat(16)}>`]);
});

t.test('secrets in the text of an error are blotted out', async (t) => {
  const { send } = setupSender(t, {
    lookup: (hostname, _options, callback) =>
      callback(Object.assign(new Error(`no ${hostname}`), { code: 'ENOTFOUND' }), []),
  });
  const result = await send({ url: new URL('http://secret-name.test/'), secrets: ['secret-name'] });
  t.same(result, { kind: 'not_sent', code: 'ENOTFOUND', error: 'no ********.test (ENOTFOUND)' });
});
