/**
 * Intake that is stopped in the middle, and asked again: what was committed is `duplicate`, what was not is `accepted`, and
 * never is there half a batch, a key without its job, or a 500 (VilledeMontreal/express-idempotency#32: a crash between the
 * claim of a key and the answer left it "in progress" for days). With the tables that workers use free, and locked by
 * somebody: then intake waits, or says 503.
 */
import pg from 'pg';
import t, { type Test } from 'tap';
import { openDatabase } from '../../src/postgres/database.ts';
import type { FaultPoint } from '../../src/system/fault-points.ts';
import { createLogger } from '../../src/system/logger.ts';
import { createTestApp } from '../support/app.ts';
import { type BatchAnswer, numberedItems, type TestClient } from '../support/client.ts';
import { eventually } from '../support/eventually.ts';
import { defaults, type Intake, useIntake } from '../support/intake.ts';
import { crash, type Service, startService } from '../support/service.ts';

t.setTimeout(180_000);

const oldCount = 20;
const newCount = 30;

/** The first of the items are there already; all of it is what is sent when the process dies. */
async function setup(intake: Intake, prefix: string) {
  const items = numberedItems(prefix, oldCount + newCount);
  await intake.submit(items.slice(0, oldCount));
  return { items, before: await rowsOf(intake, prefix) };
}

/** Rows under keys of this prefix. */
async function rowsOf({ database }: Intake, prefix: string) {
  const [row] = await database.query<Record<'keys' | 'jobs' | 'ready' | 'items' | 'batches', number>>(
    `with job as (select id from sluice.jobs where idempotency_key like $1)
     select (select count(*)::int from sluice.idempotency_keys where key like $1) as keys,
            (select count(*)::int from job) as jobs,
            (select count(*)::int from sluice.ready_jobs r join job on job.id = r.job_id) as ready,
            (select count(*)::int from sluice.batch_items where idempotency_key like $1) as items,
            (select count(distinct batch_id)::int from sluice.batch_items where idempotency_key like $1) as batches`,
    [`${prefix}-%`],
  );
  return row!;
}

function startApi(t: Test, { connectionString }: Intake, plan?: string): Promise<Service> {
  const faults = plan === undefined ? {} : { SLUICE_FAULT_POINTS: plan };
  return startService(t, {
    databaseUrl: connectionString,
    env: { NODE_ENV: 'test', SLUICE_ROLES: 'api', ...faults },
  });
}

type Answered =
  | { readonly status: number; readonly body: BatchAnswer; readonly retryAfter: string | null }
  | 'no answer';

/** A POST that tells what came back, if anything did. */
async function post(client: TestClient, items: readonly object[], requestKey?: string): Promise<Answered> {
  const headers: Record<string, string> = requestKey === undefined ? {} : { 'idempotency-key': requestKey };
  try {
    const answer = await client.send<BatchAnswer>('POST', '/v1/batches', { body: { defaults, items }, headers });
    return { status: answer.status, body: answer.body, retryAfter: answer.headers.get('retry-after') };
  } catch {
    return 'no answer';
  }
}

/** Holds the table against everybody until it is released. */
async function lockTable(t: Test, { connectionString }: Intake, table: string): Promise<() => Promise<void>> {
  const client = new pg.Client({ connectionString, application_name: 'locker' });
  await client.connect();
  t.teardown(() => client.end());
  await client.query(`begin; lock table sluice.${table} in access exclusive mode`);
  return async () => {
    await client.query('commit');
  };
}

/** Until so many sessions of services wait for a lock. */
function waitForWaiters({ database }: Intake, count: number): Promise<boolean> {
  return eventually(`${count} sessions wait for the table`, async () => {
    const rows = await database.query(
      `select 1 from pg_stat_activity
        where datname = current_database() and application_name = 'sluice' and wait_event_type = 'Lock'`,
    );
    return rows.length === count;
  });
}

const points = ['intake.before_commit', 'intake.after_commit'] as const satisfies readonly FaultPoint[];
const committed = (point: FaultPoint) => point === 'intake.after_commit';

t.test('stopped with the tables free', async (t) => {
  const intake = await useIntake(t);
  const other = await startApi(t, intake);
  for (const point of points) {
    for (const requestKey of [undefined, `request ${point}`]) {
      const name = `${point}${requestKey === undefined ? '' : ', with a key of the request'}`;
      await t.test(name, async (t) => {
        const prefix = `free-${point}-${requestKey === undefined ? 'bare' : 'keyed'}`;
        const { items, before } = await setup(intake, prefix);
        const victim = await startApi(t, intake, `${point}=kill`);
        t.equal(await post(victim.client, items, requestKey), 'no answer');
        t.same(await victim.exited, { code: null, signal: 'SIGKILL' });
        t.same(
          await rowsOf(intake, prefix),
          committed(point) ? { keys: 50, jobs: 50, ready: 50, items: 70, batches: 2 } : before,
          'all of it is there, or none',
        );

        const again = await post(other.client, items, requestKey);
        if (again === 'no answer') throw new Error('the other replica gave no answer');
        t.equal(again.status, 202);
        const replayed = committed(point) && requestKey !== undefined;
        t.equal(again.body.replayed, replayed);
        const accepted = committed(point) && !replayed ? 0 : newCount;
        t.match(again.body.counts, { total: 50, accepted, duplicate: 50 - accepted, conflict: 0, rejected: 0 });
        t.same(
          again.body.items.map(({ verdict }) => verdict),
          items.map((_, index) => (index < oldCount || accepted === 0 ? 'duplicate' : 'accepted')),
          'what was there is a duplicate, what never was is accepted',
        );
        t.match(await rowsOf(intake, prefix), { keys: 50, jobs: 50, ready: 50 }, 'one job for each key');
      });
    }
  }
});

for (const table of ['ready_jobs', 'running_jobs']) {
  t.test(`stopped while somebody holds ${table}`, async (t) => {
    const intake = await useIntake(t);
    const other = await startApi(t, intake);

    for (const point of points) {
      await t.test(`${point}, as soon as it goes on; another replica waits with the same batch`, async (t) => {
        const prefix = `${table}-${point}`;
        const { items } = await setup(intake, prefix);
        const victim = await startApi(t, intake, `${point}=kill`);
        const release = await lockTable(t, intake, table);
        const first = post(victim.client, items);
        await waitForWaiters(intake, 1);
        const second = post(other.client, items);
        await waitForWaiters(intake, 2);
        await release();
        t.equal(await first, 'no answer');
        t.same(await victim.exited, { code: null, signal: 'SIGKILL' });
        const again = await second;
        if (again === 'no answer') throw new Error('the other replica gave no answer');
        t.equal(again.status, 202, 'it waited');
        const accepted = committed(point) ? 0 : newCount;
        t.match(again.body.counts, { total: 50, accepted, duplicate: 50 - accepted });
        t.match(await rowsOf(intake, prefix), { keys: 50, jobs: 50, ready: 50 });
      });
    }

    await t.test('while it waits; the same batch again, while the table is still held', async (t) => {
      const prefix = `${table}-waiting`;
      const { items } = await setup(intake, prefix);
      const victim = await startApi(t, intake);
      const release = await lockTable(t, intake, table);
      const first = post(victim.client, items);
      await waitForWaiters(intake, 1);
      await crash(victim);
      t.equal(await first, 'no answer');
      const second = post(other.client, items);
      // The dead one's session waits too: a server looks for its client only when it has something to say.
      await waitForWaiters(intake, 2);
      await release();
      const again = await second;
      if (again === 'no answer') throw new Error('the other replica gave no answer');
      t.equal(again.status, 202);
      t.match(
        again.body.counts,
        { total: 50, accepted: newCount, duplicate: oldCount },
        'what it wrote was never committed',
      );
      t.match(await rowsOf(intake, prefix), { keys: 50, jobs: 50, ready: 50, batches: 2 });
    });

    await t.test('a wait that is too long is a 503 that says when to come again, and leaves nothing', async (t) => {
      const prefix = `${table}-503`;
      const { items, before } = await setup(intake, prefix);
      const impatient = openDatabase({
        connectionString: intake.connectionString,
        max: 2,
        logger: createLogger('silent'),
        limits: { statementMs: 300, queryMs: 5_000 },
      });
      t.teardown(() => impatient.close());
      const { app } = await createTestApp(t, impatient);
      const release = await lockTable(t, intake, table);
      const answer = await app.inject({ method: 'POST', url: '/v1/batches', payload: { defaults, items } });
      t.equal(answer.statusCode, 503);
      t.match(answer.headers, { 'content-type': 'application/problem+json', 'retry-after': /^[1-9]\d*$/ });
      t.match(answer.json(), { code: 'database_unavailable' });
      await release();
      t.same(await rowsOf(intake, prefix), before);
      const again = await app.inject({ method: 'POST', url: '/v1/batches', payload: { defaults, items } });
      t.match(again.json(), { counts: { accepted: newCount, duplicate: oldCount } });
    });
  });
}

t.test('new items need nothing of what workers hold: accepted while running_jobs is locked', async (t) => {
  const intake = await useIntake(t);
  const release = await lockTable(t, intake, 'running_jobs');
  const verdicts = await intake.submit(numberedItems('fresh', 10));
  t.ok(verdicts.every(({ verdict }) => verdict === 'accepted'));
  await release();
});
