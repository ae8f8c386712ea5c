/**
 * What a claim costs does not grow with what waits behind closed windows: buffers touched, by EXPLAIN, with little and with
 * much waiting. Not a timed test.
 */
import t from 'tap';
import { type Claims, useClaims } from '../support/claims.ts';

/** Buffers that a claim of `slots` touches when everything that can be closed is closed and the open lane has work. */
async function buffersOfClaim(store: Claims, slots: number): Promise<{ buffers: number; rows: number }> {
  await store.claimAll(64);
  await store.addJobs({ count: 300, upstream: 'open' });
  // The plans of the functions are generic from the sixth call on.
  for (let i = 0; i < 8; i += 1) await store.settle((await store.claim(slots)).jobs);
  const [row] = await store.database.query<{ 'QUERY PLAN': { Plan: Record<string, number> }[] }>(
    `explain (analyze, buffers, format json) select * from sluice.claim_jobs('${store.workerId}', ${slots})`,
  );
  const plan = row!['QUERY PLAN'][0]!.Plan;
  return { buffers: plan['Shared Hit Blocks']! + plan['Shared Read Blocks']!, rows: plan['Actual Rows']! };
}

async function storeWithClosedLanes(t: Parameters<typeof useClaims>[0]): Promise<Claims> {
  const store = await useClaims(t, { max: 1, breaks: ['job_of_a_key', 'batch_of_a_job'] });
  await store.putUpstream('closed');
  await store.putUpstream('open');
  await store.putLimit('account', { limit: 1, per: 86_400, by_partition: true, upstreams: ['closed'] });
  return store;
}

/** Lanes whose window is used up, each with waiting jobs. */
async function addClosed(store: Claims, tag: string, lanes: number, jobsEach: number): Promise<void> {
  await store.addJobs({ count: 1, upstream: 'closed', partitionKey: `${tag}0` });
  await store.database.query(
    `with lane as (
       insert into sluice.lanes (group_id, tenant, partition_key)
       select g.id, 'default', $1 || i from sluice.lane_groups g, generate_series(1, $2::int - 1) i where g.upstream = 'closed'
       returning id, partition_key),
     job as (
       insert into sluice.jobs (id, tenant, batch_id, lane_id, rank, seq, queue, upstream, partition_key, idempotency_key, key_source,
                                method, path)
       select gen_random_uuid(), 'default', '00000000-0000-7000-8000-000000000000', l.id, 0, nextval('sluice.job_seq'), 'default',
              'closed', l.partition_key, 'c' || nextval('sluice.job_seq'), 'given', 'POST', '/x'
         from lane l, generate_series(1, $3::int)
       returning id, lane_id, rank, seq)
     insert into sluice.ready_jobs (lane_id, rank, seq, job_id, cost, eligible_at)
     select lane_id, rank, seq, id, 1, clock_timestamp() from job`,
    [tag, lanes, jobsEach],
  );
  await store.database.query('analyze sluice.ready_jobs, sluice.lanes');
}

t.test(
  'the claim touches about as many buffers with 200,000 jobs in 2,000 closed lanes as with 1,000 in 10',
  async (t) => {
    const store = await storeWithClosedLanes(t);
    await addClosed(store, 'few', 10, 100);
    const little = await buffersOfClaim(store, 32);
    await addClosed(store, 'many', 1_990, 100);
    const much = await buffersOfClaim(store, 32);
    t.equal(little.rows, 33, '32 jobs and the summary');
    t.equal(much.rows, 33);
    const [waiting] = await store.database.query<{ n: number }>('select count(*)::int as n from sluice.ready_jobs');
    t.ok(waiting!.n > 190_000, `${waiting!.n} jobs wait`);
    t.ok(much.buffers <= 1.5 * little.buffers, `${little.buffers} buffers, then ${much.buffers}`);
  },
);

t.test('an idle claim that meets only closed lanes reads a bounded number of buffers', async (t) => {
  const store = await storeWithClosedLanes(t);
  await addClosed(store, 'many', 1_000, 5);
  await store.settle(await store.claimAll(64));
  const [row] = await store.database.query<{ 'QUERY PLAN': { Plan: Record<string, number> }[] }>(
    `explain (analyze, buffers, format json) select * from sluice.claim_jobs('${store.workerId}', 32)`,
  );
  const plan = row!['QUERY PLAN'][0]!.Plan;
  t.equal(plan['Actual Rows'], 1, 'nothing but the summary');
  const buffers = plan['Shared Hit Blocks']! + plan['Shared Read Blocks']!;
  t.ok(buffers < 200, `${buffers} buffers`);
});
