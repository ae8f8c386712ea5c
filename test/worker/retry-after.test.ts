/**
 * Retry-After from the wire to the closed upstream: each form that a real API sends, through a real call, and what the
 * fleet then waits for.
 */
import t from 'tap';
import { useClaims } from '../support/claims.ts';
import { eventually } from '../support/eventually.ts';
import { type Answer, useUpstream } from '../support/upstream.ts';
import { startWorker } from '../support/worker.ts';

const date = 'Thu, 01 Jan 2026 00:00:00 GMT';

const forms: readonly { name: string; answer: Answer; leastMs: number; mostMs: number; capped?: boolean }[] = [
  { name: 'seconds', answer: throttle(['Retry-After', '120']), leastMs: 120_000, mostMs: 120_000 },
  {
    name: 'an IMF-fixdate, against the Date of the answer (nodejs/undici#4084)',
    answer: throttle(['Date', date], ['Retry-After', 'Thu, 01 Jan 2026 00:02:00 GMT']),
    leastMs: 120_000,
    mostMs: 120_000,
  },
  {
    name: 'an RFC 850 date',
    answer: throttle(['Date', date], ['Retry-After', 'Thursday, 01-Jan-26 00:02:00 GMT']),
    leastMs: 120_000,
    mostMs: 120_000,
  },
  {
    name: 'an asctime date',
    answer: throttle(['Date', date], ['Retry-After', 'Thu Jan  1 00:02:00 2026']),
    leastMs: 120_000,
    mostMs: 120_000,
  },
  { name: 'a plain decimal', answer: throttle(['Retry-After', '2.0']), leastMs: 2_000, mostMs: 2_000 },
  {
    name: 'two headers: the larger (aaronpowell/httpstatus#153)',
    answer: throttle(['Retry-After', '1'], ['Retry-After', '30']),
    leastMs: 30_000,
    mostMs: 30_000,
  },
  {
    name: 'an epoch second: the cap, marked (openclaw/clawhub#407)',
    answer: throttle(['Retry-After', '9999999999']),
    leastMs: 86_400_000,
    mostMs: 86_400_000,
    capped: true,
  },
  { name: '0: the first step of the streak', answer: throttle(['Retry-After', '0']), leastMs: 250, mostMs: 375 },
  {
    name: 'garbage: as absent (open-telemetry/opentelemetry-js#7010)',
    answer: throttle(['Retry-After', '30s']),
    leastMs: 250,
    mostMs: 375,
  },
  { name: 'none', answer: throttle(), leastMs: 250, mostMs: 375 },
  {
    name: '503 with a time',
    answer: { ...throttle(['Retry-After', '7']), status: 503 },
    leastMs: 7_000,
    mostMs: 7_000,
  },
];

function throttle(...headers: [string, string][]): Answer {
  return { status: 429, headers, body: '{}' };
}

t.test('each form closes the upstream for what it says, to the millisecond, and spends no attempt', async (t) => {
  const upstream = await useUpstream(t, {
    rules: forms.map(({ answer }, i) => ({ path: `/form-${i}/x`, times: 1, answer })),
  });
  const store = await useClaims(t);
  for (let i = 0; i < forms.length; i += 1) {
    await store.putUpstream(`form-${i}`, { base_url: `${upstream.url}/form-${i}`, allow_private_addresses: true });
    await store.addJobs({ count: 1, upstream: `form-${i}` });
  }
  await startWorker(t, { connectionString: store.connectionString });
  for (const [i, form] of forms.entries()) {
    const seen = await eventually(form.name, async () => {
      const rows = await store.database.query<{
        wait_ms: number;
        charged: string;
        outcome: string;
        retry_after_capped: boolean;
      }>(
        `select extract(epoch from c.until - c.at)::float8 * 1000 as wait_ms, a.charged, a.outcome, a.retry_after_capped
           from sluice.cooldowns c join sluice.attempts a on a.job_id = c.job_id
          where c.name = $1 and a.number = 1`,
        [`form-${i}`],
      );
      return rows[0];
    });
    t.ok(seen.wait_ms >= form.leastMs - 0.01 && seen.wait_ms <= form.mostMs + 0.01, `${form.name}: ${seen.wait_ms} ms`);
    t.match(seen, { charged: 'throttle', outcome: 'throttled', retry_after_capped: form.capped ?? false }, form.name);
  }
});

t.test(
  '503 without a time, 413 with one and 413 without: a backoff, a wait as told, an end; none closes the upstream',
  async (t) => {
    const upstream = await useUpstream(t, {
      rules: [
        { path: '/a/x', answer: { status: 503 } },
        { path: '/b/x', answer: { status: 413, headers: [['Retry-After', '50']] } },
        { path: '/c/x', answer: { status: 413 } },
        { path: '/d/x', answer: { status: 400, headers: [['Retry-After', '1']] } },
        { path: '/e/x', answer: { status: 200, headers: [['Retry-After', '60']] } },
      ],
    });
    const store = await useClaims(t);
    for (const name of ['a', 'b', 'c', 'd', 'e']) {
      await store.putUpstream(name, {
        base_url: `${upstream.url}/${name}`,
        allow_private_addresses: true,
        retry: { base_ms: 600_000, cap_ms: 600_000 },
      });
      await store.addJobs({ count: 1, upstream: name });
    }
    await startWorker(t, { connectionString: store.connectionString });
    const states = await eventually('all are settled', async () => {
      const rows = await store.database.query<{ upstream: string; state: string; wait_s: number | null }>(
        `select j.upstream, coalesce(d.state, p.state) as state, extract(epoch from p.due_at - a.ended_at)::float8 as wait_s
         from sluice.jobs j join sluice.attempts a on a.job_id = j.id
         left join sluice.done_jobs d on d.job_id = j.id left join sluice.parked_jobs p on p.job_id = j.id order by 1`,
      );
      return rows.length === 5 && rows;
    });
    t.same(
      states.map((row) => [row.upstream, row.state]),
      [
        ['a', 'scheduled'],
        ['b', 'scheduled'],
        ['c', 'failed'],
        ['d', 'failed'],
        ['e', 'succeeded'],
      ],
    );
    t.ok(states[0]!.wait_s! <= 601, 'a backoff with full jitter');
    t.ok(states[1]!.wait_s! >= 49.9 && states[1]!.wait_s! <= 52, `as told: ${states[1]!.wait_s} s`);
    t.same(await store.database.query('select name from sluice.cooldowns'), []);
  },
);

t.test(
  'garrytan/gstack#1337 a cooldown burns no attempts: max_attempts 1 survives any number of throttles up to max_throttles',
  async (t) => {
    const upstream = await useUpstream(t, {
      rules: [
        { path: '/ok/x', times: 4, answer: throttle() },
        { path: '/no/x', answer: throttle() },
      ],
    });
    const store = await useClaims(t);
    for (const name of ['ok', 'no']) {
      await store.putUpstream(name, {
        base_url: `${upstream.url}/${name}`,
        allow_private_addresses: true,
        retry: { max_attempts: 1, max_throttles: 4 },
      });
      await store.addJobs({ count: 1, upstream: name });
    }
    await startWorker(t, { connectionString: store.connectionString });
    const ended = await eventually(
      'both have ended',
      async () => {
        const rows = await store.database.query<{ upstream: string }>(
          `select j.upstream, d.state, d.reason, d.attempts_used, d.throttles from sluice.done_jobs d join sluice.jobs j on j.id = d.job_id order by 1`,
        );
        return rows.length === 2 && rows;
      },
      60_000,
    );
    t.same(ended, [
      { upstream: 'no', state: 'failed', reason: 'throttled_too_long', attempts_used: 0, throttles: 5 },
      { upstream: 'ok', state: 'succeeded', reason: null, attempts_used: 1, throttles: 4 },
    ]);
  },
);
