/**
 * One peer in a process of its own, as the service is in the same benches: its jobs make the same calls, with the same
 * payloads, through the same client, to the same upstream. Started by `peer-process.ts`, which says what it has to do over
 * Node's IPC channel; ends when that closes.
 */
import { Agent, request } from 'undici';

const { peer, upstreamUrl, slots, ...place } = JSON.parse(process.argv[2]);
/** Longest pause between two sends, in milliseconds: one that polls must be met at any moment of its interval. */
const { longestPauseMs = 20 } = place.settings;
const { open } = await import(`./${peer}.js`);
const opened = await open({ ...place, slots });
const agent = new Agent({ connections: slots, pipelining: 1, headersTimeout: 0, bodyTimeout: 0 });
const url = new URL(`${upstreamUrl}/charges`);

async function call({ idempotency_key: key, body }) {
  const answer = await request(url, {
    dispatcher: agent,
    method: 'POST',
    headers: {
      traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
      'content-type': 'application/json',
      'idempotency-key': key,
    },
    body: JSON.stringify(body),
  });
  await answer.body.text();
  if (answer.statusCode !== 200) throw new Error(`answered ${answer.statusCode}`);
}

const commands = {
  /** Puts the items in, `size` a call, one call at a time; gives the seconds that took. */
  async insert({ items, size }) {
    const startMs = performance.now();
    for (let from = 0; from < items.length; from += size) await opened.insert(items.slice(from, from + size));
    return (performance.now() - startMs) / 1000;
  },
  /** Works `count` jobs off. */
  async drain({ count }) {
    let done = 0;
    await new Promise((resolve, reject) => {
      const handle = async (item) => {
        await call(item);
        done += 1;
        if (done === count) resolve();
      };
      opened.start(handle).catch(reject);
    });
    await opened.stop();
  },
  /** Sends one after the other to an idle worker; gives the milliseconds from each send to the start of its handler. */
  async latency({ items }) {
    let started = () => {};
    await opened.startIdle(async () => started());
    const took = [];
    for (const item of items) {
      const start = new Promise((resolve) => {
        started = resolve;
      });
      const startMs = performance.now();
      await opened.send(item);
      await start;
      took.push(performance.now() - startMs);
      // Until it has gone to sleep again.
      await new Promise((resolve) => setTimeout(resolve, 10 + Math.random() * (longestPauseMs - 10)));
    }
    await opened.stopIdle();
    return took;
  },
};

process.on('SIGINT', () => {});
process.on('disconnect', () => process.exit(0));
process.on('message', ({ id, call: name, ...rest }) => {
  commands[name](rest).then(
    (value) => process.send({ id, value }),
    (error) => process.send({ id, error: String(error?.stack ?? error) }),
  );
});
process.send({ id: 0 });
