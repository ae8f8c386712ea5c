import type { LookupAddress } from 'node:dns';
import net from 'node:net';
import t from 'tap';
import { answer, rawUpstream } from '../support/raw-upstream.ts';
import { answered, setupSender } from './setup-sender.ts';

/** A resolver that gives these answers one after the other, the last one again and again. */
function resolver(...answers: readonly string[][]) {
  let asked = 0;
  return {
    asked: () => asked,
    lookup(_hostname: string, _options: unknown, callback: (error: null, addresses: LookupAddress[]) => void) {
      const addresses = answers[Math.min(asked, answers.length - 1)] ?? [];
      asked += 1;
      process.nextTick(() =>
        callback(
          null,
          addresses.map((address) => ({ address, family: net.isIP(address) })),
        ),
      );
    },
  };
}

t.test('a private address in the URL is refused without a socket, however it is spelled', async (t) => {
  const upstream = await rawUpstream(t);
  const { send } = setupSender(t);
  for (const host of [
    '127.0.0.1',
    '127.1',
    '0x7f.1',
    '2130706433',
    '017700000001',
    '0.0.0.0',
    '[::1]',
    '[::ffff:127.0.0.1]',
    '[::]',
  ]) {
    const result = await send({ url: upstream.url('/', host), allowPrivateAddresses: false });
    t.match(result, { kind: 'not_sent', code: 'address_refused', error: /not a public address/ }, host);
  }
  t.equal(upstream.connections.length, 0);
});

t.test('a metadata address is refused without a socket', async (t) => {
  const { send } = setupSender(t);
  for (const host of ['169.254.169.254', '[fd00:ec2::254]', '100.100.100.200']) {
    const result = await send({ url: new URL(`http://${host}/latest/meta-data`), allowPrivateAddresses: false });
    t.match(result, { kind: 'not_sent', code: 'address_refused' }, host);
  }
});

t.test('a name that leads to a private address is refused, also where public ones stand beside it', async (t) => {
  const upstream = await rawUpstream(t);
  for (const addresses of [
    ['127.0.0.1'],
    ['93.184.216.34', '127.0.0.1'],
    ['127.0.0.1', '93.184.216.34'],
    ['::1'],
    ['::ffff:127.0.0.1'],
    ['2606:4700::1111', '10.0.0.1'],
  ]) {
    const { send } = setupSender(t, { lookup: resolver(addresses).lookup });
    const result = await send({ url: upstream.url('/', 'rebind.test'), allowPrivateAddresses: false });
    t.match(result, { kind: 'not_sent', code: 'address_refused', error: /rebind\.test/ }, addresses.join(' '));
  }
  t.equal(upstream.connections.length, 0);
});

t.test('localhost by name is refused with the resolver of the system', async (t) => {
  const upstream = await rawUpstream(t);
  const { send } = setupSender(t);
  const result = await send({ url: upstream.url('/', 'localhost'), allowPrivateAddresses: false });
  t.match(result, { kind: 'not_sent', code: 'address_refused' });
  t.equal(upstream.connections.length, 0);
});

t.test(
  'a name whose answer changes after somebody checked it is refused at connect time (h4ckf0r0day/obscura#279)',
  async (t) => {
    const upstream = await rawUpstream(t);
    const rebinding = resolver(['93.184.216.34'], ['127.0.0.1']);
    const { send } = setupSender(t, { lookup: rebinding.lookup });
    const checked = await new Promise<LookupAddress[]>((resolve) => {
      rebinding.lookup('rebind.test', {}, (_error, addresses) => resolve(addresses));
    });
    t.same(checked, [{ address: '93.184.216.34', family: 4 }], 'whoever looked first saw a public host');
    const result = await send({ url: upstream.url('/', 'rebind.test'), allowPrivateAddresses: false });
    t.match(result, { kind: 'not_sent', code: 'address_refused' });
    t.equal(rebinding.asked(), 2, 'the sender looked once');
    t.equal(upstream.connections.length, 0);
  },
);

t.test('an upstream that allows private addresses is reached', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }) => socket.write(answer(200)));
  const { send } = setupSender(t, { lookup: resolver(['127.0.0.1']).lookup });
  answered(await send({ url: upstream.url('/', 'inside.test') }));
  answered(await send({ url: upstream.url() }));
});

t.test('leave to reach private addresses is not shared through an open connection', async (t) => {
  const upstream = await rawUpstream(t, ({ socket }) => socket.write(answer(200)));
  const { send } = setupSender(t);
  answered(await send({ url: upstream.url('/allowed') }));
  t.match(await send({ url: upstream.url('/refused'), allowPrivateAddresses: false }), {
    kind: 'not_sent',
    code: 'address_refused',
  });
  t.notMatch(upstream.received(), 'refused');
});

t.test('a resolver is taken at its word where Node wants a single address', async (t) => {
  const several = net.getDefaultAutoSelectFamily();
  t.teardown(() => net.setDefaultAutoSelectFamily(several));
  net.setDefaultAutoSelectFamily(false);
  const upstream = await rawUpstream(t, ({ socket }) => socket.write(answer(200)));
  const { send } = setupSender(t, { lookup: resolver(['127.0.0.1']).lookup });
  answered(await send({ url: upstream.url('/', 'inside.test') }));
  const refusing = setupSender(t, { lookup: resolver(['93.184.216.34', '127.0.0.1']).lookup });
  t.match(await refusing.send({ url: upstream.url('/', 'x.test'), allowPrivateAddresses: false }), {
    code: 'address_refused',
  });
  const empty = setupSender(t, { lookup: resolver([]).lookup });
  t.match(await empty.send({ url: upstream.url('/', 'x.test') }), { kind: 'not_sent', error: /has no address/ });
});

t.test('what the resolver cannot find is not sent', async (t) => {
  const { send } = setupSender(t, {
    lookup: (hostname, _options, callback) =>
      callback(Object.assign(new Error(`getaddrinfo ENOTFOUND ${hostname}`), { code: 'ENOTFOUND' }), []),
  });
  t.match(await send({ url: new URL('http://nowhere.test/') }), { kind: 'not_sent', code: 'ENOTFOUND' });
});
