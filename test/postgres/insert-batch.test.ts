/** Intake on a real store: all or nothing, a fixed number of statements, races between batches, and where the rows go. */
import pg from 'pg';
import t from 'tap';
import { claimJobs } from '../../src/postgres/claim-jobs.ts';
import type { Database } from '../../src/postgres/database.ts';
import { insertBatch } from '../../src/postgres/insert-batch.ts';
import { ensureLaneGroups } from '../../src/postgres/lane-groups.ts';
import { ensureLanes } from '../../src/postgres/lanes.ts';
import { type JobPage, listJobIds } from '../../src/postgres/list-jobs.ts';
import { readBatchItems } from '../../src/postgres/read-batches.ts';
import { readVerdicts } from '../../src/postgres/read-replay.ts';
import { takeKeys } from '../../src/postgres/take-keys.ts';
import { inTransaction, type TransactionClient } from '../../src/postgres/transaction.ts';
import { newWorker } from '../support/claims.ts';
import { type Intake, submissionOf, useIntake } from '../support/intake.ts';

const tables = ['batches', 'batch_items', 'jobs', 'ready_jobs', 'parked_jobs', 'idempotency_keys'];

function insert(
  database: Database,
  items: readonly unknown[],
  {
    tenant = 'default',
    requestKey = null,
  }: { tenant?: string; requestKey?: { key: string; fingerprint: string } | null } = {},
) {
  return insertBatch(database, { tenant, requestKey, definitionsVersion: null, ...submissionOf(items) });
}

async function verdictsOf(database: Database, items: readonly unknown[], tenant = 'default') {
  const inserted = await insert(database, items, { tenant });
  if (inserted.kind !== 'inserted') throw new Error(inserted.kind);
  return inserted.batch.items;
}

const numbered = (count: number, prefix = 'k') =>
  Array.from({ length: count }, (_, i) => ({ idempotency_key: `${prefix}${i}`, body: { number: i } }));

async function totals(intake: Intake): Promise<number[]> {
  const counts: number[] = [];
  for (const table of tables) counts.push(await intake.count(table));
  return counts;
}

t.test('the number of statements is the same for 1 item and for 10,000 (brianc/node-postgres#2292)', async (t) => {
  const intake = await useIntake(t, { max: 1 });
  let statements = 0;
  intake.database.pool.on('acquire', (client) => {
    const query = client.query.bind(client) as (...args: unknown[]) => unknown;
    if (!Object.hasOwn(client, 'query')) {
      client.query = ((...args: unknown[]) => {
        statements += 1;
        return query(...args);
      }) as typeof client.query;
    }
  });
  const statementsOf = async (items: readonly unknown[]) => {
    statements = 0;
    const verdicts = await verdictsOf(intake.database, items);
    return { statements, accepted: verdicts.filter(({ verdict }) => verdict === 'accepted').length };
  };
  // The first batch makes the group and the lane.
  await verdictsOf(intake.database, numbered(1, 'first'));
  const one = await statementsOf(numbered(1, 'one'));
  const all = await statementsOf(numbered(10_000, 'all'));
  t.same(all, { statements: one.statements, accepted: 10_000 });
  t.ok(one.statements > 2, 'and the count counts');
  t.equal(await intake.count('jobs'), 10_002);

  const mixed = [...numbered(5_000, 'all'), ...numbered(5_000, 'more')];
  const half = await statementsOf(mixed);
  t.same(half, { statements: one.statements + 1, accepted: 5_000 }, 'known keys are asked for in one more');
});

t.test('an accepted item is its job, without a row beside it, and reads as any other', async (t) => {
  const intake = await useIntake(t);
  await verdictsOf(intake.database, [{ idempotency_key: 'known' }]);
  const inserted = await insert(intake.database, [
    { idempotency_key: 'later', run_at: '2126-01-01T00:00:00Z' },
    { idempotency_key: 'known' },
    { idempotency_key: 'now' },
    { idempotency_key: 'known', body: 'another' },
    { idempotency_key: 'now' },
    { idempotency_key: 'past', run_at: '2020-01-01T00:00:00Z' },
    { idempotency_key: ' ' },
    { idempotency_key: 'last' },
  ]);
  if (inserted.kind !== 'inserted') throw new Error(inserted.kind);
  const { batchId, items } = inserted.batch;
  t.same(
    items.map(({ verdict }) => verdict[0]).join(''),
    'adacdara',
    'accepted, duplicate, conflict and rejected ones among each other',
  );
  t.equal(await intake.count('stored_items'), 4, 'those that were not accepted');
  const { database } = intake;
  const stored = await readVerdicts(database, batchId, { from: 0, most: null });
  t.same(
    stored,
    items.map((item) => ({ ...item, line: null })),
    'verdicts and states as they were given',
  );
  t.same(await readVerdicts(database, batchId, { from: 3, most: 3 }), stored.slice(3, 6), 'a part of them');

  const ids = items.filter(({ verdict }) => verdict === 'accepted').map(({ jobId }) => jobId!);
  t.same(ids, [...ids].sort(), 'ids ascend with the items');
  const filter = { states: null, reason: null, queue: null, upstream: null, batchId, key: null, correlationId: null };
  const listed: string[] = [];
  for (let before: string | null = null; listed.length < ids.length; ) {
    const page: JobPage<string> = await listJobIds(database, { tenant: 'default', filter, before, limit: 1 });
    listed.push(...page.items);
    if (page.next === null) break;
    before = page.next;
  }
  t.same(listed, [...ids].reverse(), 'and its jobs are listed by it, page by page');

  const { jobs } = await claimJobs(database, await newWorker(database), 10);
  t.equal(jobs.length, 4);
  const again = await readVerdicts(database, batchId, { from: 0, most: null });
  t.same(again, stored, 'also once the jobs have gone on');
  const now = await readBatchItems(database, batchId, { verdict: null, state: null, after: -1, limit: 100 });
  t.same(
    now.map(({ index, jobId, jobState }) => [index, jobId, jobState]),
    stored.map(({ index, jobId, jobState }) => [index, jobId, jobState === 'ready' ? 'running' : jobState]),
  );
});

t.test('a fault in mid-batch leaves nothing, and no transaction open (vitaly-t/pg-promise#894)', async (t) => {
  const intake = await useIntake(t);
  await intake.database.query(`
    create function fail_at_five() returns trigger language plpgsql as $$
    begin
      if new.item_index = 5 then raise exception 'no item five' using errcode = '53100'; end if;
      return new;
    end $$`);
  await intake.database.query(
    'create trigger fail before insert on sluice.jobs for each row execute function fail_at_five()',
  );
  await t.rejects(insert(intake.database, numbered(10)), { name: 'DatabaseUnavailableError' });
  t.same(
    await totals(intake),
    tables.map(() => 0),
  );
  const [idle] = await intake.database.query<{ count: number }>(
    `select count(*)::int as count from pg_stat_activity
      where state like 'idle in transaction%' and datname = current_database()`,
  );
  t.equal(idle!.count, 0);
  t.same(
    (await verdictsOf(intake.database, numbered(5))).map(({ verdict }) => verdict),
    Array(5).fill('accepted'),
    'the keys of the failed batch are free (VilledeMontreal/express-idempotency#32)',
  );
});

t.test('a serialization failure or deadlock is run again inside, with one job each (OCA/queue#343)', async (t) => {
  for (const errcode of ['40001', '40P01']) {
    const intake = await useIntake(t);
    // A sequence does not roll back, so it knows the first try from the second.
    await intake.database.query('create sequence tries');
    await intake.database.query(`
      create function fail_twice() returns trigger language plpgsql as $$
      begin
        if nextval('tries') <= 2 then raise exception 'again' using errcode = '${errcode}'; end if;
        return new;
      end $$`);
    await intake.database.query(
      'create trigger fail before insert on sluice.batches for each row execute function fail_twice()',
    );
    const verdicts = await verdictsOf(intake.database, numbered(3));
    t.same(
      verdicts.map(({ verdict }) => verdict),
      ['accepted', 'accepted', 'accepted'],
    );
    t.same(await totals(intake), [1, 3, 3, 3, 0, 3], errcode);
    const [stored] = await intake.database.query<{ count: number }>(
      'select count(*)::int as count from sluice.idempotency_keys k join sluice.jobs j on j.id = k.job_id',
    );
    t.equal(stored!.count, 3, 'every key has its job');
  }
});

t.test('batches that share keys in opposite orders do not lock each other out, and accept each key once', async (t) => {
  const intake = await useIntake(t, { max: 8 });
  for (let round = 0; round < 5; round++) {
    const items = numbered(300, `r${round}-`);
    const results = await Promise.all(
      Array.from({ length: 8 }, (_, i) => verdictsOf(intake.database, i % 2 === 0 ? items : [...items].reverse())),
    );
    const jobOf = new Map<string, string>();
    let accepted = 0;
    for (const { key, verdict, jobId } of results.flat()) {
      if (verdict !== 'accepted') continue;
      accepted += 1;
      jobOf.set(key!, jobId!);
    }
    t.equal(accepted, 300);
    t.equal(jobOf.size, 300);
    t.ok(
      results
        .flat()
        .every(({ key, verdict, jobId }) => /^(accepted|duplicate)$/.test(verdict) && jobOf.get(key!) === jobId),
      'the others are duplicates of the job that was accepted',
    );
  }
  const [deadlocks] = await intake.database.query<{ deadlocks: number }>(
    'select deadlocks::int from pg_stat_database where datname = current_database()',
  );
  t.equal(deadlocks!.deadlocks, 0);
});

t.test('the same key in two tenants is two jobs (brandur/sorg#193)', async (t) => {
  const intake = await useIntake(t);
  const [a] = await verdictsOf(intake.database, [{ idempotency_key: '1', body: 'a' }], 'a');
  const [b] = await verdictsOf(intake.database, [{ idempotency_key: '1', body: 'b' }], 'b');
  t.match([a, b], [{ verdict: 'accepted' }, { verdict: 'accepted' }]);
  const [again] = await verdictsOf(intake.database, [{ idempotency_key: '1', body: 'a' }], 'a');
  t.match(again, { verdict: 'duplicate', jobId: a!.jobId });
  t.equal(await intake.count('lanes'), 2, 'and two lanes');
});

t.test('numbers of acceptance follow the items and are not spent on others', async (t) => {
  const intake = await useIntake(t);
  const last = async () => {
    const [row] = await intake.database.query<{ seq: number }>(`select last_value as seq from sluice.job_seq`);
    return row!.seq;
  };
  await verdictsOf(intake.database, [
    { idempotency_key: 'z' },
    { idempotency_key: 'z' },
    { idempotency_key: 'a' },
    { idempotency_key: 'm', method: 'NONE' },
    { idempotency_key: 'b' },
  ]);
  const rows = await intake.database.query<{ key: string }>(
    'select idempotency_key as key from sluice.jobs order by seq',
  );
  t.same(
    rows.map(({ key }) => key),
    ['z', 'a', 'b'],
  );
  const before = await last();
  await verdictsOf(intake.database, [{ idempotency_key: 'z' }, { idempotency_key: 'a', body: 'other' }]);
  t.equal(await last(), before);
});

t.test('what was checked against other definitions than those in force leaves nothing', async (t) => {
  const intake = await useIntake(t);
  const [row] = await intake.database.query<{ version: number }>('select version from sluice.definition_version');
  const store = (definitionsVersion: number, items: readonly unknown[]) =>
    insertBatch(intake.database, { tenant: 'default', requestKey: null, definitionsVersion, ...submissionOf(items) });
  const before = await totals(intake);
  t.equal((await store(row!.version - 1, [{ idempotency_key: 'k' }])).kind, 'definitions_changed');
  t.equal(
    (await store(row!.version + 1, [{ method: 'NONE' }])).kind,
    'definitions_changed',
    'also where all is refused',
  );
  t.same(await totals(intake), before);
  t.equal((await store(row!.version, [{ idempotency_key: 'k' }])).kind, 'inserted');
});

t.test('no key is taken outside of a transaction of an intake', async (t) => {
  const { database, count } = await useIntake(t);
  const alone = { query: database.query } as unknown as TransactionClient;
  const { items } = submissionOf([{ idempotency_key: 'k' }]);
  await t.rejects(takeKeys(alone, 'default', items), { code: '40001' });
  t.equal(await count('idempotency_keys'), 0);
});

t.test('an undefined upstream at the time of the store leaves nothing', async (t) => {
  const intake = await useIntake(t);
  const inserted = await insert(intake.database, [
    { idempotency_key: 'k', upstream: 'gone' },
    { idempotency_key: 'l' },
  ]);
  t.equal(inserted.kind, 'definitions_changed');
  t.same(
    await totals(intake),
    tables.map(() => 0),
  );
});

t.test('of two batches with one request key the second stores nothing, not even its keys', async (t) => {
  const intake = await useIntake(t);
  const requestKey = { key: 'rk', fingerprint: '00'.repeat(32) };
  const kinds = await Promise.all([
    insert(intake.database, numbered(50, 'a'), { requestKey }),
    insert(intake.database, numbered(50, 'b'), { requestKey }),
  ]);
  t.same(kinds.map(({ kind }) => kind).sort(), ['inserted', 'request_key_taken']);
  t.same(await totals(intake), [1, 50, 50, 50, 0, 50]);
});

t.test('what is to run later is parked, on the clock of the database; the rest is ready', async (t) => {
  const intake = await useIntake(t);
  const soon = new Date(Date.now() + 3_600_000).toISOString();
  const verdicts = await verdictsOf(intake.database, [
    { idempotency_key: 'now', priority: 7, cost: 3, expires_at: soon },
    { idempotency_key: 'past', run_at: '2020-01-01T00:00:00Z' },
    { idempotency_key: 'later', run_at: soon, priority: -2 },
    { idempotency_key: 'later', run_at: soon, priority: -2 },
  ]);
  t.same(
    verdicts.map(({ jobState }) => jobState),
    ['ready', 'ready', 'scheduled', 'scheduled'],
  );
  const ready = await intake.database.query(
    `select j.idempotency_key as key, r.rank, r.cost, r.expires_at, r.eligible_at = j.created_at as since_created,
            (r.lane_id, r.rank, r.seq) = (j.lane_id, j.rank, j.seq) as in_place
       from sluice.ready_jobs r join sluice.jobs j on j.id = r.job_id order by r.rank, r.seq`,
  );
  t.same(ready, [
    { key: 'now', rank: -7, cost: 3, expires_at: new Date(soon), since_created: true, in_place: true },
    { key: 'past', rank: 0, cost: 1, expires_at: null, since_created: true, in_place: true },
  ]);
  const parked = await intake.database.query(
    `select j.idempotency_key as key, p.rank, p.state, p.due_at, (p.lane_id, p.seq) = (j.lane_id, j.seq) as in_place
       from sluice.parked_jobs p join sluice.jobs j on j.id = p.job_id`,
  );
  t.same(parked, [{ key: 'later', rank: 2, state: 'scheduled', due_at: new Date(soon), in_place: true }]);
});

t.test('a lane is a queue at an upstream of a tenant, and a partition key', async (t) => {
  const intake = await useIntake(t);
  await intake.putUpstream('other');
  await intake.putQueue('sms', {});
  await verdictsOf(intake.database, [
    { idempotency_key: '1' },
    { idempotency_key: '2', partition_key: 'p' },
    { idempotency_key: '3', partition_key: 'q' },
    { idempotency_key: '4', queue: 'sms', partition_key: 'p' },
    { idempotency_key: '5', upstream: 'other' },
    { idempotency_key: '6', partition_key: 'p' },
  ]);
  t.equal(await intake.count('lanes'), 5);
  const [row] = await intake.database.query<{ same: boolean }>(
    `select count(distinct lane_id) = 1 as same from sluice.jobs where idempotency_key in ('2', '6')`,
  );
  t.equal(row!.same, true);
});

t.test('an empty lane is woken and workers are told, once a commit; not where nothing became ready', async (t) => {
  // A lane that is closed by hand stays closed.
  const intake = await useIntake(t, { breaks: ['claimable'] });
  const listener = new pg.Client({ connectionString: intake.connectionString });
  await listener.connect();
  t.teardown(() => listener.end());
  let notified = 0;
  listener.on('notification', () => {
    notified += 1;
  });
  await listener.query('listen sluice_work');
  /** A round trip on the listening connection brings what was sent before. */
  const told = async () => {
    await listener.query('select 1');
    const count = notified;
    notified = 0;
    return count;
  };
  const lane = async () => {
    const [row] = await intake.database.query<{ open: boolean }>(
      'select next_at <= clock_timestamp() and closed_by is null as open from sluice.lanes',
    );
    return row!.open;
  };
  const close = (by: string) =>
    intake.database.query(`update sluice.lanes set next_at = 'infinity', closed_by = $1`, [by]);

  await verdictsOf(intake.database, numbered(20, 'first'));
  t.equal(await told(), 1);
  t.equal(await lane(), true);
  await close('empty');
  await verdictsOf(intake.database, numbered(20, 'second'));
  t.same([await told(), await lane()], [1, true]);
  await close('cooldown');
  await verdictsOf(intake.database, numbered(1, 'third'));
  t.same([await told(), await lane()], [1, false], 'a lane that is closed for another reason stays closed');
  await verdictsOf(intake.database, numbered(1, 'third'));
  await verdictsOf(intake.database, [{ idempotency_key: 'later', run_at: '2099-01-01T00:00:00Z' }]);
  t.equal(await told(), 0);
});

t.test('until the commit no claim can mark the lane empty; it can be claimed from meanwhile', async (t) => {
  const intake = await useIntake(t);
  await verdictsOf(intake.database, numbered(1));
  await inTransaction(intake.database, async (client) => {
    const [groupId] = await ensureLaneGroups(client, [{ queue: 'default', upstream: 'api' }]);
    const [laneId] = await ensureLanes(client, 'default', [{ groupId: groupId!, partitionKey: '' }]);
    const asEmpty = await intake.database.query('select id from sluice.lanes where id = $1 for update skip locked', [
      laneId,
    ]);
    t.same(asEmpty, []);
    const { jobs } = await claimJobs(intake.database, await newWorker(intake.database), 5);
    t.equal(jobs.length, 1);
  });
});

t.test('lanes that many batches make at once are made once, whatever their order', async (t) => {
  const intake = await useIntake(t, { max: 8 });
  const items = Array.from({ length: 100 }, (_, i) => ({ partition_key: `p${i}` }));
  await Promise.all(
    Array.from({ length: 8 }, (_, batch) => {
      const mine = items.map((item, i) => ({ ...item, idempotency_key: `${batch}-${i}` }));
      return verdictsOf(intake.database, batch % 2 === 0 ? mine : mine.reverse());
    }),
  );
  t.equal(await intake.count('lanes'), 100);
  t.equal(await intake.count('ready_jobs'), 800);
});

t.test('bodies are stored once, as the JSON text that goes out (drizzle-team/drizzle-orm#5139)', async (t) => {
  const intake = await useIntake(t);
  const bodies = ['10.5', '{"a":1}', 'NUL \u0000', '\ud800', '😀', {}, null, [], 0, { b: 1, a: { 'ü"\\': '\n' } }];
  await verdictsOf(
    intake.database,
    bodies.map((body, i) => ({ idempotency_key: `k${i}`, body })),
  );
  const rows = await intake.database.query<{ body: string }>('select body from sluice.jobs order by seq');
  t.same(
    rows.map(({ body }) => body),
    bodies.map((body) => JSON.stringify(body)),
  );
  t.same(
    rows.map(({ body }) => JSON.parse(body)),
    bodies,
  );
});
