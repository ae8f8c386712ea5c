/** Streams of the client: verdicts while lines go out, breaks that are mended, breaks that are not. */

import type { AddressInfo } from 'node:net';
import { connect, createServer } from 'node:net';
import t, { type Test } from 'tap';
import { type LineVerdict, SluiceClient } from '../../src/client/index.ts';
import { useIntake } from '../support/intake.ts';

t.setTimeout(60_000);

const defaults = { upstream: 'api', path: '/charges' } as const;
const lineOf = (n: number) => ({ idempotency_key: `k-${n}`, body: { n } });

async function useClient(t: Test) {
  const intake = await useIntake(t);
  const baseUrl = await intake.app.app.listen({ host: '127.0.0.1', port: 0 });
  // Node's fetch opens a connection anew after a stream that was stopped, and the app would wait for a request on it.
  t.teardown(() => intake.app.app.server.closeAllConnections());
  return { intake, baseUrl, client: new SluiceClient({ baseUrl }) };
}

/** Passes bytes to the service, and cuts each connection once so many bytes of the answer have passed. */
async function useCutter(t: Test, url: string, cuts: number[]): Promise<string> {
  const server = createServer((near) => {
    const cutAt = cuts.shift() ?? Number.POSITIVE_INFINITY;
    let passed = 0;
    const far = connect(Number(new URL(url).port), '127.0.0.1');
    near.pipe(far);
    far.on('data', (chunk: Buffer) => {
      passed += chunk.length;
      near.write(chunk.subarray(0, Math.max(0, chunk.length - Math.max(0, passed - cutAt))));
      if (passed >= cutAt) for (const socket of [near, far]) socket.destroy();
    });
    for (const [one, other] of [
      [near, far],
      [far, near],
    ] as const) {
      one.on('error', () => other.destroy());
      one.on('close', () => other.destroy());
    }
    t.teardown(() => near.destroy());
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.teardown(() => server.close());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

async function all(verdicts: AsyncIterable<LineVerdict>): Promise<LineVerdict[]> {
  const found: LineVerdict[] = [];
  for await (const verdict of verdicts) found.push(verdict);
  return found;
}

t.test('verdicts come while lines still go out', async (t) => {
  const { client } = await useClient(t);
  let answered: () => void = () => undefined;
  const firstVerdict = new Promise<void>((resolve) => {
    answered = resolve;
  });
  const submission = client.submitLines(
    (async function* () {
      yield lineOf(0);
      // Not before the service has answered: a client that only reads afterwards would never end.
      await firstVerdict;
      yield '{ "idempotency_key": "k-1" }';
      yield new TextEncoder().encode('{ "idempotency_key": "k-1", "body": 2 }\n{ no json\n');
    })(),
    { defaults },
  );
  const verdicts: unknown[] = [];
  for await (const { index, verdict, errors } of submission) {
    verdicts.push([index, verdict, errors?.[0]?.code]);
    answered();
  }
  t.same(verdicts, [
    [0, 'accepted', undefined],
    [1, 'accepted', undefined],
    [2, 'conflict', 'idempotency_key_reused'],
    [3, 'rejected', 'malformed_json'],
  ]);
  t.match(submission.summary, { batch_id: submission.batchId, counts: { total: 4, accepted: 2 } });
});

t.test('defaults stand for what lines leave out; one that there is not is refused by the service', async (t) => {
  const { client, intake } = await useClient(t);
  const submission = client.submitLines([lineOf(0)], { defaults });
  t.equal(await intake.count('batches'), 0, 'nothing is sent before it is read');
  t.match(await submission.end(), { counts: { total: 1, accepted: 1 } });
  const wrong = client.submitLines([lineOf(1)], { defaults: { upstreem: 'api' } as never });
  await t.rejects(wrong.end(), { name: 'SluiceError', message: /upstreem/ });
});

t.test('a connection that breaks twice: one batch, each verdict once, nothing doubled', async (t) => {
  const { intake, baseUrl } = await useClient(t);
  const client = new SluiceClient({ baseUrl: await useCutter(t, baseUrl, [20_000, 60_000]) });
  const count = 3_000;
  const lines = () => Array.from({ length: count }, (_, n) => lineOf(n));
  const breaks: string[] = [];
  const submission = client.submitLines(lines, { defaults, onBreak: ({ name }) => breaks.push(name) });
  const verdicts = await all(submission);
  t.ok(breaks.length >= 2, `${breaks.length} breaks`);
  t.same(
    verdicts.map(({ index }) => index),
    Array.from({ length: count }, (_, n) => n),
  );
  t.ok(verdicts.every(({ verdict }) => verdict === 'accepted'));
  t.match(submission.summary, { status: 'processing', counts: { total: count, accepted: count } });
  t.same([await intake.count('batches'), await intake.count('idempotency_keys')], [1, count]);
});

t.test('a source that cannot be opened again: the break is told, and the key takes it up later', async (t) => {
  const { client, baseUrl } = await useClient(t);
  const broken = new SluiceClient({ baseUrl: await useCutter(t, baseUrl, [20_000]) });
  const lines = Array.from({ length: 1_000 }, (_, n) => lineOf(n));
  const never = new Promise<never>(() => undefined);
  const first = broken.submitLines(
    (async function* () {
      yield* lines;
      await never;
    })(),
    { defaults },
  );
  await t.rejects(first.end(), { name: 'SluiceConnectionError' });
  t.equal((await client.getBatch(first.batchId as string)).status, 'incomplete');
  const second = client.submitLines(lines, { defaults, idempotencyKey: first.idempotencyKey });
  const verdicts = await all(second);
  t.equal(second.batchId, first.batchId);
  t.equal(verdicts[0]?.replayed, true);
  t.equal(second.summary?.counts.accepted, 1_000);
});

t.test(
  'what the source throws is what the caller gets; other lines under the key are refused, and not tried again',
  async (t) => {
    const { client } = await useClient(t);
    const idempotencyKey = 'stream-1';
    const failing = client.submitLines(
      (async function* () {
        yield lineOf(0);
        throw new Error('the disk is gone');
      })(),
      { defaults, idempotencyKey },
    );
    await t.rejects(failing.end(), new Error('the disk is gone'));
    const good = client.submitLines([lineOf(0), lineOf(1)], { defaults, idempotencyKey });
    t.equal((await good.end()).counts.total, 2);
    let breaks = 0;
    const onBreak = () => {
      breaks += 1;
    };
    const other = client.submitLines([lineOf(0), lineOf(7)], { defaults, idempotencyKey, onBreak });
    await t.rejects(other.end(), { name: 'SluiceError', status: 422, code: 'resume_mismatch' });
    const otherDefaults = client.submitLines([lineOf(0)], { idempotencyKey, onBreak });
    await t.rejects(otherDefaults.end(), { code: 'idempotency_key_reused' });
    t.equal(breaks, 0);
  },
);

t.test('to stop reading, or to abort, breaks the stream off and lets go of the source', async (t) => {
  const { client } = await useClient(t);
  for (const way of ['break', 'abort']) {
    let left = false;
    let goOn: () => void = () => undefined;
    const stop = new AbortController();
    const submission = client.submitLines(
      (async function* () {
        try {
          for (let n = 0; ; n += 1) {
            yield lineOf(n);
            await new Promise<void>((resolve) => {
              goOn = resolve;
            });
          }
        } finally {
          left = true;
        }
      })(),
      { defaults, signal: stop.signal },
    );
    const reading = (async () => {
      for await (const { index } of submission) {
        if (index === 0) goOn();
        else if (way === 'break') break;
        else stop.abort(new Error('enough'));
      }
    })();
    if (way === 'break') await reading;
    else await t.rejects(reading, new Error('enough'));
    // The source has been asked for one line ahead.
    goOn();
    await new Promise(setImmediate);
    goOn();
    t.equal((await client.getBatch(submission.batchId as string)).status, 'incomplete');
    t.ok(left, `${way}: the source was closed`);
  }
});
