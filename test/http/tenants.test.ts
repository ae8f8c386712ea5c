/** Tenants see only their own: the same keys and bodies in two of them, and every route with the other's ids. */
import t, { type Test } from 'tap';
import { type BatchAnswer, type Job, waitFor } from '../support/client.ts';
import { type Problem, useIntake } from '../support/intake.ts';
import { type TenantClient, tenantClient } from '../support/tenants.ts';
import { useUpstream } from '../support/upstream.ts';
import { startWorker } from '../support/worker.ts';

interface List {
  readonly items: ReadonlyArray<Record<string, unknown>>;
  readonly next_cursor: string | null;
}

async function setup(t: Test) {
  const intake = await useIntake(t);
  const of = (tenant: string) => tenantClient(intake, tenant);
  return { intake, acme: await of('acme'), beta: await of('beta') };
}

const batch = {
  correlation_id: 'import-7',
  defaults: { upstream: 'api', path: '/charges' },
  items: [
    { idempotency_key: 'ord-1', body: { amount: 5 } },
    { idempotency_key: 'ord-2', body: { amount: 7 } },
  ],
};

async function submit(client: TenantClient, body: object = batch, headers = {}): Promise<BatchAnswer> {
  const answer = await client.send<BatchAnswer>('POST', '/v1/batches', { body, headers });
  if (answer.status !== 202) throw new Error(`answered ${answer.status}: ${JSON.stringify(answer.body)}`);
  return answer.body;
}

async function idsOf(client: TenantClient, path: string, name: string): Promise<unknown[]> {
  return (await client.send<List>('GET', path)).body.items.map((item) => item[name]);
}

t.test('the same keys, bodies and Idempotency-Key in two tenants: both accepted, each sees its own', async (t) => {
  const { intake, acme, beta } = await setup(t);
  const request = { 'idempotency-key': 'one-request' };
  const first = await submit(acme, batch, request);
  const second = await submit(beta, batch, request);
  const open = await intake.post(batch, request);
  for (const answer of [first, second, open.body]) {
    t.match(answer, {
      replayed: false,
      counts: { accepted: 2 },
      items: [{ verdict: 'accepted' }, { verdict: 'accepted' }],
    });
  }
  t.equal(new Set([first, second, open.body].map((answer) => answer.batch_id)).size, 3);
  t.equal(new Set([first, second, open.body].flatMap(({ items }) => items.map((item) => item.job_id))).size, 6);

  for (const [client, own] of [
    [acme, first],
    [beta, second],
  ] as const) {
    const again = await submit(client, batch, request);
    t.match(again, { replayed: true, batch_id: own.batch_id }, 'its own first answer');
    t.match((await submit(client)).items[0], { verdict: 'duplicate', job_id: own.items[0]!.job_id });
    const other = { ...batch, items: [{ idempotency_key: 'ord-1', body: { amount: 9 } }] };
    t.match((await submit(client, other)).items[0], { verdict: 'conflict', job_id: own.items[0]!.job_id });
    const jobs = own.items.map((item) => item.job_id).reverse();
    t.same(await idsOf(client, '/v1/jobs', 'job_id'), jobs);
    t.same(await idsOf(client, '/v1/jobs?idempotency_key=ord-2', 'job_id'), jobs.slice(0, 1));
    const tried = await client.send('POST', '/v1/batches?dry_run=true', { body: batch });
    t.match(tried, { status: 200, body: { items: [{ verdict: 'duplicate', job_id: own.items[0]!.job_id }, {}] } });
    t.same(await idsOf(client, '/v1/jobs?correlation_id=import-7', 'job_id'), jobs);
    t.same(await idsOf(client, '/v1/jobs?upstream=api&queue=default&state=ready', 'job_id'), jobs);
    t.ok((await idsOf(client, '/v1/batches', 'batch_id')).includes(own.batch_id));
    t.equal((await idsOf(client, '/v1/batches', 'batch_id')).length, 3);
    t.match(await client.send('GET', '/v1/receipts?key=ord-1'), { body: { job_id: own.items[0]!.job_id } });
    t.match(await client.send('GET', `/v1/batches/${own.batch_id}`), { body: { jobs: { ready: 2 } } });
    // The place in a lane is counted in the tenant's own.
    t.match(await client.send('GET', `/v1/jobs/${own.items[0]!.job_id}/explain`), { body: { position: 1 } });
  }
});

t.test('the same stream in two tenants: two batches, each resumed by its own', async (t) => {
  const { acme, beta } = await setup(t);
  const lines = [1, 2, 3].map((number) => JSON.stringify({ idempotency_key: `s-${number}` }));
  const stream = async (client: TenantClient, body: string) => {
    const answer = await client.send<string>('POST', '/v1/batches?upstream=api&path=/x', {
      body,
      headers: { 'content-type': 'application/x-ndjson', 'idempotency-key': 'one-stream' },
    });
    const found = String(answer.body)
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line));
    return { id: answer.headers['sluice-batch-id'], lines: found };
  };
  const first = await stream(acme, lines.join('\n'));
  const second = await stream(beta, lines.join('\n'));
  t.not(first.id, second.id);
  for (const { lines: found } of [first, second]) {
    t.match(found, [...lines.map(() => ({ verdict: 'accepted', replayed: undefined })), { summary: {} }]);
  }
  const again = await stream(beta, lines.join('\n'));
  t.equal(again.id, second.id);
  t.match(again.lines, [...lines.map(() => ({ verdict: 'accepted', replayed: true })), { summary: {} }]);
});

t.test("every route answers another tenant's ids as ids of nothing, and changes nothing", async (t) => {
  const { intake, acme, beta } = await setup(t);
  const { batch_id: batchId, items } = await submit(acme);
  const jobId = items[0]!.job_id!;
  const { paths } = (await intake.app.app.inject({ url: '/openapi.json' })).json<{
    paths: Record<string, Record<string, unknown>>;
  }>();
  const before = await acme.send('GET', `/v1/jobs/${jobId}`);
  let routes = 0;
  for (const [path, methods] of Object.entries(paths)) {
    if (!/\{(batch_id|job_id)\}/.test(path)) continue;
    for (const method of Object.keys(methods)) {
      routes += 1;
      const url = path.replace('{batch_id}', batchId).replace('{job_id}', jobId);
      const answer = await beta.send<Problem>(method.toUpperCase() as 'GET', url);
      t.match(answer, { status: 404, body: { code: 'not_found' } }, `${method} ${path}`);
      const nothing = '01a229d4-e669-74ea-9104-965b77a9264f';
      const unknown = await beta.send<Problem>(method.toUpperCase() as 'GET', url.replace(/[0-9a-f-]{36}/, nothing));
      t.equal(
        answer.body.detail.replace(/[0-9a-f-]{36}/, ''),
        unknown.body.detail.replace(/[0-9a-f-]{36}/, ''),
        'nothing tells the two apart',
      );
    }
  }
  t.ok(routes >= 9, `${routes} routes`);

  for (const url of [
    '/v1/jobs',
    '/v1/batches',
    `/v1/jobs?batch_id=${batchId}`,
    '/v1/jobs?idempotency_key=ord-1',
    '/admin/dead-letter',
  ]) {
    t.same((await beta.send('GET', url)).body, { items: [], next_cursor: null }, url);
  }
  const tried = await beta.send('POST', '/v1/batches?dry_run=true', { body: batch });
  t.match(tried, { status: 200, body: { counts: { accepted: 2 } } });
  for (const url of ['/v1/receipts?key=ord-1', '/v1/receipts/ord-1']) {
    t.match(await beta.send('GET', url), { status: 404, body: { code: 'not_found' } }, url);
    t.match(await beta.send('PUT', url, { body: {} }), { status: 404, body: { code: 'not_found' } }, url);
  }
  t.same((await beta.send('POST', '/v1/receipts/lookup', { body: { keys: ['ord-1', 'none'] } })).body, {
    items: [
      { idempotency_key: 'ord-1', state: 'unknown_key' },
      { idempotency_key: 'none', state: 'unknown_key' },
    ],
  });
  t.same(await acme.send('GET', `/v1/jobs/${jobId}`).then(({ body }) => body), before.body, 'untouched');
});

t.test("dead letters, cooldowns and workers: an operator with another tenant's key meets no ids", async (t) => {
  const { intake, acme, beta } = await setup(t);
  const upstream = await useUpstream(t, {
    rules: [
      { path: '/bad', answer: { status: 400 } },
      { path: '/busy', answer: { status: 429, headers: [['Retry-After', '600']] } },
      { path: '/slow', answer: { status: 200, gate: 'never' } },
    ],
  });
  await intake.putUpstream('down', { base_url: upstream.url, allow_private_addresses: true });
  await intake.putUpstream('slow', { base_url: upstream.url, allow_private_addresses: true });
  await intake.putLimit('down', { limit: 100, per: 60, upstreams: ['down'] });
  await startWorker(t, { connectionString: intake.connectionString });
  const idOf = async (item: object) => (await submit(acme, { items: [item] })).items[0]!.job_id!;
  const dead = await idOf({ idempotency_key: 'dead', upstream: 'down', path: '/bad' });
  await waitFor(
    () => acme.send<Job>('GET', `/v1/jobs/${dead}`),
    ({ body }) => body.state === 'failed',
    10_000,
  );
  const busy = await idOf({ idempotency_key: 'busy', upstream: 'down', path: '/busy' });
  const slow = await idOf({ idempotency_key: 'slow', upstream: 'slow', path: '/slow' });
  await waitFor(
    () => acme.send<Job>('GET', `/v1/jobs/${busy}`),
    ({ body }) => body.throttles === 1,
    10_000,
  );
  await waitFor(
    () => acme.send<Job>('GET', `/v1/jobs/${slow}`),
    ({ body }) => body.state === 'running',
    10_000,
  );

  const seen = async (client: TenantClient) => {
    const read = async <T>(url: string) => (await client.send<T>('GET', url)).body;
    interface Cooling {
      readonly cooldown: { readonly job_id: string | null } | null;
    }
    const [window] = (await read<{ items: Cooling[] }>('/admin/rate-windows')).items;
    const workers = await read<{
      items: Array<{ running: number; jobs: Array<{ job_id: string | null; upstream: string }> }>;
    }>('/admin/workers');
    const upstreamRead = await read<{ cooldowns: Array<{ job_id: string | null; status: number }> }>(
      '/admin/upstreams/down',
    );
    return {
      dead: await idsOf(client, '/admin/dead-letter', 'job_id'),
      window: window?.cooldown?.job_id,
      oneWindow: (await read<Cooling>('/admin/rate-windows/down')).cooldown?.job_id,
      upstream: upstreamRead.cooldowns.map(({ job_id, status }) => [job_id, status]),
      running: workers.items.map(({ running, jobs }) => [running, jobs.map((job) => [job.upstream, job.job_id])]),
    };
  };
  t.same(await seen(acme), {
    dead: [dead],
    window: busy,
    oneWindow: busy,
    upstream: [[busy, 429]],
    running: [[1, [['slow', slow]]]],
  });
  t.same(await seen(beta), {
    dead: [],
    window: null,
    oneWindow: null,
    upstream: [[null, 429]],
    running: [[1, [['slow', null]]]],
  });
  for (const body of [{ job_ids: [dead] }, { filter: {} }]) {
    const redriven = await beta.send('POST', '/admin/dead-letter/redrive', { body });
    t.match(redriven, { status: 200, body: { redriven: 0 } }, JSON.stringify(body));
  }
  t.match(await acme.send('GET', `/v1/jobs/${dead}`), { body: { state: 'failed' } });
});

t.test('at the upstream the keys of tenants never meet, and each carries the same on every attempt', async (t) => {
  const { intake, acme, beta } = await setup(t);
  const upstream = await useUpstream(t, { rules: [{ path: '/charges', times: 3, answer: { status: 500 } }] });
  const retry = { max_attempts: 12, base_ms: 20, cap_ms: 50 };
  await intake.putUpstream('api', { base_url: upstream.url, allow_private_addresses: true, retry });
  await startWorker(t, { connectionString: intake.connectionString });
  const one = { ...batch, items: batch.items.slice(0, 1) };
  const answers = [await submit(acme, one), await submit(beta, one), (await intake.post(one)).body];
  const ids = answers.map(({ items }) => items[0]!.job_id!);
  await waitFor(
    () => acme.send<Job>('GET', `/v1/jobs/${ids[0]}`),
    ({ body }) => body.state === 'succeeded',
    10_000,
  );
  await waitFor(
    () => beta.send<Job>('GET', `/v1/jobs/${ids[1]}`),
    ({ body }) => body.state === 'succeeded',
    10_000,
  );
  await waitFor(
    () => intake.get<Job>(`/v1/jobs/${ids[2]}`),
    ({ body }) => body.state === 'succeeded',
    10_000,
  );
  const keys = ids.map((id) => [
    ...new Set(upstream.log.requests.filter(({ jobId }) => jobId === id).map(({ key }) => key)),
  ]);
  t.equal(upstream.log.requests.length, 6, 'three calls, and three that failed');
  t.match(keys, [[/^sluice-[0-9a-f]{64}$/], [/^sluice-[0-9a-f]{64}$/], ['ord-1']]);
  t.equal(new Set(keys.flat()).size, 3, 'one key a job, and no two alike');
  t.equal(
    upstream.log.requests.filter(({ outcome }) => outcome === 'effect').length,
    3,
    'three effects, none replayed',
  );
});
