import t from 'tap';
import { numberedItems } from '../support/client.ts';
import { assertOneEffectEach, type Fleet, startFleet } from '../support/fleet.ts';
import { type ArrivedRequest, useUpstreamProcess } from '../support/upstream.ts';

t.setTimeout(120_000);

const retryAfterMs = 2000;
const throttleOnce = {
  key: 'first',
  times: 1,
  answer: { status: 429, headers: [['Retry-After', String(retryAfterMs / 1000)]] },
} as const;
/** Long enough that calls in flight at once are seen as such. */
const answersAfterMs = 60;
const plainAnswer = { answer: { delayMs: answersAfterMs } } as const;

/** The first call is throttled, alone; resolves when that is on record and the fleet is closed. */
async function throttleFirst({ client }: Fleet, item: object = {}): Promise<void> {
  const batch = await client.submit('api', [{ idempotency_key: 'first', ...item }]);
  const [first] = await client.items(batch.batch_id);
  await client.waitForJob(first?.job_id as string, 10_000, ({ throttles }) => throttles === 1);
}

/** After a probe of one call, each answer doubles how many may be in flight. */
function assertRamp(t: Parameters<typeof startFleet>[0], calls: readonly ArrivedRequest[]): void {
  const tooMany = calls.filter((call) => {
    const before = calls.filter(({ arrivedMs }) => arrivedMs <= call.arrivedMs);
    const answered = before.filter(({ answeredMs }) => answeredMs !== null && answeredMs <= call.arrivedMs).length;
    return before.length - answered > 2 ** answered;
  });
  t.same(
    tooMany.map(({ number }) => number),
    [],
    'calls that went beyond the ramp',
  );
}

for (const perSecond of [50, undefined]) {
  const limited = perSecond === undefined ? 'without a rate limit' : 'under a rate limit';
  t.test(`one 429 stops all three replicas, ${limited}; then one probe, then a ramp`, async (t) => {
    const fleet = await startFleet(t, {
      replicas: 3,
      ...(perSecond === undefined ? {} : { perSecond }),
      upstream: { rules: [throttleOnce, plainAnswer] },
    });
    const { client, upstream } = fleet;
    const other = await useUpstreamProcess(t);
    await client.putUpstream('other', other.url);
    await throttleFirst(fleet);
    const items = numberedItems('order', 100);
    const batch = await client.submit('api', items);

    const elsewhere = await client.submit('other', numberedItems('elsewhere', 10));
    await client.waitForBatch(elsewhere.batch_id, 10_000);
    await client.waitForBatch(batch.batch_id, 40_000);
    const log = await upstream.log();
    assertOneEffectEach(t, log, ['first', ...items.map((item) => item.idempotency_key)]);
    const [throttled, probe, ...rest] = log.requests as [ArrivedRequest, ArrivedRequest, ...ArrivedRequest[]];
    const waitedMs = probe.arrivedMs - (throttled.answeredMs as number);
    t.ok(waitedMs >= retryAfterMs, `the next call came ${Math.round(waitedMs)} ms after the 429`);
    const early = rest.filter(({ arrivedMs }) => arrivedMs < (probe.answeredMs as number));
    t.same(early, [], 'nothing followed the probe before its answer');
    assertRamp(t, [probe, ...rest]);
    const [firstElsewhere] = (await other.log()).requests;
    t.ok((firstElsewhere?.arrivedAt ?? Infinity) < probe.arrivedAt, 'another upstream went on meanwhile');
  });
}

t.test('a throttle closes one partition of a by_partition limit, not the other', async (t) => {
  const fleet = await startFleet(t, { replicas: 2, upstream: { rules: [throttleOnce] } });
  const { client, upstream } = fleet;
  await client.putRateLimit('per-account', { limit: 50, per: 1, by_partition: true, upstreams: ['api'] });
  await throttleFirst(fleet, { partition_key: 'a' });
  const a = await client.submit(
    'api',
    numberedItems('a', 5).map((item) => ({ ...item, partition_key: 'a' })),
  );
  const b = await client.submit(
    'api',
    numberedItems('b', 5).map((item) => ({ ...item, partition_key: 'b' })),
  );
  await client.waitForBatch(b.batch_id, 10_000);
  await client.waitForBatch(a.batch_id, 20_000);

  const log = await upstream.log();
  const [throttled] = log.requests as [ArrivedRequest];
  const opensMs = (throttled.answeredMs as number) + retryAfterMs;
  const before = log.requests.filter(({ arrivedMs }) => arrivedMs < opensMs).map(({ key }) => key?.split('-')[0]);
  t.ok(before.includes('b'), 'partition b went on');
  t.notOk(before.includes('a'), 'partition a waited');
});

t.test('a later answer with a shorter Retry-After does not reopen a longer cooldown', async (t) => {
  const { client, upstream } = await startFleet(t, {
    upstream: {
      rules: [
        { key: 'long', times: 1, answer: { status: 429, headers: [['Retry-After', '60']] } },
        { key: 'short', times: 1, answer: { gate: 'short', status: 429, headers: [['Retry-After', '1']] } },
      ],
    },
  });
  const other = await useUpstreamProcess(t);
  await client.putUpstream('other', other.url);
  const batch = await client.submit('api', [{ idempotency_key: 'short' }, { idempotency_key: 'long' }]);
  const [short, long] = await client.items(batch.batch_id);
  const throttled = (item: typeof short) =>
    client.waitForJob(item?.job_id as string, 10_000, ({ throttles }) => throttles === 1);
  await throttled(long);
  await upstream.release('short');
  await throttled(short);

  const { cooldowns } = await client.call<{ cooldowns: Array<{ until: string }> }>('GET', '/admin/upstreams/api');
  const { attempts } = await client.job(long?.job_id as string);
  const leastUntil = Date.parse(attempts[0]?.ended_at as string) + 59_000;
  t.ok(Date.parse(cooldowns[0]?.until as string) > leastUntil, 'the longer one still holds');

  const next = await client.submit('api', [{ idempotency_key: 'next' }]);
  const elsewhere = await client.submit('other', [{ idempotency_key: 'elsewhere' }]);
  await client.waitForBatch(elsewhere.batch_id, 10_000);
  const status = await client.batch(next.batch_id);
  t.match(status, { jobs: { ready: 1 } }, 'a job that came later waits too, while another upstream is served');
});
