/** `eta` of batches: what the store tells for it, and that it comes true. The arithmetic is tested in domain/eta.test.ts. */
import t, { type Test } from 'tap';
import { claimJobs } from '../../src/postgres/claim-jobs.ts';
import { settleJobs } from '../../src/postgres/settle-jobs.ts';
import { newWorker, settleRow, throttledFor } from '../support/claims.ts';
import { waitFor } from '../support/client.ts';
import { defaults, type Intake, useIntake } from '../support/intake.ts';
import { useUpstream } from '../support/upstream.ts';
import { startWorker } from '../support/worker.ts';

interface Batch {
  readonly status: string;
  readonly created_at: string;
  readonly completed_at: string | null;
  readonly eta: { readonly at: string; readonly limited_by: string | null } | null;
}

interface Estimated extends Intake {
  readonly workerId: string;
  /** Submits so many items, and gives the batch. */
  bring(prefix: string, count: number, more?: object): Promise<string>;
  read(id: string): Promise<Batch>;
  /** Seconds from now to the expected end, and what limits it; null: it has none. */
  left(id: string): Promise<readonly [seconds: number, limitedBy: string | null] | null>;
}

/** With a worker of 32 slots that does nothing by itself. */
async function useEstimated(t: Test): Promise<Estimated> {
  const intake = await useIntake(t);
  const read = async (id: string) => (await intake.get<Batch>(`/v1/batches/${id}`)).body;
  return {
    ...intake,
    workerId: await newWorker(intake.database),
    read,
    async bring(prefix, count, more = {}) {
      const items = Array.from({ length: count }, (_, i) => ({ idempotency_key: `${prefix}-${i}`, ...more }));
      return (await intake.post({ defaults, items })).body.batch_id;
    },
    async left(id) {
      const { eta } = await read(id);
      if (eta === null) return null;
      const [now] = await intake.database.query<{ ms: number }>('select sluice.clock_us() / 1000 as ms');
      return [(Date.parse(eta.at) - now!.ms) / 1000, eta.limited_by];
    },
  };
}

/** Within 3 % and a second: the estimate is of the moment of the read. */
function isAbout(t: Test, found: readonly [number, string | null] | null, seconds: number, limitedBy: string | null) {
  const [is, by] = found ?? [Number.NaN, null];
  t.ok(Math.abs(is - seconds) < 0.03 * seconds + 1, `${is} s is about ${seconds} s`);
  t.equal(by, limitedBy);
}

t.test('of several limits the tightest decides; what stands before it in its lane and beside it counts', async (t) => {
  const { bring, left, putLimit, putQueue, database, workerId } = await useEstimated(t);
  await putQueue('other', {});
  await putLimit('wide', { limit: 100, per: 1, upstreams: ['api'] });
  await putLimit('narrow', { limit: 10, per: 1, upstreams: ['api'] });
  const first = await bring('first', 300);
  isAbout(t, await left(first), 31, 'narrow');
  const second = await bring('second', 100);
  isAbout(t, await left(second), 41.7, 'narrow');
  isAbout(t, await left(first), 31, 'narrow');
  // In a lane beside it: they take turns.
  const beside = await bring('beside', 50, { queue: 'other' });
  isAbout(t, await left(beside), 9.6, 'narrow');
  isAbout(t, await left(second), 47, 'narrow');
  // Higher priority goes before what was there.
  const urgent = await bring('urgent', 100, { priority: 1 });
  isAbout(t, await left(urgent), 15.5, 'narrow');
  isAbout(t, await left(first), 47, 'narrow');
  // Where some of it is under way, what waits behind it still does not count.
  const { jobs } = await claimJobs(database, workerId, 10);
  t.ok(jobs.length > 5);
  isAbout(t, await left(urgent), 15.5, 'narrow');
  isAbout(t, await left(first), 47, 'narrow');
});

t.test('of limits by partition the longest partition decides', async (t) => {
  const { post, left, putLimit } = await useEstimated(t);
  await putLimit('each', { limit: 5, per: 1, by_partition: true, upstreams: ['api'] });
  const items = [
    ...Array.from({ length: 50 }, (_, i) => ({ idempotency_key: `a-${i}`, partition_key: 'a' })),
    ...Array.from({ length: 100 }, (_, i) => ({ idempotency_key: `b-${i}`, partition_key: 'b' })),
    ...Array.from({ length: 20 }, (_, i) => ({ idempotency_key: `c-${i}`, partition_key: `c${i}` })),
  ];
  const { batch_id } = (await post({ defaults, items })).body;
  isAbout(t, await left(batch_id), 20.3, 'each');
});

t.test('fixed windows and token buckets count as they let through', async (t) => {
  const { bring, left, putLimit } = await useEstimated(t);
  await putLimit('shape', { limit: 10, per: 5, algorithm: 'fixed_window', upstreams: ['api'] });
  const id = await bring('k', 100);
  isAbout(t, await left(id), 45, 'shape');
  await putLimit('shape', { limit: 10, per: 5, algorithm: 'token_bucket', burst: 20, upstreams: ['api'] });
  isAbout(t, await left(id), 40, 'shape');
});

t.test('what is used of a window counts, and what has been done is done', async (t) => {
  const { bring, left, putLimit, database, workerId } = await useEstimated(t);
  await putLimit('minute', { limit: 10, per: 60, upstreams: ['api'] });
  const id = await bring('k', 30);
  isAbout(t, await left(id), 121, 'minute');
  const { jobs } = await claimJobs(database, workerId, 10);
  t.equal(jobs.length, 10);
  isAbout(t, await left(id), 121, 'minute');
  await settleJobs(
    database,
    workerId,
    jobs.map((job) => settleRow(job)),
  );
  isAbout(t, await left(id), 121, 'minute');
});

t.test('a cooldown and a run_at are waited for', async (t) => {
  const { bring, left, putLimit, database, workerId } = await useEstimated(t);
  await putLimit('narrow', { limit: 10, per: 1, upstreams: ['api'] });
  const later = await bring('later', 20, { run_at: new Date(Date.now() + 3_600_000).toISOString() });
  isAbout(t, await left(later), 3601, 'narrow');
  const id = await bring('k', 30);
  const { jobs } = await claimJobs(database, workerId, 1);
  await settleJobs(database, workerId, [settleRow(jobs[0]!, throttledFor(600_000))]);
  isAbout(t, await left(id), 602, 'api');
});

t.test('without a limit it goes by what has been seen', async (t) => {
  const { bring, left, database, workerId } = await useEstimated(t);
  const id = await bring('k', 40);
  t.equal(await left(id), null, 'nothing has');
  const { jobs } = await claimJobs(database, workerId, 10);
  await settleJobs(
    database,
    workerId,
    jobs.map((job) => settleRow(job)),
  );
  // 10 in the last 20 seconds.
  await database.query(`update sluice.done_jobs set ended_at = clock_timestamp() - interval '20 seconds'`);
  isAbout(t, await left(id), 60, null);
});

t.test('nothing is told where it stands still, is done, or nobody works', async (t) => {
  const { bring, left, read, putLimit, putQueue, putUpstream, database, app } = await useEstimated(t);
  await putLimit('narrow', { limit: 10, per: 1, upstreams: ['api'] });
  const id = await bring('k', 20);
  const steady = async () => isAbout(t, await left(id), 1.1, 'narrow');
  await steady();
  await putQueue('default', { paused: true });
  t.equal(await left(id), null, 'its queue is paused');
  await putQueue('default', {});
  await putUpstream('api', { paused: true });
  t.equal(await left(id), null, 'its upstream is paused');
  await putUpstream('api', {});
  await putLimit('narrow', { limit: 0, per: 1, upstreams: ['api'] });
  t.equal(await left(id), null, 'a limit of 0 pauses');
  await putLimit('narrow', { limit: 10, per: 1, upstreams: ['api'] });
  await steady();
  for (const lever of ['pause', 'resume']) {
    await app.app.inject({ method: 'POST', url: `/admin/rate-windows/narrow/${lever}`, payload: {} });
    if (lever === 'pause') t.equal(await left(id), null, 'its window is paused');
    else await steady();
  }
  await database.query(`update sluice.workers set lease_expires_at = clock_timestamp() - interval '1 second'`);
  t.equal(await left(id), null, 'no worker lives');
  await database.query(`update sluice.workers set lease_expires_at = clock_timestamp() + interval '1 hour'`);
  await steady();
  await database.query(
    `with gone as (delete from sluice.ready_jobs where seq = (select min(seq) from sluice.ready_jobs) returning *)
     insert into sluice.parked_jobs (job_id, lane_id, rank, seq, state, reason, cost)
     select job_id, lane_id, rank, seq, 'held', 'outcome_unknown', cost from gone`,
  );
  t.equal(await left(id), null, 'a person has to decide on one of its jobs');
  await app.app.inject({ method: 'POST', url: `/v1/batches/${id}/cancel` });
  t.match(await read(id), { status: 'cancelled', eta: null });
});

t.test('of a large batch a part is looked at, drawn so that every lane is met', async (t) => {
  const { post, left, putLimit, database } = await useEstimated(t);
  await putLimit('each', { limit: 10, per: 1, by_partition: true, upstreams: ['api'] });
  const items = Array.from({ length: 10_000 }, (_, i) => ({
    idempotency_key: `k-${i}`,
    partition_key: i % 2 === 0 ? 'even' : `odd-${i % 20}`,
  }));
  const { batch_id } = (await post({ defaults, items })).body;
  const [sample] = await database.query<{ n: number }>('select cardinality(sluice.sample_jobs($1, 5000)) as n', [
    batch_id,
  ]);
  t.equal(sample!.n, 5_000);
  isAbout(t, await left(batch_id), 534, 'each');
});

t.test('it comes true, for a batch and for the one behind it', async (t) => {
  const { bring, read, putUpstream, putLimit, database, connectionString } = await useEstimated(t);
  const upstream = await useUpstream(t);
  await putUpstream('api', { base_url: upstream.url, allow_private_addresses: true });
  // Long enough a period that what a busy machine takes between two of them does not count for much.
  await putLimit('narrow', { limit: 20, per: 2, upstreams: ['api'] });
  await database.query('delete from sluice.workers');
  const worker = await startWorker(t, { connectionString, concurrency: 32 });
  const first = await bring('a', 60);
  const second = await bring('b', 40);
  // Nobody listens to notifications for it.
  worker.wake();
  // An estimate reads its facts one after the other: meanwhile jobs that it saw waiting may have used the window that it sees.
  await waitFor(
    async () => upstream.log.requests.length,
    (calls) => calls === 20,
    10_000,
  );
  const told = [await read(first), await read(second)];
  for (const [at, id] of [first, second].entries()) {
    const { eta, created_at } = told[at]!;
    t.equal(eta?.limited_by, 'narrow');
    const { completed_at } = await waitFor(
      () => read(id),
      ({ status }) => status === 'completed',
      30_000,
    );
    const took = Date.parse(completed_at!) - Date.parse(created_at);
    const expected = Date.parse(eta!.at) - Date.parse(created_at);
    t.ok(Math.abs(took - expected) <= 0.2 * took, `expected ${expected} ms, took ${took} ms`);
    t.equal((await read(id)).eta, null, 'done: there is nothing to expect');
  }
});
