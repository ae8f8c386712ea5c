/** Claims whose answer never came: what they lease, then or later, goes back untouched and runs. */
import t from 'tap';
import { openDatabase } from '../../src/postgres/database.ts';
import { inTransaction } from '../../src/postgres/transaction.ts';
import { createLogger } from '../../src/system/logger.ts';
import { useClaims } from '../support/claims.ts';
import { eventually } from '../support/eventually.ts';
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
