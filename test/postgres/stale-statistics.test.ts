/**
 * What a statement reads does not grow with what waits, even where the plans in use were made when the tables were empty:
 * vacuum has seen a drained store, then it fills faster than autoanalyze comes, and to the planner every table of jobs still
 * has one row. Judged by the rows that a statement reads of each table, as the server counts them. Not a timed test.
 */
import t, { type Test } from 'tap';
import type { ClaimedJob } from '../../src/domain/job.ts';
import { cancelJobs } from '../../src/postgres/cancel-jobs.ts';
import { countBatchJobs } from '../../src/postgres/count-batch-jobs.ts';
import { type JobFilter, listJobs } from '../../src/postgres/list-jobs.ts';
import { readJob } from '../../src/postgres/read-jobs.ts';
import { type Claims, throttledFor, useClaims } from '../support/claims.ts';

/** A batch from which on its jobs are counted by a merge. */
const waiting = 20_000;
const lanes = 5_000;
/** Went through the tables of jobs before. */
const drained = 5_000;
/** Jobs that a statement is asked for. */
const some = 50;
/** Of any table; a plan that has turned round reads `lanes` rows at the least. */
const most = 1_500;

const nowhere = '00000000-0000-7000-8000-000000000001';

/** What the statements are asked about. */
interface Asked {
  readonly batchId: string;
  readonly jobIds: readonly string[];
  readonly running: readonly ClaimedJob[];
}

type Statement = (store: Claims, asked: Asked) => Promise<unknown>;

const scheduled = {
  next: { kind: 'scheduled', delayMs: 3_600_000, reason: null },
  outcome: 'error',
  status: 500,
} as const;

const everything: JobFilter = {
  states: null,
  reason: null,
  queue: null,
  upstream: null,
  batchId: null,
  key: null,
  correlationId: null,
};

const list = ({ database }: Claims, filter: Partial<JobFilter>) =>
  listJobs(database, { tenant: 'default', filter: { ...everything, ...filter }, before: null, limit: some });

/** In an order in which each finds what it is to change. */
const statements: Readonly<Record<string, Statement>> = {
  'a claim': (store) => store.claim(some),
  'a settle of successes': (store, { running }) => store.settle(running.slice(0, some)),
  'a settle that comes again': (store, { running }) => store.settle(running.slice(0, some)),
  'a settle that puts back': (store, { running }) =>
    store.settle(running.slice(some, 2 * some), { next: { kind: 'ready' }, permitUnused: true }),
  'a settle that schedules': (store, { running }) => store.settle(running.slice(2 * some, 3 * some), scheduled),
  'a settle of throttles': (store, { running }) => store.settle(running.slice(3 * some, 3 * some + 3), throttledFor(1)),
  'a settle of answers after throttles': (store, { running }) => store.settle(running.slice(4 * some, 5 * some)),
  'promoting when nothing is due': ({ database }) => database.query('select sluice.promote_due_jobs(now(), 100)'),
  'promoting what is due': ({ database }) =>
    database.query("select sluice.promote_due_jobs(now() + interval '2 days', $1)", [some]),
  'expiring when nothing is late': ({ database }) => database.query('select sluice.expire_jobs(now(), 100)'),
  'expiring what is late': ({ database }) =>
    database.query("select sluice.expire_jobs(now() + interval '2 years', $1)", [some]),
  'holding behind a fuse': ({ database }, { jobIds }) =>
    database.query('select sluice.hold_behind_fuses($1, now())', [jobIds.slice(0, some)]),
  'going on from a fuse': ({ database }, { jobIds }) =>
    database.query('select sluice.resume_from_fuses($1, now())', [jobIds.slice(0, some)]),
  'a cancel': ({ database }, { jobIds }) => cancelJobs(database, jobIds.slice(some)),
  'what is left of a batch': ({ database }, { jobIds }) =>
    database.query('select * from sluice.jobs_left($1)', [jobIds]),
  'one job': ({ database }, { jobIds }) => readJob(database, 'default', jobIds[0]!),
  'a page of all jobs': (store) => list(store, {}),
  'a page of a batch': (store, { batchId }) => list(store, { batchId }),
  'a page of ready jobs': (store) => list(store, { states: ['ready'] }),
};

/** A store that vacuum saw drained, and plans made then. One session, so that the plans are those that are used later. */
async function drainedStore(t: Test): Promise<Claims> {
  const store = await useClaims(t, { max: 1, breaks: 'all' });
  const { database } = store;
  await store.putUpstream('api');
  for (const table of ['ready_jobs', 'running_jobs', 'parked_jobs', 'jobs', 'done_jobs', 'attempts', 'lanes']) {
    await database.query(`alter table sluice.${table} set (autovacuum_enabled = false)`);
  }
  await store.addJobs({ count: drained });
  await store.addJobs({ count: drained, runAt: "now() + interval '1 day'" });
  for (let jobs = (await store.claim(500)).jobs; jobs.length > 0; jobs = (await store.claim(500)).jobs) {
    await store.settle(jobs);
  }
  await database.query(
    `with swept as (
       insert into sluice.lanes (group_id, tenant, partition_key, next_at) select 0, 'default', n::text, 'infinity'
         from generate_series(1, $1::int) n)
     select 1`,
    [lanes],
  );
  await database.query('delete from sluice.lanes where group_id = 0');
  const parked = await database.query<{ id: string }>('select job_id as id from sluice.parked_jobs');
  await cancelJobs(
    database,
    parked.map(({ id }) => id),
  );
  await database.query(
    'vacuum (analyze) sluice.ready_jobs, sluice.running_jobs, sluice.parked_jobs, sluice.jobs, sluice.lanes',
  );
  // Plans of functions and of prepared statements are kept from the sixth call on.
  const nothing: Asked = { batchId: nowhere, jobIds: [nowhere], running: [] };
  for (let i = 0; i < 6; i += 1) {
    for (const statement of [...Object.values(statements), countJobs]) await statement(store, nothing);
  }
  return store;
}

const countJobs: Statement = ({ database }, { batchId }) => countBatchJobs(database, batchId);

async function fill(store: Claims): Promise<Asked> {
  const { database } = store;
  await database.query(
    `insert into sluice.lanes (group_id, tenant, partition_key, next_at, closed_by)
     select g.id, 'default', n::text, 'infinity', 'empty'
       from sluice.lane_groups g, generate_series(1, $1::int) n where g.upstream = 'api'`,
    [lanes],
  );
  const expiresAt = "now() + interval '1 year'";
  await store.addJobs({ count: 2_000, expiresAt });
  await store.addJobs({ count: waiting, expiresAt });
  const running: ClaimedJob[] = [];
  for (let i = 0; i < 4; i += 1) running.push(...(await store.claim(500)).jobs);
  await store.addJobs({ count: waiting, expiresAt, runAt: "now() + interval '1 day'" });
  const last = await database.query<{ id: string; batchId: string }>(
    `select r.job_id as id, j.batch_id as "batchId" from sluice.ready_jobs r join sluice.jobs j on j.id = r.job_id
      order by r.seq desc limit $1`,
    [2 * some],
  );
  const batchId = last[0]!.batchId;
  await database.query(
    "insert into sluice.blown_fuses (batch_id, state, job_id, status, at) values ($1, 'holding', $2, 401, now())",
    [batchId, last[0]!.id],
  );
  return { batchId, jobIds: last.map(({ id }) => id), running };
}

/** Rows read so far, in each table or through its indexes. */
async function rowsRead({ database }: Claims): Promise<Map<string, number>> {
  await database.query('select pg_stat_force_next_flush()');
  const rows = await database.query<{ name: string; n: number }>(
    `select t.relname as name, (t.seq_tup_read + coalesce(
              (select sum(i.idx_tup_read) from pg_stat_user_indexes i where i.relid = t.relid), 0))::bigint as n
       from pg_stat_user_tables t where t.schemaname = 'sluice'`,
  );
  return new Map(rows.map(({ name, n }) => [name, n]));
}

/** Tables of which `work` reads more rows than this, and how many. */
async function readsOver(store: Claims, rows: number, work: () => Promise<unknown>): Promise<Record<string, number>> {
  const before = await rowsRead(store);
  await work();
  const after = await rowsRead(store);
  return Object.fromEntries(
    [...after].map(([name, n]) => [name, n - (before.get(name) ?? 0)] as const).filter(([, n]) => n > rows),
  );
}

t.test('statements planned for empty tables read few rows of full ones', async (t) => {
  const store = await drainedStore(t);
  const asked = await fill(store);
  for (const [name, statement] of Object.entries(statements)) {
    // Entries of rows that are gone are stepped over once, by whoever comes first.
    await store.database.query('select min(seq) from sluice.ready_jobs r where r.expires_at is not null');
    t.same(await readsOver(store, most, () => statement(store, asked)), {}, name);
  }
  t.same(
    await readsOver(store, 2 * waiting + 5_000, () => countJobs(store, asked)),
    {},
    'the jobs of a batch by state: each of its range once',
  );
});
