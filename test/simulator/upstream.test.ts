import { request } from 'node:http';
import t from 'tap';
import { useUpstream, useUpstreamProcess } from '../support/upstream.ts';

interface Got {
  status: number;
  rawHeaders: string[];
  body: string;
}

/** One call by Node's own client; rejects on a reset. */
function call(url: string, key: string | null, options: { body?: string; jobId?: string; attempt?: number } = {}) {
  return new Promise<Got>((resolve, reject) => {
    const headers: Record<string, string> = { 'content-type': 'application/json' };
    if (key !== null) headers['idempotency-key'] = key;
    if (options.jobId !== undefined) headers['sluice-job-id'] = options.jobId;
    if (options.attempt !== undefined) headers['sluice-attempt'] = String(options.attempt);
    const outgoing = request(url, { method: 'POST', headers, agent: false }, (answer) => {
      let body = '';
      answer.setEncoding('utf8');
      answer.on('data', (part) => {
        body += part;
      });
      answer.on('error', reject);
      answer.on('end', () => resolve({ status: answer.statusCode ?? 0, rawHeaders: answer.rawHeaders, body }));
    });
    outgoing.on('error', reject);
    outgoing.end(options.body ?? '{}');
  });
}

t.test('a repeated key gets the result of its first effect, without a second effect', async (t) => {
  const upstream = await useUpstream(t);
  const first = await call(`${upstream.url}/pay`, 'k1', { jobId: 'j1', attempt: 1, body: '{"amount":5}' });
  const again = await call(`${upstream.url}/pay`, 'k1', { jobId: 'j1', attempt: 2 });
  t.same([first.status, again.status], [200, 200]);
  t.equal(again.body, first.body);
  t.equal(upstream.effects('k1'), 1);
  t.match(upstream.log.requests, [
    {
      number: 1,
      path: '/pay',
      key: 'k1',
      jobId: 'j1',
      attempt: 1,
      body: '{"amount":5}',
      outcome: 'effect',
      status: 200,
    },
    { number: 2, attempt: 2, outcome: 'replayed', status: 200 },
  ]);
  t.same(upstream.doubles(), []);
});

t.test('an API without a header for keys does everything twice, and the log says so by the job', async (t) => {
  const upstream = await useUpstream(t, { idempotencyHeader: null });
  await call(upstream.url, 'k1', { jobId: 'j1' });
  await call(upstream.url, 'k1', { jobId: 'j1' });
  t.same(upstream.doubles(), [{ by: 'job', id: 'j1', effects: 2 }]);
});

t.test('one job under two keys is a double by the job', async (t) => {
  const upstream = await useUpstream(t);
  await call(upstream.url, 'k1', { jobId: 'j1' });
  await call(upstream.url, 'k2', { jobId: 'j1' });
  t.same(upstream.doubles(), [{ by: 'job', id: 'j1', effects: 2 }]);
});

t.test('a failure and a throttle before the effect store nothing', async (t) => {
  const upstream = await useUpstream(t, {
    rules: [
      { key: 'k1', times: 1, answer: { status: 500 } },
      { key: 'k1', skip: 1, times: 1, answer: { status: 429, headers: [['Retry-After', '1']] } },
    ],
  });
  const statuses = [];
  for (let i = 0; i < 4; i += 1) statuses.push((await call(upstream.url, 'k1')).status);
  t.same(statuses, [500, 429, 200, 200]);
  t.same(
    upstream.log.requests.map(({ outcome }) => outcome),
    ['refused', 'throttled', 'effect', 'replayed'],
  );
});

t.test('a status that is no success can be an effect, and is replayed as it was', async (t) => {
  const upstream = await useUpstream(t, {
    rules: [{ times: 1, answer: { status: 500, effect: true, body: 'stored error' } }],
  });
  await call(upstream.url, 'k1');
  t.match(await call(upstream.url, 'k1'), { status: 500, body: 'stored error' });
  t.equal(upstream.effects('k1'), 1);
});

t.test('an effect whose answer was cut off stays stored; a reset before it leaves nothing', async (t) => {
  const upstream = await useUpstream(t, {
    rules: [
      { key: 'after', times: 1, answer: { reset: 'after_effect' } },
      { key: 'before', times: 1, answer: { reset: 'before_effect' } },
      { key: 'body', times: 1, answer: { reset: 'in_body' } },
    ],
  });
  for (const key of ['after', 'before', 'body']) await t.rejects(call(upstream.url, key));
  t.same(
    upstream.log.requests.map(({ outcome }) => outcome),
    ['effect', 'reset', 'effect'],
  );
  t.equal((await call(upstream.url, 'after')).status, 200);
  t.equal((await call(upstream.url, 'before')).status, 200);
  t.match(upstream.summary(), { effects: 3, replayed: 1, reset: 1, doubles: 0 });
});

t.test('header lines go out as they are written, also a name that comes twice', async (t) => {
  const upstream = await useUpstream(t, {
    rules: [
      {
        answer: {
          status: 429,
          headers: [
            ['Retry-After', '1'],
            ['Retry-After', '30'],
          ],
        },
      },
    ],
  });
  const { rawHeaders } = await call(upstream.url, 'k1');
  t.same(
    rawHeaders.filter((_, i) => rawHeaders[i - 1] === 'Retry-After'),
    ['1', '30'],
  );
  t.equal(upstream.log.requests[0]?.retryAfterSeconds, 30);
});

t.test("the Date header and a raw answer are the script's", async (t) => {
  const date = 'Thu, 01 Jan 2026 00:00:00 GMT';
  const upstream = await useUpstream(t, {
    rules: [
      { path: '/date', answer: { headers: [['Date', date]] } },
      { path: '/raw', answer: { raw: 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok' } },
    ],
  });
  const { rawHeaders } = await call(`${upstream.url}/date`, 'k1');
  t.same(
    rawHeaders.filter((_, i) => /^date$/i.test(rawHeaders[i - 1] ?? '')),
    [date],
  );
  t.match(await call(`${upstream.url}/raw`, 'k2'), { status: 200, body: 'ok' });
});

t.test('a gate holds the answer, not the effect, until it is released', async (t) => {
  const upstream = await useUpstream(t, { rules: [{ key: 'k1', answer: { gate: 'later' } }] });
  const held = call(upstream.url, 'k1');
  await upstream.waitFor((log) => log.effects('k1') === 1);
  t.equal(upstream.log.requests[0]?.status, null);
  upstream.release('later');
  t.equal((await held).status, 200);
});

t.test('a body can drip, never end, or never come', async (t) => {
  const upstream = await useUpstream(t, {
    rules: [
      { path: '/drip', answer: { body: 'abc', dripMs: 5 } },
      { path: '/endless', answer: { ending: 'endless' } },
      { path: '/stalled', answer: { ending: 'stalled' } },
    ],
  });
  t.match(await call(`${upstream.url}/drip`, 'k1'), { status: 200, body: 'abc' });
  for (const [path, least] of [
    ['/endless', 1_000_000],
    ['/stalled', 0],
  ] as const) {
    await new Promise<void>((resolve, reject) => {
      const outgoing = request(`${upstream.url}${path}`, { agent: false }, (answer) => {
        let bytes = 0;
        t.equal(answer.statusCode, 200, `${path}: the head arrives`);
        const seen = (part: Buffer) => {
          bytes += part.length;
          if (bytes >= least) outgoing.destroy();
        };
        answer.on('data', seen);
        answer.on('close', resolve);
        answer.on('error', () => {});
        if (least === 0) outgoing.destroy();
      });
      outgoing.on('error', (error) => (outgoing.destroyed ? undefined : reject(error)));
      outgoing.end();
    });
  }
});

t.test('the quota refuses what is over it, with the time until there is room, and counts no refusal', async (t) => {
  const upstream = await useUpstream(t, { quota: { limit: 2, perMs: 60_000 } });
  const statuses = [];
  for (let i = 0; i < 4; i += 1) statuses.push((await call(upstream.url, `k${i}`)).status);
  t.same(statuses, [200, 200, 429, 429]);
  t.equal(upstream.log.requests[2]?.retryAfterSeconds, 60);
  t.match(upstream.summary(), { effects: 2, overQuota: 2 });
  upstream.setQuota(null);
  t.equal((await call(upstream.url, 'k2')).status, 200, 'a refusal had stored nothing');
});

t.test('the same seed gives every call the same fate, whatever the order of arrival', async (t) => {
  const keys = Array.from({ length: 200 }, (_, i) => `order-${i}`);
  const fates = async (order: string[], seed: number) => {
    const upstream = await useUpstream(t, { seed, faults: { throttled: 0.1, failed: 0.2 } });
    for (const key of order) await call(upstream.url, key);
    return new Map(upstream.log.requests.map(({ key, status }) => [key, status]));
  };
  const first = await fates(keys, 7);
  const reversed = await fates([...keys].reverse(), 7);
  const other = await fates(keys, 8);
  t.same(
    keys.map((key) => reversed.get(key)),
    keys.map((key) => first.get(key)),
  );
  t.notSame([...other.values()], [...first.values()]);
  const count = (status: number) => [...first.values()].filter((one) => one === status).length;
  t.ok(count(429) > 5 && count(429) < 40, `${count(429)} of 200 are throttled at a share of 0.1`);
  t.ok(count(500) > 20 && count(500) < 65, `${count(500)} of 200 fail at a share of 0.2`);
});

t.test('slow and cut calls take effect', async (t) => {
  const slow = await useUpstream(t, { faults: { slow: 1, slowMs: [1, 5] } });
  t.equal((await call(slow.url, 'k1')).status, 200);
  const cut = await useUpstream(t, { faults: { cut: 1 } });
  await t.rejects(call(cut.url, 'k1'));
  t.equal(cut.effects('k1'), 1);
});

t.test('calls that arrive while the upstream had said "not before" are found in the log', async (t) => {
  const upstream = await useUpstream(t, {
    rules: [{ key: 'k1', times: 1, answer: { status: 429, headers: [['Retry-After', '60']] } }],
  });
  await call(upstream.url, 'k0');
  await call(upstream.url, 'k1');
  await call(upstream.url, 'k2');
  t.same(
    upstream.log.startsInCooldowns(0).map(({ key }) => key),
    ['k2'],
  );
  t.same(upstream.log.startsInCooldowns(30_000), [], 'what was on its way is not counted');
});

t.test('many calls that wait at once do not disturb the process', async (t) => {
  const warnings: Error[] = [];
  const warned = (warning: Error) => warnings.push(warning);
  process.on('warning', warned);
  t.teardown(() => process.off('warning', warned));
  const upstream = await useUpstream(t, { rules: [{ answer: { gate: 'all' } }] });
  const calls = Array.from({ length: 40 }, (_, i) => call(upstream.url, `k${i}`));
  await upstream.waitFor((log) => log.summary().effects === 40);
  upstream.release('all');
  await Promise.all(calls);
  t.same(warnings, []);
});

t.test('a condition that does not come true is an error that shows the log', async (t) => {
  const upstream = await useUpstream(t);
  await t.rejects(
    upstream.waitFor((log) => log.requests.length === 1, 20),
    { message: /did not get there in 20 ms: \{"requests":0/ },
  );
});

t.test('in a process of its own: same rules, same books', async (t) => {
  const upstream = await useUpstreamProcess(t, {
    rules: [{ key: 'k1', times: 1, answer: { status: 503, headers: [['Retry-After', '2']] } }],
  });
  t.equal((await call(upstream.url, 'k1', { jobId: 'j1' })).status, 503);
  t.equal((await call(upstream.url, 'k1', { jobId: 'j1' })).status, 200);
  await upstream.script({ key: 'k2', answer: { status: 400 } });
  t.equal((await call(upstream.url, 'k2')).status, 400);
  await upstream.unscript();
  await upstream.setFaults({ failed: 1 });
  t.equal((await call(upstream.url, 'k3')).status, 500);
  await upstream.setQuota({ limit: 0, perMs: 1000 });
  t.equal((await call(upstream.url, 'k4')).status, 429);
  const log = await upstream.log();
  t.equal(await upstream.count(), 5);
  t.same(
    log.requests.map(({ outcome }) => outcome),
    ['throttled', 'effect', 'refused', 'refused', 'over_quota'],
  );
  t.equal(log.effects('k1'), 1);
  t.equal(log.requests[0]?.headers['sluice-job-id'], 'j1');

  await upstream.close();
  await t.rejects(upstream.count(), { message: /has ended/ });
});
