import diagnostics from 'node:diagnostics_channel';
import type net from 'node:net';
import t, { type Test } from 'tap';
import { decideSettlement } from '../../src/domain/settle.ts';
import { claimedJob, upstream as upstreamDefinition } from '../support/claimed-job.ts';
import { answer, rawUpstream } from '../support/raw-upstream.ts';
import { answered, setupSender } from './setup-sender.ts';

t.test(
  'a reset after the request was written on a reused connection is unanswered, and the request is not sent again',
  async (t) => {
    const upstream = await rawUpstream(t, ({ socket }, _request, index) => {
      if (index === 1) socket.resetAndDestroy();
      else socket.write(answer(200));
    });
    const { send } = setupSender(t, { connectionsPerOrigin: 1 });
    answered(await send({ url: upstream.url('/first') }));
    const result = await send({ url: upstream.url('/second'), startedAtMs: 0 });
    t.match(result, { kind: 'no_answer', reason: 'reset', error: /ECONNRESET|closed/, sentAfterMs: Number });
    answered(await send({ url: upstream.url('/third') }));
    t.equal(upstream.received().split('/second ').length, 2, 'it went out once');
    t.equal(upstream.connections.length, 2);
  },
);

t.test('a close or a reset without an answer on a fresh connection is unanswered too', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }, request) => {
    if (request.includes('/close')) socket.end();
    else socket.resetAndDestroy();
  });
  const { send } = setupSender(t, { connectionsPerOrigin: 1 });
  for (const path of ['/close', '/reset']) {
    t.match(await send({ url: upstream.url(path) }), { kind: 'no_answer', reason: 'reset' });
  }
  t.equal(upstream.received().match(/POST/g)?.length, 2);
});

t.test(
  'an upstream that closes each connection unannounced costs no job its life (nodejs/undici#3492, nodejs/undici#583)',
  async (t) => {
    const upstream = await rawUpstream(t, ({ socket }) => socket.end(answer(200)));
    const { send } = setupSender(t, { connectionsPerOrigin: 1 });
    const ends = new Map<string, number>();
    for (let n = 0; n < 200; n += 1) {
      const result = await send({ url: upstream.url(`/${n}`) });
      const settlement = decideSettlement(claimedJob(), upstreamDefinition(), result, { random01: 0, nowWallMs: 0 });
      const end = settlement.next.kind === 'done' ? settlement.next.state : settlement.next.kind;
      ends.set(end, (ends.get(end) ?? 0) + 1);
    }
    t.same(
      [...ends.keys()].filter((end) => end !== 'succeeded' && end !== 'scheduled'),
      [],
      'succeeded, or to be retried',
    );
    t.ok((ends.get('succeeded') ?? 0) > 0);
  },
);

t.test('an answer that says Connection: close is the last on its connection', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }) => socket.write(answer(200, 'x', ['connection: close'])));
  const { send } = setupSender(t, { connectionsPerOrigin: 1 });
  answered(await send({ url: upstream.url() }));
  answered(await send({ url: upstream.url() }));
  t.equal(upstream.connections.length, 2);
  await upstream.connections[0]?.closed;
});

t.test('an idle connection is closed on our side before the time that the upstream announces', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }) => socket.write(answer(200, 'x', ['keep-alive: timeout=3'])));
  const { send } = setupSender(t, { connectionsPerOrigin: 1 });
  answered(await send({ url: upstream.url() }));
  // The server never closes: only the sender can.
  await upstream.connections[0]?.closed;
  answered(await send({ url: upstream.url() }));
  t.equal(upstream.connections.length, 2);
});

t.test('a bound on connections holds for any number of calls at once, which share them', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }) => socket.write(answer(200)));
  const { send } = setupSender(t, { connectionsPerOrigin: 3 });
  const results = await Promise.all(Array.from({ length: 50 }, () => send({ url: upstream.url() })));
  t.same(new Set(results.map(({ kind }) => kind)), new Set(['answered']));
  t.equal(upstream.mostOpen(), 3);
  t.equal(upstream.connections.length, 3);
});

t.test('after any mixture of ends every connection is of use again, and there are no more than allowed', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }, request) => {
    if (request.includes('/reset')) socket.resetAndDestroy();
    else if (request.includes('/half')) socket.write('HTTP/1.1 200 X\r\ncontent-length: 9\r\n\r\nab');
    else if (request.includes('/close')) socket.end(answer(200));
    else if (!request.includes('/silent')) socket.write(answer(200));
  });
  const mostOpen = countOurSockets(t);
  const { send } = setupSender(t, { connectionsPerOrigin: 4 });
  const calls = Array.from({ length: 240 }, (_, n) => {
    switch (n % 8) {
      case 0:
        return send({ url: upstream.url('/reset') });
      case 1:
        return send({ url: upstream.url('/half'), timeoutMs: 60 });
      case 2:
        return send({ url: upstream.url('/silent'), timeoutMs: 60 });
      case 3:
        return send({ url: upstream.url('/close') });
      case 4:
        return send({ url: upstream.url('/permit'), mayStillSend: () => false });
      case 5:
        return send({ url: upstream.url('/header'), headers: { 'x-bad': 'a\nb' } });
      case 6:
        return send({ url: upstream.url('/impatient'), connectTimeoutMs: 20 });
      default:
        return send({ url: upstream.url('/plain') });
    }
  });
  const results = await Promise.all(calls);
  t.same(new Set(results.map(({ kind }) => kind)), new Set(['no_answer', 'not_sent', 'answered', 'permit_expired']));
  t.notMatch(upstream.received(), /\/permit|\/header/);
  const after = await Promise.all(Array.from({ length: 40 }, () => send({ url: upstream.url('/after') })));
  t.same(new Set(after.map(({ kind }) => kind)), new Set(['answered']));
  t.equal(mostOpen(), 4);
});

/** Seen from our side: a server may hear of a new connection before it hears of the end of the one that it replaces. */
function countOurSockets(t: Test): () => number {
  let open = 0;
  let mostOpen = 0;
  const onConnected = (message: unknown) => {
    open += 1;
    mostOpen = Math.max(mostOpen, open);
    (message as { socket: net.Socket }).socket.once('close', () => {
      open -= 1;
    });
  };
  diagnostics.subscribe('undici:client:connected', onConnected);
  t.teardown(() => diagnostics.unsubscribe('undici:client:connected', onConnected));
  return () => mostOpen;
}
