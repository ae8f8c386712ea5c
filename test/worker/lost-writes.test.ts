/**
 * What a worker does when PostgreSQL refuses or loses what it writes, at each of its transitions. The work of a call is never
 * done again because its completion could not be written (OCA/queue#343, hangfire-postgres/Hangfire.PostgreSql#73 and #139).
 */
import t, { type Test } from 'tap';
import { type Claims, useClaims } from '../support/claims.ts';
import { eventually } from '../support/eventually.ts';
import { faultPointsOf } from '../support/fault-points.ts';
import { type Upstream, useUpstream } from '../support/upstream.ts';
import { startWorker } from '../support/worker.ts';

interface Done {
  readonly state: string;
  readonly calls: number;
  readonly attempts_used: number;
  readonly throttles: number;
}

async function setup(t: Test): Promise<{ store: Claims; upstream: Upstream }> {
  const upstream = await useUpstream(t);
  const store = await useClaims(t);
  await store.putUpstream('api', {
    base_url: upstream.url,
    allow_private_addresses: true,
    retry: { base_ms: 20, cap_ms: 50 },
  });
  return { store, upstream };
}

/** What became of so many jobs, once all have ended. */
function ended({ database }: Claims, count: number): Promise<Done[]> {
  return eventually('all have ended', async () => {
    const rows = await database.query<Done>('select state, calls, attempts_used, throttles from sluice.done_jobs');
    return rows.length === count && rows;
  });
}

const doneOnce: Done = { state: 'succeeded', calls: 1, attempts_used: 1, throttles: 0 };

// The points that fail, and how often the one before the settle must be passed at least.
for (const [plan, what] of [
  ['settle.before=40001,57P01', 'a completion that fails with 40001, then 57P01'],
  ['settle.before=40001*3,40P01*3,57P01*3,08006*3', 'a completion that fails a dozen times'],
  ['settle.after=57P01', 'a completion that is written while its answer is lost'],
  ['settle.before=23514*4', 'a completion that the store refuses'],
] as const) {
  t.test(`${what} is tried again, alone: one call, one attempt, succeeded`, async (t) => {
    const { store, upstream } = await setup(t);
    const faultPoints = faultPointsOf(plan);
    await store.addJobs({ count: 1 });
    await startWorker(t, { connectionString: store.connectionString, faultPoints });
    t.same(await ended(store, 1), [doneOnce]);
    t.equal(upstream.log.requests.length, 1, 'the upstream was called once');
    const failures = plan
      .split('=')[1]!
      .split(',')
      .reduce((sum, each) => sum + Number(each.split('*')[1] ?? 1), 0);
    const tries = faultPoints.passed('settle.before');
    t.ok(tries >= failures + (plan.startsWith('settle.after') ? 0 : 1), `${tries} tries`);
    const [job] = await store.database.query('select epoch from sluice.done_jobs');
    t.same(job, { epoch: 1 }, 'under the same lease');
  });
}

t.test('a completion that fails for longer than the lease keeps its job, since the lease is renewed', async (t) => {
  const { store, upstream } = await setup(t);
  await store.addJobs({ count: 1 });
  // 100 ms apart: 4.5 s, of a lease of 3 s.
  const faultPoints = faultPointsOf('settle.before=57P01*45');
  const { workerId } = await startWorker(t, { connectionString: store.connectionString, leaseSeconds: 3, faultPoints });
  await eventually('the call is over', () => faultPoints.passed('settle.before') > 0);
  await startWorker(t, { connectionString: store.connectionString });
  t.same(await ended(store, 1), [doneOnce]);
  t.equal(upstream.log.requests.length, 1);
  t.ok(faultPoints.passed('renew.before') > 1, 'it was renewed meanwhile');
  t.same(await store.database.query('select worker_id, outcome from sluice.attempts'), [
    { worker_id: workerId, outcome: 'success' },
  ]);
});

t.test('a throttle whose answer from the store is lost counts once', async (t) => {
  const { store, upstream } = await setup(t);
  upstream.script({ times: 1, answer: { status: 429, headers: [['Retry-After', '1']] } });
  await store.addJobs({ count: 1 });
  await startWorker(t, {
    connectionString: store.connectionString,
    faultPoints: faultPointsOf('cooldown.after=57P01'),
  });
  t.same(await ended(store, 1), [{ ...doneOnce, calls: 2, throttles: 1 }]);
  t.equal(upstream.log.requests.length, 2);
});

t.test('a claim whose answer is lost: its jobs go back untouched and run', async (t) => {
  const { store, upstream } = await setup(t);
  await store.addJobs({ count: 3 });
  const faultPoints = faultPointsOf('claim.after=57P01,08006');
  await startWorker(t, { connectionString: store.connectionString, faultPoints });
  t.same(await ended(store, 3), [doneOnce, doneOnce, doneOnce]);
  t.equal(upstream.log.requests.length, 3);
});

t.test('renewals that fail, or whose answers are lost, cost no job its lease while there is time', async (t) => {
  const { store, upstream } = await setup(t);
  upstream.script({ times: 1, answer: { gate: 'slow' } });
  await store.addJobs({ count: 1 });
  const faultPoints = faultPointsOf('renew.before=57P01,40001;renew.after=57P01');
  await startWorker(t, { connectionString: store.connectionString, leaseSeconds: 6, faultPoints });
  await eventually('renewed after three failures', () => faultPoints.passed('renew.after') >= 2);
  upstream.release('slow');
  t.same(await ended(store, 1), [doneOnce]);
});

t.test("a dead worker's jobs are taken back once, also where the store fails or its answer is lost", async (t) => {
  const { store, upstream } = await setup(t);
  await store.addJobs({ count: 4 });
  await store.claimAll(4);
  await store.database.query(`update sluice.workers set lease_expires_at = clock_timestamp() - interval '1 second'`);
  const faultPoints = faultPointsOf('reaper.before_settle=40001,57P01;reaper.after_settle=57P01');
  await startWorker(t, { connectionString: store.connectionString, faultPoints });
  const jobs = await ended(store, 4);
  t.ok(jobs.every(({ state, calls }) => state === 'succeeded' && calls === 2));
  t.equal(upstream.log.requests.length, 4, 'none of them had been sent before');
  t.ok(faultPoints.passed('reaper.before_settle') >= 3);
});

// The same as PostgreSQL itself does it: an error raised in the statement, then the end of the session in its midst.
t.test('a completion that PostgreSQL refuses with 40001, and then ends the session of, is tried again', async (t) => {
  const { store, upstream } = await setup(t);
  await store.database.query(`
    create sequence public.completions;
    create function public.refuse() returns trigger language plpgsql as $$
    declare n bigint := nextval('public.completions');
    begin
      if n = 1 then raise exception 'no' using errcode = '40001'; end if;
      if n = 2 then perform pg_terminate_backend(pg_backend_pid()), pg_sleep(1); end if;
      return new;
    end $$;
    create trigger refuse before insert on sluice.done_jobs for each row execute function public.refuse()`);
  await store.addJobs({ count: 1 });
  await startWorker(t, { connectionString: store.connectionString });
  t.same(await ended(store, 1), [doneOnce]);
  t.equal(upstream.log.requests.length, 1);
  t.same(await store.database.query(`select last_value::int as tries from public.completions`), [{ tries: 3 }]);
});
