/** Jobs that were claimed ahead of their slot when the worker died: known not to have been called, until they are let go. */
import t from 'tap';
import { DefinitionStore } from '../../src/application/definitions.ts';
import { claimJobs } from '../../src/postgres/claim-jobs.ts';
import { letGoAhead, sweepClaimsAhead, sweepWorkers } from '../../src/postgres/leases.ts';
import { systemClock } from '../../src/system/clock.ts';
import { createLogger } from '../../src/system/logger.ts';
import { runMaintenanceOnce } from '../../src/worker/maintenance.ts';
import { type Claims, useClaims } from '../support/claims.ts';

async function takeBack({ database, workerId }: Claims) {
  await database.query(
    `update sluice.workers set lease_expires_at = clock_timestamp() - interval '1 minute' where id = $1`,
    [workerId],
  );
  const definitions = new DefinitionStore(database);
  return runMaintenanceOnce({
    database,
    clock: systemClock,
    logger: createLogger('silent'),
    currentDefinitions: () => definitions.current(),
  });
}

async function claimAhead(store: Claims) {
  await store.putUpstream('api');
  await store.putLimit('quota', { limit: 100, per: 600, upstreams: ['api'] });
  await store.addJobs({ count: 5 });
  const claim = await claimJobs(store.database, store.workerId, 2, { ahead: 3 });
  t.equal(claim.jobs.length, 5);
  return claim;
}

const used = ({ database }: Claims) => database.query('select used::int from sluice.rate_windows');
const attempts = ({ database }: Claims) =>
  database.query('select outcome, count(*)::int as count from sluice.attempts group by outcome');

t.test('those that had no slot go back as if they had not been claimed', async (t) => {
  const store = await useClaims(t);
  const claim = await claimAhead(store);
  t.equal((await takeBack(store)).reaped, 5);
  t.same(await attempts(store), [{ outcome: 'unknown', count: 2 }]);
  t.same(
    await store.database.query(
      'select calls, attempts_used, count(*)::int as count from sluice.ready_jobs group by 1, 2 order by 1',
    ),
    [
      { calls: 0, attempts_used: 0, count: 3 },
      { calls: 1, attempts_used: 1, count: 2 },
    ],
  );
  t.same(await used(store), [{ used: 2 }], 'their permits were not used');
  t.ok(claim.aheadId);
  await sweepWorkers(store.database, 10);
  t.equal(await sweepClaimsAhead(store.database, 10), 1);
});

t.test('once let go they may have been called', async (t) => {
  const store = await useClaims(t);
  const { aheadId } = await claimAhead(store);
  t.equal(await letGoAhead(store.database, store.workerId, aheadId!), true);
  t.equal(await letGoAhead(store.database, store.workerId, aheadId!), false, 'only once');
  await takeBack(store);
  t.same(await attempts(store), [{ outcome: 'unknown', count: 5 }]);
});

t.test('a claim without jobs ahead leaves no mark', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.addJobs({ count: 2 });
  const claim = await claimJobs(store.database, store.workerId, 2, { ahead: 3 });
  t.equal(claim.aheadId, null);
  t.same(await store.database.query('select 1 from sluice.claims_ahead'), []);
});
