/** The client against the service itself, over sockets; and against servers that fail as services and proxies do. */
import { createServer, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import t, { type Test } from 'tap';
import { type ClientOptions, SluiceClient, SluiceConnectionError, SluiceError } from '../../src/client/index.ts';
import { type Intake, useIntake } from '../support/intake.ts';

t.setTimeout(60_000);

const item = { upstream: 'api', path: '/charges' } as const;

async function useClient(t: Test, options: ClientOptions = {}): Promise<{ intake: Intake; client: SluiceClient }> {
  const intake = await useIntake(t);
  const baseUrl = await intake.app.app.listen({ host: '127.0.0.1', port: 0 });
  return { intake, client: new SluiceClient({ baseUrl, ...options }) };
}

/** A server that is no Sluice; closed when `t` ends. */
async function useServer(t: Test, listener: RequestListener): Promise<string> {
  const server = createServer(listener);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

t.test('a batch, its items, its jobs, its receipts', async (t) => {
  const { client } = await useClient(t);
  const batch = await client.submitBatch({
    defaults: item,
    items: [{ idempotency_key: 'a', body: { n: 1 } }, { idempotency_key: 'b' }, { idempotency_key: 'b', body: 2 }, {}],
  });
  t.same(
    batch.items.map(({ verdict }) => verdict),
    ['accepted', 'accepted', 'conflict', 'rejected'],
  );
  const batchId = batch.batch_id as string;
  t.equal((await client.getBatch(batchId)).counts.total, 4);
  const verdicts: unknown[] = [];
  for await (const { index, verdict } of client.batchItems(batchId)) verdicts.push([index, verdict]);
  t.same(verdicts, [
    [0, 'accepted'],
    [1, 'accepted'],
    [2, 'conflict'],
    [3, 'rejected'],
  ]);
  const jobId = batch.items[0]?.job_id as string;
  t.same((await client.getJob(jobId)).body, { n: 1 });
  t.equal((await client.explainJob(jobId)).job_id, jobId);
  const jobs: string[] = [];
  for await (const job of client.listJobs({ idempotency_key: 'a' })) jobs.push(job.job_id);
  t.same(jobs, [jobId]);
  for await (const { batch_id } of client.listBatches()) t.equal(batch_id, batchId);
  t.equal((await client.getReceipt('a')).job_id, jobId);
  t.same(
    (await client.lookUpReceipts(['b', 'none'])).map(({ state }) => state),
    ['ready', 'unknown_key'],
  );
  t.equal((await client.putReceipt('a', { status: 201, note: 'seen' })).evidence, 'receipt');
  t.equal((await client.cancelJob(batch.items[1]?.job_id as string)).state, 'cancelled');
  t.equal((await client.retryJob(batch.items[1]?.job_id as string, { freshKey: true })).state, 'ready');
  t.equal((await client.cancelBatch(batchId)).status, 'cancelled');
});

t.test('definitions and windows', async (t) => {
  const { client } = await useClient(t);
  const { upstreams, rateLimits, queues } = client.admin;
  await upstreams.put('other', { base_url: 'https://other.example.test' });
  t.equal((await upstreams.pause('other')).paused, true);
  t.equal((await upstreams.resume('other')).paused, false);
  await rateLimits.put('quota', { limit: 5, per: 60, upstreams: ['other'] });
  t.equal((await client.admin.rateWindow('quota')).remaining, 5);
  t.equal((await client.admin.auditRateWindow('quota')).max_starts, 0);
  t.equal((await client.admin.pauseRateWindow('quota')).state, 'paused');
  const names: string[] = [];
  for await (const { name } of queues.list()) names.push(name);
  t.same(names, ['default']);
  await rateLimits.delete('quota');
  await t.rejects(rateLimits.get('quota'), { name: 'SluiceError', status: 404, code: 'not_found' });
  await t.rejects(upstreams.put('bad', { base_url: 'ftp://x' }), { status: 422, code: 'invalid_definition' });
});

t.test('a refusal is an error with all that was said', async (t) => {
  const { client } = await useClient(t);
  const error = await client.submitBatch('{"items": 1}').catch((error: unknown) => error);
  t.type(error, SluiceError);
  t.match(error, { status: 400, code: 'invalid_request', problem: { errors: [{ pointer: '/items' }] } });
  t.match((error as Error).message, /^POST \/v1\/batches was answered 400: /);
});

t.test('keys with any characters come through, in the header and in the query', async (t) => {
  const { client } = await useClient(t);
  for (const key of ['"quoted"', 'back\\slash', 'Schlüssel 🔑', 'a&b=c?d#e/f', '%41']) {
    const items = [{ ...item, idempotency_key: key }];
    const first = await client.submitBatch({ items }, { idempotencyKey: key });
    const again = await client.submitBatch({ items }, { idempotencyKey: key });
    t.same([again.batch_id, again.replayed], [first.batch_id, true], key);
    t.equal((await client.getReceipt(key)).idempotency_key, key);
  }
});

t.test('503 and 429 are waited out as told; a submission keeps its key over all its tries', async (t) => {
  const keys: unknown[] = [];
  const answers = [503, 429, 502, 202];
  const baseUrl = await useServer(t, (request, response) => {
    keys.push(request.headers['idempotency-key']);
    const status = answers[keys.length - 1] as number;
    request.resume().on('end', () => {
      response.writeHead(status, { 'content-type': 'application/json', ...(status === 503 && { 'retry-after': '0' }) });
      response.end(JSON.stringify({ batch_id: 'x' }));
    });
  });
  const client = new SluiceClient({ baseUrl });
  t.same(await client.submitBatch({ items: [] }), { batch_id: 'x' });
  t.equal(keys.length, 4);
  t.equal(new Set(keys).size, 1);
  t.match(keys[0], /^"[0-9a-f-]{36}"$/);
});

t.test(
  'a submission without a key, and what cannot be made again, is tried once; so is a wait that is too long',
  async (t) => {
    let calls = 0;
    const baseUrl = await useServer(t, (request, response) => {
      calls += 1;
      request.resume().on('end', () => response.writeHead(503, { 'retry-after': '3600' }).end('away'));
    });
    const client = new SluiceClient({ baseUrl });
    await t.rejects(client.submitBatch({ items: [] }, { idempotencyKey: null }), { status: 503, code: 'http_503' });
    await t.rejects(client.retryJob('x'), { name: 'SluiceError', status: 503, retryAfterMs: 3_600_000 });
    await t.rejects(client.getBatch('x'), { name: 'SluiceError', status: 503, problem: { detail: 'away' } });
    t.equal(calls, 3);
  },
);

t.test('an answer that is cut off is asked for again', async (t) => {
  let calls = 0;
  const baseUrl = await useServer(t, (_request, response) => {
    calls += 1;
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': '15' }).write('{"batch_id":');
    if (calls < 3) response.socket?.destroySoon();
    else response.end('1 }');
  });
  t.same(await new SluiceClient({ baseUrl }).getBatch('x'), { batch_id: 1 });
  t.equal(calls, 3);
});

t.test('nobody there, an abort, a wrong address: each is told apart', async (t) => {
  // Free, and never listened to: the server that had it is closed.
  const gone = createServer();
  await new Promise<void>((resolve) => gone.listen(0, '127.0.0.1', resolve));
  const { port } = gone.address() as AddressInfo;
  await new Promise((resolve) => gone.close(resolve));
  const nobody = new SluiceClient({ baseUrl: `http://127.0.0.1:${port}`, attempts: 1 });
  const error = await nobody.getBatch('x').catch((error: unknown) => error);
  t.type(error, SluiceConnectionError);
  t.match((error as Error).message, /no answer from http:\/\/127\.0\.0\.1:\d+ \(.*ECONNREFUSED/);

  const baseUrl = await useServer(t, () => undefined);
  const stop = new AbortController();
  const waiting = new SluiceClient({ baseUrl }).getBatch('x', { signal: stop.signal });
  stop.abort(new Error('enough'));
  await t.rejects(waiting, new Error('enough'));

  for (const wrong of ['nonsense', 'ftp://x', 'http://user:pass@x', 'http://x/?a=1']) {
    t.throws(() => new SluiceClient({ baseUrl: wrong }), TypeError);
  }
  t.throws(() => new SluiceClient({ attempts: 0 }), RangeError);
});

t.test('options that there are not are told, and nothing is sent', async (t) => {
  let calls = 0;
  const counting = async () => {
    calls += 1;
    return new Response('{}');
  };
  // As a program without types calls it.
  const wrong = (options: object) => options as never;
  t.throws(
    () => new SluiceClient(wrong({ url: 'http://127.0.0.1:3000' })),
    new TypeError('SluiceClient has no option "url": its options are apiKey, attempts, baseUrl, fetch, longestWaitMs'),
  );
  const client = new SluiceClient({ fetch: counting, attempts: 1 });
  t.throws(
    () => client.submitLines([item], wrong({ upstream: 'api' })),
    new TypeError(
      'submitLines has no option "upstream": what lines share goes into defaults: { defaults: { upstream: … } }',
    ),
  );
  t.throws(
    () => client.submitLines([item], wrong({ key: 'a' })),
    /has no option "key": its options are defaults, idemp/,
  );
  await t.rejects(
    client.submitBatch({ items: [item] }, wrong({ idempotency_key: 'a' })),
    /its options are idempotencyKey, signal/,
  );
  const submission = client.submitLines([item], { idempotencyKey: 'a' });
  await new Promise(setImmediate);
  t.equal(calls, 0, 'also not before the verdicts are read');
  await t.rejects(submission.end(), { name: 'SluiceConnectionError' });
  t.ok(calls > 0, 'a control: then it is sent');
});

t.test('the path of a proxy stays before the paths of the API', async (t) => {
  const paths: unknown[] = [];
  const baseUrl = await useServer(t, (request, response) => {
    paths.push(request.url, request.headers.authorization);
    response.end('{}');
  });
  await new SluiceClient({ baseUrl: `${baseUrl}/sluice/`, apiKey: 'secret' }).getJob('a/b');
  t.same(paths, ['/sluice/v1/jobs/a%2Fb', 'Bearer secret']);
});

t.test('a dry run stores nothing; keys are made, listed and taken back', async (t) => {
  const { client, intake } = await useClient(t);
  const dry = await client.dryRun({ items: [{ ...item, idempotency_key: 'a' }] });
  t.match(dry, { dry_run: true, batch_id: null, counts: { accepted: 1 } });
  t.equal(await intake.count('batches'), 0);
  const { id, key } = await client.admin.apiKeys.create({ name: 'shop', scopes: ['submit'] });
  const shop = new SluiceClient({ baseUrl: client.baseUrl, apiKey: key });
  t.equal((await shop.submitBatch({ items: [{ ...item, idempotency_key: 'a' }] })).counts.accepted, 1);
  await t.rejects(shop.admin.stats(), { name: 'SluiceError', status: 403, code: 'forbidden' });
  const ids: string[] = [];
  for await (const each of client.admin.apiKeys.list()) ids.push(each.id);
  t.same(ids, [id]);
  t.match(await client.admin.apiKeys.get(id), { id, name: 'shop', scopes: ['submit'] });
  await client.admin.apiKeys.delete(id);
  await t.rejects(shop.getBatch('x'), { name: 'SluiceError', status: 401, code: 'unauthorized' });
});

t.test('events go on after the last one that came, over breaks and refusals, until the batch is done', async (t) => {
  const seen: unknown[] = [];
  const event = (id: string, type: string) => `id: ${id}\nevent: ${type}\ndata: {"status":"${type}"}\n\n`;
  const baseUrl = await useServer(t, (request, response) => {
    seen.push(request.headers['last-event-id']);
    if (seen.length === 2) {
      response.writeHead(503, { 'retry-after': '0' }).end();
      return;
    }
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    if (seen.length === 1) {
      // Cut in the midst of an event.
      response.write(`retry: 1\n\n${event('1', 'progress')}: alive\n\n${event('2', 'job')}id: 3\nevent: jo`, () =>
        response.socket?.destroySoon(),
      );
    } else response.end(event('3', 'job') + event('4', 'done') + event('5', 'job'));
  });
  const events: unknown[] = [];
  for await (const { id, type } of new SluiceClient({ baseUrl }).events('x')) events.push([id, type]);
  t.same(events, [
    ['1', 'progress'],
    ['2', 'job'],
    ['3', 'job'],
    ['4', 'done'],
  ]);
  t.same(seen, [undefined, '2', '2']);
});

t.test('events of a batch that is not there, and of a service that ends them at once: no endless tries', async (t) => {
  let calls = 0;
  const baseUrl = await useServer(t, (request, response) => {
    calls += 1;
    if (request.url?.includes('gone')) response.writeHead(404).end();
    else response.writeHead(200, { 'content-type': 'text/event-stream' }).end();
  });
  const client = new SluiceClient({ baseUrl, attempts: 3 });
  await t.rejects(client.events('gone').next(), { name: 'SluiceError', status: 404 });
  t.equal(calls, 1);
  await t.rejects(client.events('x').next(), { name: 'SluiceConnectionError' });
  t.equal(calls, 4);
});
