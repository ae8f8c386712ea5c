/** What the settle does with a call that asked: verdicts on record, the ledger of the job, permits, cooldowns and ramps. */
import t from 'tap';
import type { SettleRow } from '../../src/postgres/settle-jobs.ts';
import { type Claims, useClaims } from '../support/claims.ts';

const unknown: Partial<SettleRow> = {
  next: { kind: 'ready' },
  outcome: 'unknown',
  status: null,
  outcomeUnknown: true,
  answeredWithoutThrottle: false,
};
const asked = {
  outcome: null,
  charge: 'none',
  mayHaveHadEffect: false,
  outcomeUnknown: true,
  sentAfterMs: 5,
  endedAfterMs: 25,
} satisfies Partial<SettleRow>;
const applied: Partial<SettleRow> = {
  ...asked,
  next: { kind: 'done', state: 'succeeded', reason: null, evidence: 'reconciled' },
  outcomeUnknown: false,
  reconciliation: 'applied',
};
const absent: Partial<SettleRow> = {
  ...asked,
  next: { kind: 'ready' },
  status: 404,
  outcomeUnknown: false,
  reconciliation: 'absent',
};
const unclear: Partial<SettleRow> = {
  ...asked,
  next: { kind: 'scheduled', delayMs: 60_000, reason: null },
  status: 500,
  reconciliation: 'unclear',
  error: 'it answered 500',
};
const throttled: Partial<SettleRow> = {
  ...asked,
  next: { kind: 'ready' },
  status: 429,
  reconciliation: 'throttled',
  answeredWithoutThrottle: false,
  throttle: { delayMs: 2000, capped: false, status: 429, header: '2' },
};

/** A job whose first call got no answer, claimed again. */
async function askingStore(t: Parameters<typeof useClaims>[0], definition: object = {}): Promise<Claims> {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api', definition);
  await store.addJobs({ count: 1 });
  await store.settle((await store.claim(1)).jobs, unknown);
  return store;
}

function reconciliations({ database }: Claims): Promise<unknown[]> {
  return database.query(
    `select epoch, status, verdict, error, round(extract(epoch from sent_at - started_at) * 1000)::int as sent_ms,
            round(extract(epoch from at - started_at) * 1000)::int as at_ms
       from sluice.reconciliations order by epoch`,
  );
}

t.test('applied ends the job; the question is on record, and is no attempt', async (t) => {
  const store = await askingStore(t);
  const [job] = (await store.claim(1)).jobs;
  t.match(job, { outcomeUnknown: true, reconcileFailures: 0, epoch: 2, calls: 1, attemptsUsed: 1 });
  await store.settle([job!], applied);
  const rows = await store.database.query(
    `select state, reason, evidence, status, calls, attempts_used, throttles, outcome_unknown, first_sent_at is not null as sent
       from sluice.done_jobs`,
  );
  const ledger = { calls: 1, attempts_used: 1, throttles: 0, outcome_unknown: false, sent: true };
  t.same(rows, [{ state: 'succeeded', reason: null, evidence: 'reconciled', status: null, ...ledger }]);
  t.same(await reconciliations(store), [
    { epoch: 2, status: 200, verdict: 'applied', error: null, sent_ms: 5, at_ms: 25 },
  ]);
  t.equal((await store.database.query('select 1 from sluice.attempts')).length, 1);
});

t.test('absent puts the job back at once, as one that nothing has come of yet', async (t) => {
  const store = await askingStore(t);
  await store.settle((await store.claim(1)).jobs, absent);
  const [job] = (await store.claim(1)).jobs;
  t.match(job, { outcomeUnknown: false, firstSentAgeMs: null, reconcileFailures: 0, calls: 1, attemptsUsed: 1 });
  await store.settle([job!]);
  t.match(await store.database.query('select evidence, calls from sluice.done_jobs'), [
    { evidence: 'response', calls: 2 },
  ]);
});

t.test(
  'questions that tell nothing are counted, through every wait, until one tells or a person decides',
  async (t) => {
    const store = await askingStore(t);
    const now = await store.clockUs();
    await store.setClock(now);
    await store.settle((await store.claim(1)).jobs, unclear);
    t.equal((await store.claim(1)).jobs.length, 0, 'it waits');
    await store.setClock(now + 60_000_000);
    const [second] = (await store.claim(1)).jobs;
    t.match(second, { outcomeUnknown: true, reconcileFailures: 1 });
    t.ok(
      second!.firstSentAgeMs !== null && second!.firstSentAgeMs >= 60_000,
      'the age of the first call is known still',
    );
    await store.settle([second!], { ...unclear, next: { kind: 'ready' } });
    const [third] = (await store.claim(1)).jobs;
    t.equal(third!.reconcileFailures, 2);
    await store.settle([third!], { next: { kind: 'ready' }, outcome: null, charge: 'none', mayHaveHadEffect: false });
    const [fourth] = (await store.claim(1)).jobs;
    t.match(fourth, { outcomeUnknown: true, reconcileFailures: 2 }, 'what was handed back untouched counts as nothing');
    await store.settle([fourth!], { ...unclear, next: { kind: 'held', reason: 'outcome_unknown' } });
    t.match(
      await store.database.query('select state, reason, outcome_unknown, reconcile_failures from sluice.parked_jobs'),
      [{ state: 'held', reason: 'outcome_unknown', outcome_unknown: true, reconcile_failures: 0 }],
    );
    t.match(await reconciliations(store), [
      { epoch: 2, verdict: 'unclear', status: 500, error: 'it answered 500' },
      { epoch: 3, verdict: 'unclear' },
      { epoch: 5, verdict: 'unclear' },
    ]);
  },
);

t.test(
  'a throttled question closes the upstream as any throttle does, and costs the job none of its own',
  async (t) => {
    const store = await askingStore(t);
    await store.addJobs({ count: 3 });
    const now = await store.clockUs();
    await store.setClock(now);
    const [job] = (await store.claim(1)).jobs;
    await store.settle([job!], throttled);
    t.match(await store.database.query('select name, status, header, job_id, ramp from sluice.cooldowns'), [
      { name: 'api', status: 429, header: '2', job_id: job!.jobId, ramp: 1 },
    ]);
    t.equal((await store.claim(10)).jobs.length, 0);
    await store.setClock(now + 2_100_000);
    const [probe, ...more] = (await store.claim(10)).jobs;
    t.same(more, []);
    t.match(probe, { jobId: job!.jobId, throttles: 0, reconcileFailures: 1 });
    await store.settle([probe!], applied);
    t.equal((await store.claim(10)).jobs.length, 2, 'an answer to a question is an answer: the ramp doubles');
  },
);

t.test('a question uses its permit; one that was not sent gives it back', async (t) => {
  const store = await askingStore(t);
  await store.putLimit('two', { limit: 2, per: 60, upstreams: ['api'] });
  const used = async () =>
    (await store.database.query<{ used: number }>('select used from sluice.rate_windows'))[0]?.used;
  const untouched = {
    next: { kind: 'ready' },
    outcome: null,
    charge: 'none',
    mayHaveHadEffect: false,
    permitUnused: true,
  } as const;
  await store.settle((await store.claim(1)).jobs, untouched);
  t.equal(await used(), 0);
  await store.settle((await store.claim(1)).jobs, { ...unclear, next: { kind: 'ready' } });
  t.equal(await used(), 1);
  await store.settle((await store.claim(1)).jobs, absent);
  t.equal((await store.claim(1)).jobs.length, 0, 'and the call itself has to wait for one');
});

t.test('absent from where the upstream has moved to proves nothing: the job is held', async (t) => {
  const store = await askingStore(t);
  const { jobs } = await store.claim(1);
  await store.putUpstream('api', { base_url: 'https://elsewhere.example.test' });
  await store.settle(jobs, absent);
  t.match(
    await store.database.query(
      'select state, reason, outcome_unknown, first_sent_at is not null as sent from sluice.parked_jobs',
    ),
    [{ state: 'held', reason: 'upstream_changed', outcome_unknown: true, sent: true }],
  );
});

t.test('a worker that lost its lease while it asked writes nothing', async (t) => {
  const store = await askingStore(t);
  const { jobs } = await store.claim(1);
  await store.settle(jobs, { ...unclear, next: { kind: 'ready' } });
  t.same(await store.settle(jobs, applied), new Set());
  t.match(await reconciliations(store), [{ verdict: 'unclear' }]);
  t.match((await store.claim(1)).jobs, [{ outcomeUnknown: true }]);
});
