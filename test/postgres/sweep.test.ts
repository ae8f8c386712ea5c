/** Sweeping takes what is idle and empty, and nothing else. */
import t from 'tap';
import { deleteDefinition } from '../../src/application/manage-definitions.ts';
import { claimJobs } from '../../src/postgres/claim-jobs.ts';
import { openDatabase } from '../../src/postgres/database.ts';
import { settleJobs } from '../../src/postgres/settle-jobs.ts';
import { newSweepCursor, sweepCooldowns, sweepLanes, sweepWindows } from '../../src/postgres/sweep.ts';
import { createLogger } from '../../src/system/logger.ts';
import { newWorker, settleRow, throttledFor, useClaims } from '../support/claims.ts';
import { definitionDependencies } from '../support/definitions.ts';
import { eventually } from '../support/eventually.ts';
import { useIntake } from '../support/intake.ts';

t.test('idle lanes and empty windows of partition keys go; what has jobs, counts or is paused stays', async (t) => {
  const store = await useClaims(t, { max: 1 });
  const { database } = store;
  await store.putUpstream('api');
  await store.putLimit('account', { limit: 5, per: 1, by_partition: true, upstreams: ['api'] });
  for (const partitionKey of ['idle', 'running', 'parked', 'busy']) await store.addJobs({ count: 1, partitionKey });
  const jobs = await store.claimAll(4);
  const of = (key: string) => jobs.filter((job) => job.partitionKey === key);
  await store.settle(of('idle'));
  await store.settle(of('parked'), {
    next: { kind: 'held', reason: 'outcome_unknown' },
    outcome: 'unknown',
    outcomeUnknown: true,
  });
  await store.settle(of('busy'));
  await store.claim(1);
  await store.addJobs({ count: 1, partitionKey: 'busy' });

  const lanes = async () =>
    (await database.query<{ partition_key: string }>('select partition_key from sluice.lanes order by 1')).map(
      (lane) => lane.partition_key,
    );
  t.equal(await sweepLanes(database, newSweepCursor(), { idleSeconds: 60, most: 100 }), 0, 'not idle for long enough');
  t.equal(await sweepLanes(database, newSweepCursor(), { idleSeconds: 0, most: 100 }), 1);
  t.same(await lanes(), ['busy', 'parked', 'running']);

  t.equal(await sweepWindows(database, newSweepCursor(), { most: 100 }), 0, 'they still count');
  await store.setClock((await store.clockUs()) + 5_000_000);
  await database.query(`update sluice.rate_windows set paused = true where partition_key = 'parked'`);
  t.equal(
    (await sweepWindows(database, newSweepCursor(), { most: 2 })) +
      (await sweepWindows(database, newSweepCursor(), { most: 100 })),
    3,
  );
  t.same(await database.query('select partition_key from sluice.rate_windows'), [{ partition_key: 'parked' }]);
});

t.test('a walk goes on where it stopped and comes round again', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  for (let i = 0; i < 10; i += 1) await store.addJobs({ count: 1, partitionKey: `p${i}` });
  await store.settle(await store.claimAll(10));
  await store.claim(1);
  const cursor = newSweepCursor();
  const swept: number[] = [];
  for (let i = 0; i < 4; i += 1) swept.push(await sweepLanes(store.database, cursor, { idleSeconds: 0, most: 4 }));
  t.equal(
    swept.reduce((sum, n) => sum + n, 0),
    10,
  );
  t.equal(cursor.laneId, 0);
});

t.test('a deleted limit goes once its windows are empty, an old cooldown once nobody asks for it', async (t) => {
  const store = await useClaims(t, { max: 1 });
  const { database } = store;
  await store.putUpstream('api');
  await store.putLimit('all', { limit: 5, per: 1, upstreams: ['api'] });
  await store.addJobs({ count: 2 });
  await store.settle((await store.claim(1)).jobs, throttledFor(1));
  await deleteDefinition(definitionDependencies(database), 'rate_limits', 'all');
  const limits = async () => (await database.query('select name from sluice.rate_limits')).length;
  await sweepWindows(database, newSweepCursor(), { most: 100 });
  t.equal(await limits(), 1, 'it still counts');
  await store.setClock((await store.clockUs()) + 5_000_000);
  await sweepWindows(database, newSweepCursor(), { most: 100 });
  t.equal(await limits(), 0);
  t.equal(await sweepCooldowns(database, { idleSeconds: 3600, most: 10 }), 0);
  await database.query(`update sluice.cooldowns set until = clock_timestamp() - interval '2 hours'`);
  t.equal(await sweepCooldowns(database, { idleSeconds: 3600, most: 10 }), 1);
});

t.test('a lane that gets a job for later while a sweep looks at it stays', async (t) => {
  const { database, connectionString, ...intake } = await useIntake(t);
  await intake.putUpstream('api');
  await intake.submit([{ idempotency_key: 'first' }]);
  const worker = await newWorker(database);
  const { jobs } = await claimJobs(database, worker, 1);
  await settleJobs(
    database,
    worker,
    jobs.map((job) => settleRow(job)),
  );
  await claimJobs(database, worker, 1);
  await database.query(`update sluice.lanes set emptied_at = clock_timestamp() - interval '1 hour'`);

  // A clock that stops the sweep's statement after it has begun, until a lock is free.
  await database.query(`create schema stopping`);
  await database.query(`create function stopping.clock_timestamp() returns timestamptz language plpgsql as
    'begin perform pg_advisory_xact_lock_shared(77); return pg_catalog.clock_timestamp(); end'`);
  const sweeper = openDatabase({ connectionString, max: 1, logger: createLogger('silent') });
  t.teardown(() => sweeper.close());
  await sweeper.query(`select set_config('search_path', 'stopping, pg_catalog', false)`);
  const holder = openDatabase({ connectionString, max: 1, logger: createLogger('silent') });
  t.teardown(() => holder.close());
  await holder.query('select pg_advisory_lock(77)');
  const sweep = sweepLanes(sweeper, newSweepCursor(), { idleSeconds: 60, most: 100 });
  await eventually('the sweep has begun', async () => {
    const [waiting] = await database.query(`select 1 from pg_locks where locktype = 'advisory' and not granted`);
    return waiting !== undefined;
  });
  await intake.submit([{ idempotency_key: 'later', run_at: '2999-01-01T00:00:00Z' }]);
  await holder.query('select pg_advisory_unlock(77)');
  t.equal(await sweep, 0);
  t.equal(await intake.count('lanes'), 1, 'a job without its lane would never be found');
});
