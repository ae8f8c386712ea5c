import { once } from 'node:events';
import net from 'node:net';
import t from 'tap';
import type { Lookup } from '../../src/outbound/address-guard.ts';
import { systemClock } from '../../src/system/clock.ts';
import { answer, type RawConnection, rawUpstream } from '../support/raw-upstream.ts';
import { answered, setupSender } from './setup-sender.ts';

t.test(
  'a permit that ran out when the connection is open leaves nothing on the wire, and the connection open',
  async (t) => {
    const upstream = await rawUpstream(t, ({ socket }) => socket.write(answer(200)));
    const { send } = setupSender(t, { connectionsPerOrigin: 1 });
    const refused = await send({ url: upstream.url('/refused'), body: '{"a":1}', mayStillSend: () => false });
    t.same(refused, { kind: 'permit_expired' });
    t.equal(answered(await send({ url: upstream.url('/sent') })).answer.status, 200, 'the control');
    t.equal(upstream.connections.length, 1, 'the second call found the connection that the first had opened');
    t.match(upstream.received(), /^POST \/sent HTTP/);
    t.notMatch(upstream.received(), 'refused');
  },
);

t.test('a permit that runs out while the connection is still opening is seen once it is open', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }) => socket.write(answer(200)));
  const opening = pausedLookup();
  const { send } = setupSender(t, { lookup: opening.lookup });
  let permit = true;
  let asked = 0;
  const call = send({
    url: upstream.url('/', 'slow.test'),
    mayStillSend: () => {
      asked += 1;
      return permit;
    },
  });
  await opening.asked;
  t.equal(asked, 0, 'not asked before there is a connection');
  permit = false;
  opening.release();
  t.same(await call, { kind: 'permit_expired' });
  t.equal(asked, 1);
  t.equal(upstream.received(), '');
});

t.test(
  'a permit that runs out while the call waits behind another on a busy connection is seen when its turn comes',
  async (t) => {
    const upstream = await rawUpstream(t);
    const { send } = setupSender(t, { connectionsPerOrigin: 1 });
    const first = send({ url: upstream.url('/first') });
    let permit = true;
    let asked = 0;
    const second = send({
      url: upstream.url('/second'),
      mayStillSend: () => {
        asked += 1;
        return permit;
      },
    });
    const { socket } = await firstRequestOf(upstream.connections);
    t.equal(asked, 0, 'not asked while another call has the connection');
    permit = false;
    socket.write(answer(200));
    answered(await first);
    t.same(await second, { kind: 'permit_expired' });
    t.equal(asked, 1);
    t.equal(upstream.connections.length, 1);
    t.match(upstream.received(), /^POST \/first /);
    t.notMatch(upstream.received(), 'second');
  },
);

t.test('a permit that runs out on an idle connection leaves it as it is', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }) => socket.write(answer(200)));
  const { send } = setupSender(t, { connectionsPerOrigin: 1 });
  answered(await send({ url: upstream.url('/first') }));
  t.same(await send({ url: upstream.url('/second'), mayStillSend: () => false }), { kind: 'permit_expired' });
  answered(await send({ url: upstream.url('/third') }));
  t.equal(upstream.connections.length, 1);
  t.notMatch(upstream.received(), 'second');
});

t.test('between the question and the write no other code runs', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }) => socket.write(answer(200)));
  const { send } = setupSender(t);
  const write = net.Socket.prototype.write;
  t.teardown(() => {
    net.Socket.prototype.write = write;
  });
  let inTheSameTurn = false;
  const writes: [request: string, inTheSameTurn: boolean][] = [];
  net.Socket.prototype.write = function (this: net.Socket, ...args: Parameters<typeof write>) {
    const text = String(args[0]);
    if (text.startsWith('POST ')) writes.push([text.split(' ')[1] as string, inTheSameTurn]);
    return write.apply(this, args);
  } as typeof write;
  const mayStillSend = () => {
    inTheSameTurn = true;
    // Runs before any other callback, once the code that asked has returned to the event loop.
    process.nextTick(() => {
      inTheSameTurn = false;
    });
    return true;
  };
  answered(await send({ url: upstream.url('/fresh'), mayStillSend }));
  answered(await send({ url: upstream.url('/reused'), mayStillSend }));
  answered(await send({ url: upstream.url('/control'), mayStillSend: () => true }));
  t.same(writes, [
    ['/fresh', true],
    ['/reused', true],
    ['/control', false],
  ]);
});

t.test('sentAfterMs is the time from the start given to that moment, waiting included', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }) => socket.write(answer(200)));
  let nowMs = 1000;
  const { send } = setupSender(t, { clock: { ...systemClock, monotonicMs: () => nowMs } });
  const result = await send({
    url: upstream.url(),
    startedAtMs: 400,
    mayStillSend: () => {
      nowMs = 1234;
      return true;
    },
  });
  t.equal(answered(result).sentAfterMs, 834);
});

t.test('a call that was cancelled before it was made opens no connection', async (t) => {
  const upstream = await rawUpstream(t);
  const { send } = setupSender(t);
  const result = await send({ url: upstream.url(), signal: AbortSignal.abort() });
  t.match(result, { kind: 'not_sent', code: 'cancelled' });
  t.equal(upstream.connections.length, 0);
});

t.test('a call that is cancelled, or late, while its connection opens is not sent when it is open', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }) => socket.write(answer(200)));
  for (const [index, how] of (['cancelled', 'timeout', 'connect_timeout'] as const).entries()) {
    const opening = pausedLookup();
    const { send } = setupSender(t, { lookup: opening.lookup, connectionsPerOrigin: 1 });
    const controller = new AbortController();
    const call = send({
      url: upstream.url(`/${how}`, 'slow.test'),
      signal: controller.signal,
      ...(how === 'timeout' ? { timeoutMs: 50 } : {}),
      ...(how === 'connect_timeout' ? { connectTimeoutMs: 50 } : {}),
    });
    await opening.asked;
    if (how === 'cancelled') controller.abort();
    t.match(await call, { kind: 'not_sent', code: how });
    opening.release();
    const next = await send({ url: upstream.url('/control', 'slow.test') });
    t.equal(next.kind, 'answered');
    t.notMatch(upstream.received(), how);
    t.equal(upstream.connections.length, index + 1, 'the connection that was opened for it served the next');
  }
});

/** A resolver that holds its answers back until it is released. */
function pausedLookup(): { lookup: Lookup; asked: Promise<void>; release: () => void } {
  let released = false;
  const waiting: (() => void)[] = [];
  let sayAsked = () => {};
  const asked = new Promise<void>((resolve) => {
    sayAsked = resolve;
  });
  return {
    asked,
    release() {
      released = true;
      for (const give of waiting.splice(0)) give();
    },
    lookup(_hostname, _options, callback) {
      const give = () => callback(null, [{ address: '127.0.0.1', family: 4 }]);
      if (released) process.nextTick(give);
      else waiting.push(give);
      sayAsked();
    },
  };
}

async function firstRequestOf(connections: readonly RawConnection[]): Promise<RawConnection> {
  for (;;) {
    const [connection] = connections;
    if (connection?.received().includes('\r\n\r\n')) return connection;
    if (connection === undefined) await new Promise(setImmediate);
    else await once(connection.socket, 'data');
  }
}
