/**
 * Where secrets must not turn up: one process that logs all it can, an upstream that repeats whatever it was sent in every way
 * that an answer can, and then everything that can be read is searched: log, answers of every route, metrics, tables.
 */
import t from 'tap';
import type { Job } from '../support/client.ts';
import { createTestDatabase } from '../support/database.ts';
import { startService } from '../support/service.ts';
import { useUpstream } from '../support/upstream.ts';

/** Each as it stands in an environment; the third one is written otherwise in JSON and URLs. */
const upstreamSecrets = ['UPSTREAM-secret-0123456789', 'SHARED-secret-9876543210', 'ODD-secret"\\/+=&-13579'];
const itemSecrets = ['ITEM-authorization-11111', 'ITEM-api-key-22222', 'ITEM-cookie-33333'];
const urlSecret = 'URL-secret-44444';
const bodySecret = 'BODY-secret-55555';
const adminKey = 'ADMIN-key-of-the-tests-66666';

function spellings(secret: string): string[] {
  return [
    ...new Set([
      secret,
      JSON.stringify(secret).slice(1, -1),
      encodeURIComponent(secret),
      Buffer.from(secret).toString('hex'),
      Buffer.from(secret).toString('base64'),
    ]),
  ];
}

t.test('secrets of upstreams, items and keys stay where they belong', async (t) => {
  const { database, connectionString } = await createTestDatabase(t);
  const said = upstreamSecrets.join(' ');
  const echo = JSON.stringify({ you_sent: upstreamSecrets, said, url: upstreamSecrets.map(encodeURIComponent) });
  const upstream = await useUpstream(t, {
    rules: [
      { path: '/ok*', answer: { body: echo, headers: [['x-echo', said]] } },
      { path: '/rejected*', answer: { status: 400, body: echo } },
      { path: '/failed*', answer: { status: 500, body: echo } },
      {
        path: '/moved*',
        answer: { status: 302, headers: [['Location', `/next?key=${encodeURIComponent(said)}`]], body: said },
      },
      { path: '/throttled*', answer: { status: 429, headers: [['Retry-After', upstreamSecrets[0]!]], body: echo } },
      { path: '/stalled*', answer: { ending: 'stalled', headers: [['x-echo', said]], body: echo } },
      { path: '/cut*', answer: { reset: 'in_body', body: echo } },
      { path: '/reset*', answer: { reset: 'after_effect' } },
      { path: '/raw*', answer: { raw: `HTTP/1.1 2x0 ${said}\r\n${said}\r\n\r\n` } },
    ],
  });
  const service = await startService(t, {
    databaseUrl: connectionString,
    env: {
      LOG_LEVEL: 'trace',
      SLUICE_ADMIN_KEY: adminKey,
      SLUICE_SECRETS: 'API_SECRET,SHARED_SECRET,ODD_SECRET',
      API_SECRET: upstreamSecrets[0]!,
      SHARED_SECRET: upstreamSecrets[1]!,
      ODD_SECRET: upstreamSecrets[2]!,
    },
  });
  const { client } = service;
  const answers: string[] = [];
  const ask = async <T>(method: string, path: string, body?: unknown): Promise<T> => {
    const answer = await client.send<T>(method, path, body === undefined ? {} : { body });
    answers.push(`${JSON.stringify([...answer.headers])}\n${JSON.stringify(answer.body)}`);
    return answer.body;
  };

  const headers = {
    authorization: ['Bearer $', '{API_SECRET}'].join(''),
    'x-shared': ['$', '{SHARED_SECRET}/$', '{ODD_SECRET}'].join(''),
  };
  const retry = { max_attempts: 2, base_ms: 1, cap_ms: 1, max_throttles: 1, retry_after_cap_s: 1 };
  const definition = { base_url: upstream.url, allow_private_addresses: true, headers, retry };
  const paths = ['ok', 'rejected', 'failed', 'moved', 'throttled', 'stalled', 'cut', 'reset', 'raw'];
  // An upstream each, so that a throttle holds up no other.
  for (const name of [...paths, 'closed']) {
    const base_url = name === 'closed' ? 'http://127.0.0.1:1' : upstream.url;
    const timeout_ms = name === 'stalled' ? 1000 : 15_000;
    await ask('PUT', `/admin/upstreams/${name}`, { ...definition, base_url, timeout_ms });
  }
  const item = (name: string) => ({
    idempotency_key: `key-${name}`,
    upstream: name,
    path: `/${name}?api_key=${urlSecret}`,
    headers: { authorization: itemSecrets[0], 'X-API-Key': itemSecrets[1], Cookie: itemSecrets[2] },
    body: { a: { b: { token: bodySecret } } },
  });
  const made = await ask<{ batch_id: string; items: Array<{ job_id: string }> }>('POST', '/v1/batches', {
    items: [...paths, 'closed'].map(item),
  });
  const batch = made.batch_id;
  const jobs = made.items.map(({ job_id }) => job_id);

  // What is refused must not repeat it either.
  const secretUrl = `https://user:${urlSecret}@api.test/?api_key=${urlSecret}`;
  await ask('PUT', '/admin/upstreams/wrong', {
    base_url: secretUrl,
    headers: { authorization: `${itemSecrets[0]}\n` },
  });
  await ask('PUT', `/admin/upstreams/wrong?key=${urlSecret}`, '{');
  await ask('POST', '/v1/batches', {
    items: [
      { ...item('ok'), idempotency_key: 'r1', path: secretUrl },
      { ...item('ok'), idempotency_key: 'r2', path: `/x?api_key=${urlSecret}\\` },
      {
        ...item('ok'),
        idempotency_key: 'r3',
        headers: { authorization: `${itemSecrets[0]}\n`, 'bad name': itemSecrets[1] },
      },
      { ...item('ok'), idempotency_key: 'r4', headers: { host: itemSecrets[2] } },
      { ...item('ok'), idempotency_key: 'key-ok', body: bodySecret },
      { ...item('ok'), idempotency_key: 'r5', body: { [bodySecret]: 1 }, method: bodySecret },
    ],
  });
  await ask('POST', '/v1/batches', `{"items": ${bodySecret}`);
  const key = await client.call<{ key: string }>('POST', '/admin/api-keys', { body: { name: 'n', scopes: ['read'] } });

  const settled = new Set(['succeeded', 'failed', 'held']);
  const seen: Job[] = [];
  for (const id of jobs) seen.push(await client.waitForJob(id, 20_000, ({ state }) => settled.has(state)));
  t.same(
    seen.map(({ attempts }) => attempts[0]?.outcome),
    ['success', 'rejected', 'error', 'rejected', 'throttled', 'timeout', 'success', 'unknown', 'unknown', 'not_sent'],
    'each way was gone',
  );
  const [first] = upstream.log.requests;
  t.match(
    first?.headers,
    { authorization: `Bearer ${upstreamSecrets[0]}`, cookie: itemSecrets[2] },
    'the control: they were sent',
  );

  const reads = [
    ...[`/v1/batches/${batch}`, `/v1/batches/${batch}/items`, '/v1/batches', '/v1/receipts?key=key-ok'],
    ...jobs.map((id) => `/v1/jobs/${id}/explain`),
    ...['upstreams', 'rate-limits', 'queues', 'rate-windows', 'workers', 'stats', 'api-keys'].map(
      (each) => `/admin/${each}`,
    ),
    ...['/metrics', '/openapi.json', '/livez', '/readyz', `/no-such/${urlSecret}`, `/v1/jobs/${urlSecret}/x`],
  ];
  for (const path of reads) await ask('GET', path);
  await ask('POST', '/v1/receipts/lookup', { keys: jobs.map((_, index) => `key-${paths[index] ?? 'closed'}`) });
  const everywhere = answers.join('\n');
  // A job is shown to its tenant with its path and its body, and with what the upstream answered.
  const asSubmitted: string[] = [];
  for (const path of [...jobs.map((id) => `/v1/jobs/${id}`), '/v1/jobs', '/admin/dead-letter']) {
    asSubmitted.push(JSON.stringify(await client.call('GET', path)));
  }
  t.match(asSubmitted[0], /"excerpt":"\{[^"]*\\"you_sent/, 'the control: answers are kept');
  const tables = await database.query<{ name: string }>(
    `select format('%I.%I', schemaname, tablename) as name from pg_tables where schemaname like 'sluice%'`,
  );
  let stored = '';
  for (const { name } of tables) {
    const [row] = await database.query<{ text: string | null }>(
      `select string_agg(x::text, E'\\n') as text from ${name} x`,
    );
    stored += `${name}\n${row!.text}\n`;
  }
  t.ok(tables.length > 20 && stored.includes(itemSecrets[0]!), 'the control: tables are read, and items are stored');
  await service.stop();
  const logged = service.lines.map((line) => JSON.stringify(line)).join('\n');
  t.ok(
    logged.includes('"msg":"attempt"') && logged.includes('"outcome":"throttled"'),
    'the control: attempts are logged',
  );

  const look = (what: string, text: string, secrets: readonly string[]) => {
    for (const secret of secrets) {
      for (const spelling of spellings(secret)) {
        const at = text.indexOf(spelling);
        if (at !== -1) t.fail(`${what} has ${spelling}: ${text.slice(Math.max(0, at - 200), at + 100)}`);
      }
    }
    t.pass(`${what} was searched, ${text.length} characters`);
  };
  const keys = [adminKey, key.key, key.key.slice(-43)];
  look('the log', logged, [...upstreamSecrets, ...itemSecrets, urlSecret, bodySecret, ...keys]);
  look('an answer', everywhere, [...upstreamSecrets, ...itemSecrets, urlSecret, bodySecret, ...keys]);
  look('a job', asSubmitted.join('\n'), [...upstreamSecrets, ...itemSecrets, ...keys]);
  look('a table', stored, [...upstreamSecrets, ...keys]);
});
