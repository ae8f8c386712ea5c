/** Lists of jobs: order, filters alone and together, pages without gap or repeat, and what a page may cost. */
import t, { type Test } from 'tap';
import type { JobState } from '../../src/domain/job.ts';
import { type JobFilter, listJobs, type WalkBounds } from '../../src/postgres/list-jobs.ts';
import { readJob } from '../../src/postgres/read-jobs.ts';
import { type Claims, type settleRow, useClaims } from '../support/claims.ts';

const anyJob: JobFilter = {
  states: null,
  reason: null,
  queue: null,
  upstream: null,
  batchId: null,
  key: null,
  correlationId: null,
};
const tight: WalkBounds = { mostLookedAt: 6, largestLook: 4, looksForReady: 3 };

interface Listed extends Claims {
  /** All jobs by their number, 1 the first accepted. */
  list(filter?: Partial<JobFilter>, more?: { limit?: number; bounds?: WalkBounds; tenant?: string }): Promise<number[]>;
  /** Each page of the walk. */
  pages(filter: Partial<JobFilter>, limit: number, bounds?: WalkBounds): Promise<number[][]>;
}

async function setup(t: Test): Promise<Listed> {
  // Ids of jobs that are added in bulk are random; here they must ascend as accepted jobs' do.
  const store = await useClaims(t, { breaks: 'all' });
  await store.putUpstream('api');
  await store.putUpstream('mail');
  await store.putQueue('slow', {});
  const page = async (
    filter: Partial<JobFilter>,
    before: string | null,
    limit: number,
    tenant: string,
    bounds?: WalkBounds,
  ) => {
    const walk = { tenant, filter: { ...anyJob, ...filter }, before, limit };
    const { items, next } = await listJobs(store.database, walk, bounds);
    return { numbers: items.map(({ jobId }) => Number(jobId.slice(-6))), next };
  };
  return {
    ...store,
    async addJobs(jobs) {
      await store.addJobs(jobs);
      for (const table of ['ready_jobs', 'parked_jobs']) {
        await store.database.query(`update sluice.${table} set job_id = ${ascending('seq')}`);
      }
      await store.database.query(
        `update sluice.idempotency_keys k set job_id = ${ascending('j.seq')} from sluice.jobs j where j.id = k.job_id`,
      );
      await store.database.query(`update sluice.jobs set id = ${ascending('seq')}`);
    },
    async list(filter = {}, { limit = 100, bounds, tenant = 'default' } = {}) {
      return (await page(filter, null, limit, tenant, bounds)).numbers;
    },
    async pages(filter, limit, bounds) {
      const pages: number[][] = [];
      for (let before: string | null = null, first = true; first || before !== null; first = false) {
        const { numbers, next } = await page(filter, before, limit, 'default', bounds);
        pages.push(numbers);
        before = next;
      }
      return pages;
    },
  };
}

function ascending(seq: string): string {
  return `('01890000-0000-7000-8000-' || lpad((${seq})::text, 12, '0'))::uuid`;
}

/** Numbers from `from` down to `to`. */
function down(from: number, to: number): number[] {
  return Array.from({ length: from - to + 1 }, (_, i) => from - i);
}

t.test('newest first, page by page, each once, also those that were stored in one statement', async (t) => {
  const store = await setup(t);
  await store.addJobs({ count: 50 });
  t.same(await store.list(), down(50, 1));
  const pages = await store.pages({}, 7);
  t.equal(pages.length, 8);
  t.same(pages.flat(), down(50, 1), 'drizzle-team/drizzle-orm#4419, #1148');
  t.same((await store.pages({}, 25)).length, 2, 'a last page that is full has no next one');
  t.same(await store.list({}, { tenant: 'other' }), []);
});

/** Ten jobs: 1 succeeded, 2 failed, 3 held, 4 scheduled, 5 running, 6 expired, 7 cancelled, 8 to 10 ready. */
async function oneOfEach(t: Test): Promise<Listed> {
  const store = await setup(t);
  await store.addJobs({ count: 10 });
  const { jobs } = await store.claim(7);
  const settle = (place: number, fields: Parameters<typeof settleRow>[1]) => store.settle([jobs[place]!], fields);
  await settle(0, {});
  await settle(1, {
    next: { kind: 'done', state: 'failed', reason: 'attempts_exhausted', evidence: null },
    status: 500,
  });
  await settle(2, { next: { kind: 'held', reason: 'outcome_unknown' }, outcome: 'unknown', status: null });
  await settle(3, { next: { kind: 'scheduled', delayMs: 60_000, reason: null }, outcome: 'error', status: 500 });
  await settle(5, {
    next: { kind: 'done', state: 'expired', reason: 'expired', evidence: null },
    outcome: null,
    status: null,
  });
  await settle(6, {
    next: { kind: 'done', state: 'cancelled', reason: 'cancelled', evidence: null },
    outcome: null,
    status: null,
  });
  return store;
}

t.test('by state, by several, by reason', async (t) => {
  const { list } = await oneOfEach(t);
  const expected: Record<JobState, number[]> = {
    succeeded: [1],
    failed: [2],
    held: [3],
    scheduled: [4],
    running: [5],
    expired: [6],
    cancelled: [7],
    ready: [10, 9, 8],
  };
  for (const [state, numbers] of Object.entries(expected))
    t.same(await list({ states: [state as JobState] }), numbers, state);
  t.same(await list({ states: ['failed', 'held'] }), [3, 2]);
  t.same(await list({ states: ['scheduled', 'held'] }), [4, 3]);
  t.same(await list({ states: ['ready', 'succeeded'] }), [10, 9, 8, 1]);
  t.same(await list({ states: ['failed', 'held'], reason: 'outcome_unknown' }), [3]);
  t.same(await list({ states: ['failed', 'held'], reason: 'fuse' }), []);
  t.same(await list({ states: ['failed', 'held'] }, { limit: 1 }), [3]);
  t.same(await list({ states: ['failed'] }, { tenant: 'other' }), []);
  t.same(await list({ states: ['ready'] }, { tenant: 'other', bounds: tight }), []);
});

t.test('by queue, upstream, batch, key and correlation id, alone and together', async (t) => {
  const store = await setup(t);
  await store.addJobs({ count: 2 });
  await store.addJobs({ count: 2, upstream: 'mail' });
  await store.addJobs({ count: 2, queue: 'slow' });
  await store.addJobs({ count: 2, queue: 'slow', upstream: 'mail' });
  await store.database.query(`update sluice.jobs set correlation_id = 'odd' where seq % 2 = 1`);
  const [batch] = await store.database.query<{ id: string }>('select batch_id as id from sluice.jobs where seq = 3');
  const { list } = store;
  t.same(await list({ queue: 'slow' }), [8, 7, 6, 5]);
  t.same(await list({ upstream: 'mail' }), [8, 7, 4, 3]);
  t.same(await list({ queue: 'slow', upstream: 'mail' }), [8, 7]);
  t.same(await list({ queue: 'none' }), []);
  t.same(await list({ batchId: batch!.id }), [4, 3]);
  t.same(await list({ key: 'k6' }), [6]);
  t.same(await list({ key: 'k7777' }), []);
  t.same(await list({ key: 'k6', queue: 'default' }), []);
  t.same(await list({ correlationId: 'odd' }), [7, 5, 3, 1]);
  t.same(await list({ correlationId: 'odd', upstream: 'mail' }), [7, 3]);
  t.same(await list({ states: ['ready'], queue: 'slow' }, { bounds: tight }), [8, 7, 6, 5]);
  t.same(await list({ states: ['ready'], correlationId: 'odd', batchId: batch!.id }), [3]);
  t.same(await list({ states: ['failed'], batchId: batch!.id }), []);
  for (const filter of [{ key: 'k3' }, { batchId: batch!.id }, { correlationId: 'odd' }, { upstream: 'mail' }]) {
    t.same(await list(filter, { tenant: 'other' }), [], 'of another tenant nothing');
  }
});

t.test('a narrow filter over many jobs: short pages, each of bounded cost, that together have all', async (t) => {
  const store = await setup(t);
  await store.addJobs({ count: 40 });
  await store.database.query(`update sluice.jobs set correlation_id = 'rare' where seq in (3, 20, 39)`);
  const pages = await store.pages(
    { upstream: 'api', correlationId: null, states: ['ready', 'running'], key: null },
    2,
    tight,
  );
  t.same(pages.flat(), down(40, 1), 'a page that fills is full');
  await store.database.query(`update sluice.jobs set correlation_id = 'all'`);
  await store.database.query(`update sluice.jobs set queue = 'slow' where seq in (3, 20, 39)`);
  const rare = await store.pages({ correlationId: 'all', queue: 'slow' }, 10, tight);
  t.same(rare.flat(), [39, 20, 3]);
  t.ok(rare.length > 2, `${rare.length} pages`);
  t.ok(
    rare.every((page) => page.length < 10),
    'none is full, and none but the last is the last',
  );
});

t.test('ready jobs that are far from the newest are found at once', async (t) => {
  const store = await setup(t);
  await store.addJobs({ count: 30 });
  const { jobs } = await store.claim(30);
  await store.settle(jobs.slice(3));
  await store.settle(jobs.slice(0, 3), { next: { kind: 'ready' }, outcome: null });
  t.same(
    await store.list({ states: ['ready'] }, { bounds: tight }),
    [3, 2, 1],
    'in one page, though only six are looked at',
  );
  t.same(await store.pages({ states: ['ready'] }, 2, tight), [[3, 2], [1]]);
});

t.test('a list tells of each job what its own page does', async (t) => {
  const store = await oneOfEach(t);
  const { items } = await listJobs(store.database, { tenant: 'default', filter: anyJob, before: null, limit: 100 });
  for (const { response, ...summary } of items) {
    const { headers, body, bodyIsText, ...job } = (await readJob(store.database, 'default', summary.jobId))!;
    t.same([headers, body, bodyIsText], [null, '{}', false]);
    t.same(summary, job, summary.state);
    t.same(response === null, job.status === null, 'there is an answer where one ended it');
  }
});

/** Buffers that one page touches, by EXPLAIN of each of its statements. */
async function buffersOfPage({ database }: Claims, filter: Partial<JobFilter>, tenant = 'default'): Promise<number> {
  let buffers = 0;
  const explained = {
    ...database,
    async query<R>(text: string, values?: readonly unknown[]): Promise<R[]> {
      const [row] = await database.query<{ 'QUERY PLAN': { Plan: Record<string, number> }[] }>(
        `explain (analyze, buffers, format json) ${text}`,
        values,
      );
      const plan = row!['QUERY PLAN'][0]!.Plan;
      buffers += plan['Shared Hit Blocks']! + plan['Shared Read Blocks']!;
      return database.query<R>(text, values);
    },
  };
  await listJobs(explained, { tenant, filter: { ...anyJob, ...filter }, before: null, limit: 20 });
  return buffers;
}

t.test('a page reads a few pages of each table, whichever filter leads', async (t) => {
  const store = await setup(t);
  await store.addJobs({ count: 1, upstream: 'mail' });
  await store.addJobs({ count: 1, queue: 'slow' });
  await store.addJobs({ count: 1 });
  // Ended jobs: one in a hundred failed or held, a few of a rare upstream; batches of 500.
  const numbers = 'generate_series(100, 30000) n';
  await store.database.query(
    `insert into sluice.jobs (id, tenant, batch_id, lane_id, rank, seq, queue, upstream, idempotency_key, key_source, method,
                              path, correlation_id)
     select ${ascending('n')}, case when n % 1000 = 8 then 'small' else 'default' end, ${ascending('n / 500')}, 1, 0, n, 'default',
            case when n % 1000 = 7 then 'mail' else 'api' end, 'key-' || n, 'given', 'POST', '/x', 'c' || n / 500 from ${numbers}`,
  );
  await store.database.query(
    `insert into sluice.done_jobs (job_id, state, ended_at)
     select ${ascending('n')}, case when n % 100 = 1 then 'failed' else 'succeeded' end, clock_timestamp()
       from ${numbers} where n % 100 <> 2`,
  );
  await store.database.query(
    `insert into sluice.parked_jobs (job_id, lane_id, rank, seq, state, cost)
     select ${ascending('n')}, 1, 0, n, 'held', 1 from ${numbers} where n % 100 = 2`,
  );
  for (const [table, fingerprint, which] of [
    ['idempotency_keys', "'\\x00', ", 'n % 2 = 0'],
    ['former_keys', '', 'n % 2 = 1'],
  ]) {
    await store.database.query(
      `insert into sluice.${table} (tenant, key, ${fingerprint === '' ? '' : 'fingerprint, '}job_id)
       select 'default', 'key-' || n, ${fingerprint}${ascending('n')} from ${numbers} where ${which}`,
    );
  }
  await store.database.query('vacuum analyze');
  const filters: Record<string, Partial<JobFilter>> = {
    all: {},
    failed: { states: ['failed'] },
    held: { states: ['held'] },
    'dead letters': { states: ['failed', 'held'] },
    succeeded: { states: ['succeeded'] },
    'rare upstream': { upstream: 'mail' },
    queue: { queue: 'default' },
    key: { key: 'key-778' },
    'a key that has expired': { key: 'key-777' },
    batch: { batchId: '01890000-0000-7000-8000-000000000001' },
    'correlation id': { correlationId: 'c1' },
  };
  // A page of 20 and one more, each found in six tables through an index of three levels at most.
  const most = 21 * 6 * 3;
  const [table] = await store.database.query<{ pages: number }>(
    `select relpages as pages from pg_class where oid = 'sluice.jobs'::regclass`,
  );
  t.ok(table!.pages > most, `reading all of the table would be ${table!.pages} buffers`);
  for (const [name, filter] of Object.entries(filters)) {
    const buffers = await buffersOfPage(store, filter);
    t.ok(buffers <= most, `${name}: ${buffers} buffers`);
  }
  const ofSmall = await buffersOfPage(store, {}, 'small');
  t.ok(ofSmall <= most, `a small tenant beside a large one: ${ofSmall} buffers`);
  t.equal((await store.list({}, { tenant: 'small' })).length, 29);
});
