/** What the head of a lane means to the jobs behind it, and to the lanes beside it. */
import t from 'tap';
import { setPaused } from '../../src/application/manage-definitions.ts';
import { cancelJobs } from '../../src/postgres/cancel-jobs.ts';
import { putReceipt } from '../../src/postgres/put-receipt.ts';
import { type Claims, useClaims } from '../support/claims.ts';
import { definitionDependencies } from '../support/definitions.ts';

t.test('a head that expires while it waits for its time lets go of its order', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.putQueue('line', { ordering: 'fifo' });
  const inAnHour = "clock_timestamp() + interval '1 hour'";
  await store.addJobs({ count: 1, queue: 'line', runAt: inAnHour, expiresAt: inAnHour });
  await store.addJobs({ count: 1, queue: 'line' });
  t.same((await store.claim(2)).jobs, [], 'it holds its lane');
  await store.database.query(`update sluice.parked_jobs set expires_at = clock_timestamp() - interval '1 second'`);
  t.equal((await store.claim(2)).jobs.length, 1);
});

t.test('a dear head of one queue gets its turn beside the cheap jobs of another under the same window', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.putQueue('dear', {});
  await store.putLimit('all', { limit: 10, per: 1, upstreams: ['api'] });
  await store.addJobs({ count: 200 });
  let nowUs = await store.clockUs();
  const taken = { cheap: 0, dear: 0 };
  for (let step = 0; step < 100; step += 1) {
    if (step === 30) await store.addJobs({ count: 1, queue: 'dear', cost: 10 });
    await store.setClock(nowUs);
    for (const job of (await store.claim(10)).jobs) taken[job.queue === 'dear' ? 'dear' : 'cheap'] += 1;
    nowUs += 100_000;
  }
  t.equal(taken.dear, 1);
  t.ok(taken.cheap > 60, `${taken.cheap} cheap ones went before and after it`);
});

const evidence = { status: null, excerpt: null, truncated: false, sha256: null, note: null };
const headGoes: Readonly<Record<string, (store: Claims, head: { id: string; key: string }) => Promise<unknown>>> = {
  'is cancelled': ({ database }, { id }) => cancelJobs(database, [id]),
  expires: ({ database }) =>
    database.query(`update sluice.ready_jobs set expires_at = clock_timestamp() - interval '1 second' where cost > 1`),
  'ends by a receipt': ({ database }, { key }) => putReceipt(database, 'default', key, evidence),
  'has its queue paused': ({ database }) => setPaused(definitionDependencies(database), 'queues', 'dear', true),
};
for (const [what, go] of Object.entries(headGoes)) {
  t.test(`a dear head that ${what} is not saved up for any longer, in any queue`, async (t) => {
    const store = await useClaims(t);
    await store.putUpstream('api');
    await store.putQueue('dear', {});
    await store.putLimit('all', { limit: 10, per: 3600, upstreams: ['api'] });
    await store.addJobs({ count: 10 });
    const before = (await store.claim(2)).jobs.length;
    await store.addJobs({ count: 1, queue: 'dear', cost: 10 });
    // Whose turn it is goes first; then it is the head's.
    const beside = (await store.claimAll(1)).length;
    t.same(await store.claimAll(10), [], 'the window saves up for it');
    const [head] = await store.database.query<{ id: string; key: string }>(
      'select id, idempotency_key as key from sluice.jobs where cost > 1',
    );
    await go(store, head!);
    t.equal((await store.claimAll(10)).length, 10 - before - beside);
  });
}
