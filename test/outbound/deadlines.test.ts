import t from 'tap';
import { systemClock } from '../../src/system/clock.ts';
import { answer, rawUpstream } from '../support/raw-upstream.ts';
import { answered, setupSender } from './setup-sender.ts';

const timeoutMs = 150;

/** How long something took; by the clock that the sender itself uses. */
async function timed<T>(work: () => Promise<T>): Promise<[result: T, tookMs: number]> {
  const from = systemClock.monotonicMs();
  return [await work(), systemClock.monotonicMs() - from];
}

t.test('no answer at all: unanswered at the deadline, never before it, and the socket is gone', async (t) => {
  const upstream = await rawUpstream(t);
  const { send } = setupSender(t);
  const [result, tookMs] = await timed(() => send({ url: upstream.url(), timeoutMs }));
  t.match(result, { kind: 'no_answer', reason: 'timeout', error: 'not over within 150 ms' });
  t.ok(tookMs >= timeoutMs, `${tookMs} ms`);
  await upstream.connections[0]?.closed;
});

t.test('a head that drips byte by byte does not put the deadline off (nodejs/undici#1987)', async (t) => {
  const upstream = await rawUpstream(t, ({ socket, closed }) => {
    const drip = setInterval(() => socket.write('H'), 10);
    socket.write('HTTP/1.1 200 X\r\nx-long: ');
    void closed.then(() => clearInterval(drip));
  });
  const { send } = setupSender(t);
  t.match(await send({ url: upstream.url(), timeoutMs }), { kind: 'no_answer', reason: 'timeout' });
  await upstream.connections[0]?.closed;
});

t.test('a body that drips byte by byte does not put the deadline off (nodejs/undici#1987)', async (t) => {
  const upstream = await rawUpstream(t, ({ socket, closed }) => {
    socket.write('HTTP/1.1 200 X\r\ncontent-length: 1000000\r\n\r\n');
    const drip = setInterval(() => socket.write('b'), 10);
    void closed.then(() => clearInterval(drip));
  });
  const { send } = setupSender(t);
  const [result, tookMs] = await timed(() => send({ url: upstream.url(), timeoutMs }));
  t.match(answered(result), {
    answer: { status: 200, excerpt: /^b+$/, truncated: true },
    bodyTimedOut: true,
    bodyError: 'body not over within 150 ms',
  });
  t.ok(tookMs >= timeoutMs, `${tookMs} ms`);
  await upstream.connections[0]?.closed;
});

t.test('a head at once and a body never: the deadline still holds (workos/workos-node#1679)', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }) => {
    socket.write('HTTP/1.1 200 X\r\ncontent-length: 5\r\n\r\n');
  });
  const { send } = setupSender(t);
  const result = answered(await send({ url: upstream.url(), timeoutMs }));
  t.match(result, { answer: { status: 200, excerpt: '', truncated: true }, bodyTimedOut: true });
  await upstream.connections[0]?.closed;
});

t.test('the status of a late body is told: 429 with Retry-After is not lost', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }) => {
    socket.write('HTTP/1.1 429 X\r\nretry-after: 7\r\ncontent-length: 5\r\n\r\n');
  });
  const { send } = setupSender(t);
  const { answer } = answered(await send({ url: upstream.url(), timeoutMs }));
  t.match(answer, { status: 429, headers: { 'retry-after': '7' } });
});

t.test('a slow answer within the deadline is an answer', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }) => {
    setTimeout(() => socket.write(answer(200, 'slow')), timeoutMs);
  });
  const { send } = setupSender(t);
  t.equal(answered(await send({ url: upstream.url(), timeoutMs: 20_000 })).answer.excerpt, 'slow');
});

t.test('each call has its own deadline', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }, request) => {
    if (request.includes('/answered')) socket.write(answer(200));
  });
  const { send } = setupSender(t);
  const [late, soon, control] = await Promise.all([
    timed(() => send({ url: upstream.url('/late'), timeoutMs: 2 * timeoutMs })),
    timed(() => send({ url: upstream.url('/soon'), timeoutMs })),
    send({ url: upstream.url('/answered'), timeoutMs: 20_000 }),
  ]);
  t.match(soon[0], { kind: 'no_answer', reason: 'timeout' });
  t.match(late[0], { kind: 'no_answer', reason: 'timeout' });
  t.ok(soon[1] >= timeoutMs, `${soon[1]} ms`);
  t.ok(late[1] >= 2 * timeoutMs, `${late[1]} ms`);
  t.equal(control.kind, 'answered');
});

t.test('a connection that does not open within connect_timeout_ms is not sent', async (t) => {
  const { send } = setupSender(t, { lookup: () => {} });
  const [result, tookMs] = await timed(() => send({ url: new URL('http://never.test/'), connectTimeoutMs: timeoutMs }));
  t.match(result, { kind: 'not_sent', code: 'connect_timeout', error: 'no connection within 150 ms' });
  t.ok(tookMs >= timeoutMs, `${tookMs} ms`);
});

t.test('a signal gives up a call that was sent', async (t) => {
  const controller = new AbortController();
  const upstream = await rawUpstream(t, () => controller.abort());
  const { send } = setupSender(t);
  t.match(await send({ url: upstream.url(), signal: controller.signal }), { kind: 'no_answer', reason: 'aborted' });
  await upstream.connections[0]?.closed;
});

t.test('a signal gives up a call whose body is still coming, and its status stays known', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }, request) => {
    if (request.includes('/control')) socket.write(answer(200));
    else socket.write('HTTP/1.1 201 X\r\ncontent-length: 5\r\n\r\nab');
  });
  const { send } = setupSender(t);
  const controller = new AbortController();
  const call = send({ url: upstream.url('/half'), signal: controller.signal });
  // What another connection brings afterwards has been read later than the head.
  while (!upstream.received().includes('/half')) await send({ url: upstream.url('/control') });
  await send({ url: upstream.url('/control') });
  controller.abort();
  const result = answered(await call);
  t.match(result, {
    answer: { status: 201, excerpt: 'ab', truncated: true },
    bodyError: 'body given up by this process',
  });
  t.equal(result.bodyTimedOut, undefined);
  await upstream.connections[0]?.closed;
});

t.test('close gives up what is in flight and what waits, and lets nothing more out', async (t) => {
  let requests = 0;
  let sawRequest = () => {};
  const request = new Promise<void>((resolve) => {
    sawRequest = resolve;
  });
  const upstream = await rawUpstream(t, () => {
    requests += 1;
    sawRequest();
  });
  const { send, sender } = setupSender(t, { connectionsPerOrigin: 1 });
  const inFlight = send({ url: upstream.url() });
  const waiting = send({ url: upstream.url() });
  await request;
  await sender.close();
  t.match(await inFlight, { kind: 'no_answer', reason: 'aborted' });
  t.match(await waiting, { kind: 'not_sent', code: 'cancelled' });
  t.match(await send({ url: upstream.url() }), { kind: 'not_sent', code: 'cancelled' });
  await upstream.connections[0]?.closed;
  t.equal(requests, 1);
  t.equal(upstream.connections.length, 1);
});
