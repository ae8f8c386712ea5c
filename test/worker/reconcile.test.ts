/** A worker and an upstream that can be asked: what was lost on the way is found out, and nothing is done twice. */
import t from 'tap';
import { type Claims, useClaims } from '../support/claims.ts';
import { eventually } from '../support/eventually.ts';
import { type Upstream, type UpstreamOptions, useUpstream } from '../support/upstream.ts';
import { startWorker } from '../support/worker.ts';

const lookupPath = '/lookup?key=';

interface Setup {
  readonly store: Claims;
  readonly upstream: Upstream;
}

async function setup(
  t: Parameters<typeof useClaims>[0],
  options: UpstreamOptions,
  definition: object = {},
): Promise<Setup> {
  const upstream = await useUpstream(t, { lookupPath, ...options });
  const store = await useClaims(t);
  await store.putUpstream('api', {
    base_url: upstream.url,
    allow_private_addresses: true,
    retry: { base_ms: 20, cap_ms: 50 },
    reconcile: { path: `${lookupPath}{key}` },
    ...definition,
  });
  return { store, upstream };
}

interface Done {
  readonly state: string;
  readonly reason: string | null;
  readonly evidence: string | null;
  readonly attempts_used: number;
  readonly verdicts: readonly string[] | null;
}

/** All jobs, once they have ended. */
function ended({ database }: Claims, count: number): Promise<Done[]> {
  return eventually('all jobs have ended', async () => {
    const rows = await database.query<Done>(
      `select d.state, d.reason, d.evidence, d.attempts_used,
              (select array_agg(q.verdict order by q.epoch) from sluice.reconciliations q where q.job_id = d.job_id) as verdicts
         from sluice.done_jobs d join sluice.jobs j on j.id = d.job_id order by j.seq`,
    );
    return rows.length === count && rows;
  });
}

const calls = ({ log }: Upstream) => log.requests.map(({ method }) => method).join(' ');

t.test(
  'the answer was lost after the effect: the upstream says so, and there is one call that did the work',
  async (t) => {
    for (const reset of ['after_effect', undefined] as const) {
      const { store, upstream } = await setup(t, {
        rules: [{ path: '/x', times: 1, answer: { ...(reset && { reset }) } }],
      });
      await store.addJobs({ count: 1 });
      await startWorker(t, { connectionString: store.connectionString });
      const [done] = await ended(store, 1);
      if (reset === undefined) {
        t.same(done, { state: 'succeeded', reason: null, evidence: 'response', attempts_used: 1, verdicts: null });
        t.equal(calls(upstream), 'POST', 'the control: an answer that comes is not asked for');
        continue;
      }
      t.same(done, {
        state: 'succeeded',
        reason: null,
        evidence: 'reconciled',
        attempts_used: 1,
        verdicts: ['applied'],
      });
      t.equal(calls(upstream), 'POST GET');
      t.equal(upstream.effects('k1'), 1);
      const question = upstream.log.requests[1]!;
      t.equal(question.path, '/lookup?key=k1');
      t.equal(question.key, null, 'a question does not carry the idempotency header');
    }
  },
);

t.test('the call was lost before the effect: the upstream says so, and it is sent again, once', async (t) => {
  const { store, upstream } = await setup(t, { rules: [{ path: '/x', times: 1, answer: { reset: 'before_effect' } }] });
  await store.addJobs({ count: 1 });
  await startWorker(t, { connectionString: store.connectionString });
  t.same(await ended(store, 1), [
    { state: 'succeeded', reason: null, evidence: 'response', attempts_used: 2, verdicts: ['absent'] },
  ]);
  t.equal(calls(upstream), 'POST GET POST');
  t.equal(upstream.effects('k1'), 1);
});

t.test(
  'where nothing deduplicates, a job that would be held is asked about instead, and nothing is done twice',
  async (t) => {
    const { store, upstream } = await setup(
      t,
      { idempotencyHeader: null, rules: [{ path: '/x', times: 1, answer: { reset: 'after_effect' } }] },
      { idempotency_header: null },
    );
    // This upstream keeps no keys of its own: it knows the work from its books.
    upstream.script({ path: `${lookupPath}*`, answer: { status: 200, effect: false } });
    await store.addJobs({ count: 1 });
    await startWorker(t, { connectionString: store.connectionString });
    t.match(await ended(store, 1), [{ state: 'succeeded', evidence: 'reconciled' }]);
    t.equal(upstream.summary().effects, 1);
  },
);

t.test('an upstream that does not know yet is asked again; nothing is sent before it has said', async (t) => {
  const { store, upstream } = await setup(t, {
    rules: [
      { path: '/x', times: 1, answer: { reset: 'after_effect' } },
      { path: `${lookupPath}*`, times: 2, answer: { status: 500 } },
      { path: `${lookupPath}*`, skip: 2, times: 1, answer: { reset: 'before_effect' } },
    ],
  });
  await store.addJobs({ count: 1 });
  await startWorker(t, { connectionString: store.connectionString });
  t.match(await ended(store, 1), [
    { evidence: 'reconciled', attempts_used: 1, verdicts: ['unclear', 'unclear', 'unclear', 'applied'] },
  ]);
  t.equal(calls(upstream), 'POST GET GET GET GET');
});

t.test('one that never says: the job is held for a person after max_throttles questions', async (t) => {
  const { store, upstream } = await setup(
    t,
    {
      rules: [
        { path: '/x', answer: { reset: 'after_effect' } },
        { path: `${lookupPath}*`, answer: { status: 500 } },
      ],
    },
    { retry: { base_ms: 5, cap_ms: 10, max_throttles: 3 } },
  );
  await store.addJobs({ count: 1 });
  await startWorker(t, { connectionString: store.connectionString });
  await eventually('it is held', async () => {
    const rows = await store.database.query(
      `select 1 from sluice.parked_jobs where state = 'held' and reason = 'outcome_unknown'`,
    );
    return rows.length === 1;
  });
  t.equal(calls(upstream), 'POST GET GET GET GET');
});

t.test('a 429 to a question closes the upstream until its time: nothing at all is sent meanwhile', async (t) => {
  const { store, upstream } = await setup(t, {
    rules: [
      { path: '/x', times: 1, answer: { reset: 'after_effect' } },
      { path: `${lookupPath}*`, times: 1, answer: { status: 429, headers: [['Retry-After', '1']] } },
    ],
  });
  await store.addJobs({ count: 1 });
  await startWorker(t, { connectionString: store.connectionString });
  await eventually('the question was throttled', () => upstream.log.requests.length === 2);
  await eventually(
    'the cooldown is there',
    async () => (await store.database.query('select 1 from sluice.cooldowns')).length > 0,
  );
  await store.addJobs({ count: 5 });
  const done = await ended(store, 6);
  t.match(done[0], { evidence: 'reconciled', verdicts: ['throttled', 'applied'] });
  t.same(upstream.log.startsInCooldowns(50), []);
});

t.test('questions take permits like any other call: the bound holds over both', async (t) => {
  const { store, upstream } = await setup(t, {
    rules: [{ path: '/x', times: 6, answer: { reset: 'after_effect' } }],
  });
  await store.putLimit('five', { limit: 5, per: 1, slack_ms: 250, upstreams: ['api'] });
  await store.addJobs({ count: 10 });
  await startWorker(t, { connectionString: store.connectionString });
  const done = await ended(store, 10);
  t.equal(done.filter(({ evidence }) => evidence === 'reconciled').length, 6);
  t.equal(upstream.log.requests.length, 16);
  t.ok(upstream.log.maxStartsInAny(1000) <= 5, `${upstream.log.maxStartsInAny(1000)} in the fullest second`);
  t.same(upstream.doubles(), []);
});

t.test('a worker that dies while it asks: another asks again, and no attempt is spent', async (t) => {
  const { store, upstream } = await setup(t, {
    rules: [
      { path: '/x', times: 1, answer: { reset: 'after_effect' } },
      { path: `${lookupPath}*`, times: 1, answer: { status: 200, effect: false, gate: 'first question' } },
    ],
  });
  await store.addJobs({ count: 1 });
  const first = await startWorker(t, { connectionString: store.connectionString, concurrency: 1 });
  await eventually('the first worker asks', () => upstream.log.requests.length === 2);
  await store.database.query(
    `update sluice.workers set lease_expires_at = clock_timestamp() - interval '1 second' where id = $1`,
    [first.workerId],
  );
  await startWorker(t, { connectionString: store.connectionString });
  t.match(await ended(store, 1), [{ evidence: 'reconciled', attempts_used: 1, verdicts: ['unclear', 'applied'] }]);
  upstream.release('first question');
  t.equal(calls(upstream), 'POST GET GET');
});

t.test(
  'a key that may be forgotten: asked about instead of held, and sent again only once it is said to be absent',
  async (t) => {
    const { store, upstream } = await setup(
      t,
      { rules: [{ path: '/x', times: 1, answer: { status: 500, headers: [['Retry-After', '600']] } }] },
      { key_ttl_s: 3600 },
    );
    await store.addJobs({ count: 1 });
    const worker = await startWorker(t, { connectionString: store.connectionString });
    await eventually(
      'the first call has failed',
      async () => (await store.database.query('select 1 from sluice.parked_jobs')).length === 1,
    );
    // As if it had waited for a day.
    await store.database.query(
      `update sluice.parked_jobs set first_sent_at = first_sent_at - interval '1 day', due_at = clock_timestamp()`,
    );
    worker.wake();
    t.same(await ended(store, 1), [
      { state: 'succeeded', reason: null, evidence: 'response', attempts_used: 2, verdicts: ['absent'] },
    ]);
    t.equal(calls(upstream), 'POST GET POST');
  },
);
