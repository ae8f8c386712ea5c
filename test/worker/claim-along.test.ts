/** A claim that goes along with the transaction that brings work in: when it does, and what becomes of it when that comes to nothing. */
import t, { type Test } from 'tap';
import { openDatabase } from '../../src/postgres/database.ts';
import { createLogger } from '../../src/system/logger.ts';
import { createTestApp } from '../support/app.ts';
import { useClaims, waitsForALock } from '../support/claims.ts';
import { eventually } from '../support/eventually.ts';
import { useUpstream } from '../support/upstream.ts';
import { startWorker } from '../support/worker.ts';

/** A service in this process, as composed: an API, and a worker that it asks for claims. */
async function setup(t: Test, { concurrency = 4 }: { concurrency?: number } = {}) {
  const upstream = await useUpstream(t);
  const store = await useClaims(t);
  await store.putUpstream('api', { base_url: upstream.url, allow_private_addresses: true });
  const worker = await startWorker(t, { connectionString: store.connectionString, concurrency });
  const asked = { along: 0, alone: 0 };
  const { app } = await createTestApp(t, store.database, {
    workCame: () => worker.wake(),
    claimAlong(jobs) {
      const rider = worker.claimAlong(jobs);
      asked[rider === null ? 'alone' : 'along'] += 1;
      return rider;
    },
  });
  const post = async (keys: readonly string[], headers: Record<string, string> = {}) => {
    const items = keys.map((key) => ({ idempotency_key: key, upstream: 'api', path: '/charges' }));
    return (await app.inject({ method: 'POST', url: '/v1/batches', headers, payload: { items } })).statusCode;
  };
  const doneKeys = async () =>
    (
      await store.database.query<{ key: string }>(
        'select j.idempotency_key as key from sluice.done_jobs d join sluice.jobs j on j.id = d.job_id order by j.seq',
      )
    ).map(({ key }) => key);
  let warmed = 0;
  /** Until the worker has nothing to do and knows it. */
  const beQuiet = async () => {
    const before = asked.along;
    await eventually('a claim to go along', async () => {
      const key = `warm-${++warmed}`;
      t.equal(await post([key]), 202);
      await eventually('it to be done', async () => (await doneKeys()).includes(key));
      return asked.along > before;
    });
  };
  return { upstream, store, worker, asked, post, doneKeys, beQuiet };
}

/** Another session that holds a request key, and with it whoever comes under the same one. */
async function holdRequestKey(t: Test, connectionString: string, key: string) {
  const database = openDatabase({ connectionString, max: 1, logger: createLogger('silent') });
  t.teardown(() => database.close());
  await database.query('begin');
  await database.query(
    `insert into sluice.batches (id, tenant, request_key, request_fingerprint, total, accepted, duplicate, conflict, rejected)
     values (gen_random_uuid(), 'default', $1, '\\x00', 0, 0, 0, 0, 0)`,
    [key],
  );
  return {
    commit: () => database.query('commit'),
    rollback: () => database.query('rollback'),
  };
}

t.test('on a quiet service a job is leased by the commit that stores it', async (t) => {
  const { upstream, store, post, beQuiet } = await setup(t);
  await beQuiet();
  upstream.script({ path: '/charges', answer: { gate: 'held' } });
  t.equal(await post(['k']), 202);
  await eventually('the call to be under way', () => upstream.log.forKey('k').length === 1);
  t.same(
    await store.database.query(
      `select r.xmin = j.xmin as same_commit from sluice.running_jobs r join sluice.jobs j on j.id = r.job_id`,
    ),
    [{ same_commit: true }],
  );
  upstream.release('held');
});

t.test(
  'more jobs than there are slots do not wait for a claim, and neither does one behind a closed window',
  async (t) => {
    const { store, asked, post, doneKeys, beQuiet } = await setup(t, { concurrency: 2 });
    await beQuiet();
    let { along } = asked;
    t.equal(await post(['a', 'b', 'c']), 202);
    t.equal(asked.along, along);
    await eventually(
      'all to be done',
      async () => (await doneKeys()).filter((key) => /^[abc]$/.test(key)).length === 3,
    );
    await store.putLimit('slow', { limit: 1, per: 3_600, upstreams: ['api'] });
    t.equal(await post(['d', 'e']), 202);
    await eventually('one to be done', async () => (await doneKeys()).includes('d'));
    ({ along } = asked);
    const { alone } = asked;
    t.equal(await post(['f']), 202);
    t.same(asked, { along, alone: alone + 1 });
  },
);

t.test('a claim that cannot be made does not keep out the work that it went along with', async (t) => {
  const { upstream, store, asked, post, doneKeys, beQuiet } = await setup(t);
  await beQuiet();
  const { along } = asked;
  await store.database.query('alter function sluice.claim_jobs rename to claim_jobs_away');
  t.equal(await post(['k']), 202);
  t.equal(asked.along, along + 1, 'a claim went along');
  t.ok(asked.alone >= 1, 'the second run went alone');
  await store.database.query('alter function sluice.claim_jobs_away rename to claim_jobs');
  await eventually('it to be done', async () => (await doneKeys()).includes('k'));
  t.equal(upstream.log.forKey('k').length, 1);
  t.equal(upstream.log.doubles().length, 0);
});

t.test('a batch that comes to nothing takes its claim with it, and the worker goes on', async (t) => {
  const { store, asked, post, doneKeys, beQuiet } = await setup(t);
  await beQuiet();
  const { along } = asked;
  const holder = await holdRequestKey(t, store.connectionString, 'twin');
  const refused = post(['k'], { 'idempotency-key': 'twin' });
  await waitsForALock(store);
  t.equal(asked.along, along + 1, 'a claim went along');
  await holder.commit();
  t.equal(await refused, 422, 'the key stands for another request');
  t.same(await store.database.query('select 1 from sluice.running_jobs'), []);
  t.equal(await post(['next']), 202);
  await eventually('the next to be done', async () => (await doneKeys()).includes('next'));
  t.notOk((await doneKeys()).includes('k'));
});

t.test(
  'a connection that is lost with both on the way costs a 503, and neither a job nor a second effect',
  async (t) => {
    const { upstream, store, asked, post, doneKeys, beQuiet } = await setup(t);
    await beQuiet();
    const { along } = asked;
    const holder = await holdRequestKey(t, store.connectionString, 'lost');
    const lost = post(['k'], { 'idempotency-key': 'lost' });
    await waitsForALock(store);
    t.equal(asked.along, along + 1, 'a claim went along');
    await store.database.query(
      `select pg_terminate_backend(pid) from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock' and pid <> pg_backend_pid()`,
    );
    t.equal(await lost, 503);
    await holder.rollback();
    t.equal(await post(['k'], { 'idempotency-key': 'lost' }), 202);
    await eventually('it to be done', async () => (await doneKeys()).includes('k'));
    t.equal(upstream.log.forKey('k').length, 1);
  },
);

t.test('a worker that is told to end meanwhile hands back what the claim brings', async (t) => {
  const { upstream, store, worker, asked, post, beQuiet } = await setup(t);
  await beQuiet();
  const { along } = asked;
  const holder = await holdRequestKey(t, store.connectionString, 'late');
  const posted = post(['k'], { 'idempotency-key': 'late' });
  await waitsForALock(store);
  t.equal(asked.along, along + 1, 'a claim went along');
  const drained = worker.drain(10_000);
  await holder.rollback();
  t.equal(await posted, 202);
  await drained;
  t.same(
    await store.database.query(
      `select j.idempotency_key as key, r.calls from sluice.ready_jobs r join sluice.jobs j on j.id = r.job_id`,
    ),
    [{ key: 'k', calls: 0 }],
  );
  t.equal(upstream.log.forKey('k').length, 0);
});
