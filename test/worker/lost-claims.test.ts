/** Claims whose answer never came: what they lease, then or later, goes back untouched and runs. */
import t from 'tap';
import { openDatabase } from '../../src/postgres/database.ts';
import { inTransaction } from '../../src/postgres/transaction.ts';
import { systemClock } from '../../src/system/clock.ts';
import { createLogger } from '../../src/system/logger.ts';
import { ClaimLoop } from '../../src/worker/claim-loop.ts';
import { useClaims } from '../support/claims.ts';
import { eventually } from '../support/eventually.ts';
import { faultPointsOf } from '../support/fault-points.ts';
import { useUpstream } from '../support/upstream.ts';
import { startWorker } from '../support/worker.ts';

t.test('a claim that was given up, and is made by the server after that, leaves no job behind', async (t) => {
  const upstream = await useUpstream(t);
  const store = await useClaims(t);
  await store.putUpstream('api', { base_url: upstream.url, allow_private_addresses: true });
  const worker = await startWorker(t, { connectionString: store.connectionString, concurrency: 4 });
  const other = openDatabase({ connectionString: store.connectionString, max: 1, logger: createLogger('silent') });
  t.teardown(() => other.close());

  const claimsThatWait = async () => {
    const [row] = await store.database.query<{ count: number }>(
      `select count(*)::int as count from pg_locks l join pg_stat_activity a on a.pid = l.pid
        where l.locktype = 'advisory' and not l.granted and a.query like '%claim_jobs%' and a.datname = current_database()`,
    );
    return row!.count;
  };
  await store.addJobs({ count: 20 });
  // As a change of definitions does; no claim gets past it.
  await inTransaction(other, async (client) => {
    await client.query('select pg_advisory_xact_lock(7305001)');
    await eventually('a claim to be given up, and another one to be sent', async () => {
      worker.wake();
      return (await claimsThatWait()) >= 2;
    });
  });

  await eventually('all jobs to be done', async () => {
    const [row] = await store.database.query<{ count: number }>('select count(*)::int as count from sluice.done_jobs');
    return row!.count === 20;
  });
  t.equal(upstream.log.requests.length, 20, 'one call each');
  t.same(
    await store.database.query('select distinct state, calls, attempts_used from sluice.done_jobs'),
    [{ state: 'succeeded', calls: 1, attempts_used: 1 }],
    'what went back was not charged',
  );
  const epochs = await store.database.query<{ most: number }>('select max(epoch) as most from sluice.done_jobs');
  t.ok(epochs[0]!.most >= 2, 'the lost claim was made, and taken back');
});

t.test('with all slots taken for longer than a lost claim may take, what it leased is still looked for', async (t) => {
  const store = await useClaims(t);
  const logger = createLogger('silent');
  const faultPoints = faultPointsOf('claim.after=57P01');
  const database = openDatabase({ connectionString: store.connectionString, max: 1, logger, faultPoints });
  t.teardown(() => database.close());
  let passedMs = 0;
  const clock = { ...systemClock, monotonicMs: () => systemClock.monotonicMs() + passedMs };
  let slots = 1;
  let looks = 0;
  const claims: number[] = [];
  const loop = new ClaimLoop({
    database,
    clock,
    logger,
    workerId: store.workerId,
    demand: () => ({ slots: slots, ahead: 0 }),
    async onClaim({ jobs }) {
      claims.push(jobs.length);
      slots = 0;
    },
    onLeaseLost: () => t.fail('the lease holds'),
    async reconcile() {
      looks += 1;
    },
  });
  await store.putUpstream('api');
  await store.addJobs({ count: 4 });
  loop.start();
  t.teardown(() => loop.stop());
  const claimAgain = async (times: number) => {
    slots = 1;
    loop.wake();
    await eventually(`${times} claims were heard of`, () => claims.length === times);
  };

  await eventually('one claim is lost, and the next has taken all slots', () => claims.length === 1);
  t.equal(looks, 1, 'it looked before that, and perhaps too early');
  passedMs = 3_600_000;
  await claimAgain(2);
  t.equal(looks, 2, 'it looks before it claims again, after whatever time');
  passedMs *= 2;
  await claimAgain(3);
  t.equal(looks, 2, 'that was the last look');
});
