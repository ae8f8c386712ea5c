/** The claim of new jobs in the commit that stores them: what it gives, what it leaves to the claims, and that it charges nothing then. */
import t from 'tap';
import { setPaused } from '../../src/application/manage-definitions.ts';
import type { ClaimedJob } from '../../src/domain/job.ts';
import { DatabaseUnavailableError, openDatabase } from '../../src/postgres/database.ts';
import { type InsertedBatch, insertBatch } from '../../src/postgres/insert-batch.ts';
import type { IntakeClaimer } from '../../src/postgres/intake-reservation.ts';
import { inTransaction } from '../../src/postgres/transaction.ts';
import { createLogger } from '../../src/system/logger.ts';
import { type Claims, neverLeft, newWorker, throttledFor, useClaims, waitsForALock } from '../support/claims.ts';
import { definitionDependencies } from '../support/definitions.ts';
import { faultPointsOf } from '../support/fault-points.ts';
import { batchOf } from '../support/intake.ts';

/** A worker with slots to spare, and what it hears. */
class Claimer implements IntakeClaimer {
  readonly workerId: string;
  readonly jobs: ClaimedJob[] = [];
  readonly heard: string[] = [];
  readonly reserved: number[] = [];

  constructor(workerId: string) {
    this.workerId = workerId;
  }

  reserve(jobIds: readonly string[]) {
    this.reserved.push(jobIds.length);
    return {
      claimed: async (jobs: readonly ClaimedJob[]) => {
        this.heard.push('claimed');
        this.jobs.push(...jobs);
      },
      unused: () => this.heard.push('unused'),
      lost: () => this.heard.push('lost'),
    };
  }
}

type Store = Pick<Claims, 'database'>;

async function post(
  store: Store,
  items: readonly object[],
  claimer?: IntakeClaimer,
  requestKey: string | null = null,
): Promise<InsertedBatch> {
  return insertBatch(store.database, await batchOf(store.database, items, requestKey), claimer);
}

async function rowsOf({
  database,
}: Pick<Claims, 'database'>): Promise<{ ready: number; running: number; used: number }> {
  const [row] = await database.query<{ ready: number; running: number; used: number }>(
    `select (select count(*)::int from sluice.ready_jobs) as ready, (select count(*)::int from sluice.running_jobs) as running,
            (select coalesce(sum(used), 0)::int from sluice.rate_windows) as used`,
  );
  return row!;
}

/** The lanes are there, so that a single item goes in by one statement. */
async function makeLanes(store: Claims, ...partitionKeys: Array<string | undefined>): Promise<void> {
  for (const partition_key of partitionKeys) {
    const inserted = await post(store, [
      { idempotency_key: `lane of ${partition_key}`, ...(partition_key && { partition_key }) },
    ]);
    if (inserted.kind !== 'inserted' || inserted.claimed) throw new Error('the lane was not made by an intake alone');
  }
  await store.settle((await store.claim(10)).jobs);
}

/** So that no intake is late, however slow the machine is. */
async function stopTheClock(store: Claims): Promise<void> {
  await store.setClock(await store.clockUs());
}

const rich = {
  method: 'PUT',
  path: '/charges/7?x=1',
  headers: { 'X-Trace': 'a', 'content-type': 'text/plain' },
  body_text: 'ä "quoted"\n',
  partition_key: 'acct',
  priority: 3,
  max_attempts: 2,
  payload_version: '7',
  expires_at: '2100-01-01T00:00:00Z',
};

t.test('what it gives is what a claim would have read back, one item or several', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.putLimit('all', { limit: 100, per: 60, upstreams: ['api'] });
  await store.putLimit('account', { limit: 100, per: 60, by_partition: true, upstreams: ['api'] });
  await makeLanes(store, undefined, 'acct');
  for (const [label, items] of [
    ['one', [rich]],
    ['one with a body of JSON', [{ body: { n: 1 } }]],
    ['several', [rich, { ...rich, priority: 9, cost: 2 }, { ...rich, body_text: '', headers: {} }]],
  ] as const) {
    const named = (name: string) => items.map((item, n) => ({ ...item, idempotency_key: `${name}-${label}-${n}` }));
    const claimer = new Claimer(store.workerId);
    await stopTheClock(store);
    const posted = await post(store, named('x'), claimer);
    await store.setClock(0);
    t.equal(posted.kind === 'inserted' && posted.claimed, true, label);
    t.same(claimer.heard, ['claimed']);
    t.same(await rowsOf(store).then(({ ready, running }) => ({ ready, running })), { ready: 0, running: items.length });
    const used = (await rowsOf(store)).used;

    await post(store, named('y'));
    const { jobs } = await store.claim(10);
    const told = ({ jobId, batchId, slotWaitMs, idempotencyKey, ...job }: ClaimedJob) => ({
      ...job,
      key: idempotencyKey.slice(1),
    });
    t.same(claimer.jobs.map(told), jobs.map(told), 'in the order in which they are to be called, too');
    t.equal(
      (await rowsOf(store)).used - used,
      2 * items.reduce((sum, item) => sum + ('cost' in item ? item.cost : 1), 0),
    );
    const rows = `select lane_id, group_id, rank, cost, expires_at, worker_id, regexp_replace(charged, '[0-9]{16}', '', 'g') as charged,
                         counted, claim_ahead, epoch, calls, attempts_used, throttles, first_sent_at, outcome_unknown, reconcile_failures
                    from sluice.running_jobs where job_id = any ($1::uuid[]) order by rank, seq`;
    const rowsOfJobs = (of: readonly ClaimedJob[]) => store.database.query(rows, [of.map(({ jobId }) => jobId)]);
    t.same(await rowsOfJobs(claimer.jobs), await rowsOfJobs(jobs));

    const ids = [...claimer.jobs, ...jobs].map(({ jobId }) => jobId);
    t.same([...(await store.settle([...claimer.jobs, ...jobs]))].sort(), ids.sort(), "all are the worker's to settle");
  }
});

t.test('the verdicts are those of any intake', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await makeLanes(store, undefined);
  const claimer = new Claimer(store.workerId);
  const item = { idempotency_key: 'twice', body: 1 };
  const first = await post(store, [item], claimer, 'request');
  t.match(first, {
    batch: {
      items: [{ index: 0, key: 'twice', keySource: 'given', verdict: 'accepted', jobState: 'ready', faults: [] }],
    },
  });
  t.same(await post(store, [item], claimer, 'request'), { kind: 'request_key_taken' });
  const again = await post(store, [item], claimer);
  t.match(again, {
    claimed: false,
    batch: { items: [{ verdict: 'duplicate', jobId: claimer.jobs[0]!.jobId, jobState: 'running' }] },
  });
  t.match(await post(store, [{ ...item, body: 2 }], claimer), {
    claimed: false,
    batch: { items: [{ verdict: 'conflict' }] },
  });
  t.match(await post(store, [{ idempotency_key: 'other' }], claimer, 'request'), { kind: 'request_key_taken' });
  t.equal(claimer.jobs.length, 1);
  t.notOk(claimer.heard.includes('lost'), 'what was rolled back is known to be');
  t.equal(claimer.heard.length, claimer.reserved.length, 'it hears of all that it has kept slots for');
  t.equal((await rowsOf(store)).ready, 0);
  const stored = await store.database.query<{ index: number; verdict: string }>(
    `select index, verdict from sluice.batch_items where batch_id = $1`,
    [first.kind === 'inserted' ? first.batch.batchId : ''],
  );
  t.same(stored, [{ index: 0, verdict: 'accepted' }]);
});

interface Obstacle {
  readonly definitions?: (store: Claims) => Promise<void>;
  readonly now: (store: Claims) => Promise<void | (() => Promise<void>)>;
  readonly items?: readonly object[];
  /** Nobody is asked. */
  readonly unasked?: boolean;
}

const all =
  (more: object = {}) =>
  (store: Claims) =>
    store.putLimit('all', { limit: 7, per: 60, upstreams: ['api'], ...more });
const none = async () => undefined;
const item = { idempotency_key: 'new', partition_key: 'acct' };
const many = (count: number, more: object = {}) =>
  Array.from({ length: count }, (_, n) => ({ ...item, idempotency_key: `new-${n}`, ...more }));

/** Holds it until the given function is called. */
async function held({ connectionString }: Claims, statement: string): Promise<() => Promise<void>> {
  const database = openDatabase({ connectionString, max: 1, logger: createLogger('silent') });
  let release!: () => void;
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  await new Promise<void>((taken) => {
    void inTransaction(database, async (client) => {
      await client.query(statement);
      taken();
      await released;
    });
  });
  return async () => {
    release();
    await database.close();
  };
}

/** A cooldown of this kind, as a throttle brings it; what it has closed is open again, so that only its own row is left. */
async function throttled(store: Claims, kind: string, partitionKey = ''): Promise<void> {
  await store.addJobs({ count: 1, partitionKey });
  await store.settle((await store.claim(1)).jobs, throttledFor(60_000));
  for (const table of ['lane_groups', 'lanes']) {
    await store.database.query(
      `update sluice.${table} set next_at = to_timestamp(0), closed_by = null where next_at < 'infinity'`,
    );
  }
  await store.database.query('delete from sluice.cooldowns where kind <> $1', [kind]);
  const left = await store.database.query<{ partition_key: string }>('select partition_key from sluice.cooldowns');
  if (left.length !== 1 || left[0]!.partition_key !== partitionKey) throw new Error('there is no such cooldown');
}

const obstacles: Readonly<Record<string, Obstacle>> = {
  'an order': { definitions: (store) => store.putQueue('default', { ordering: 'fifo' }), now: none },
  'calls that are counted': { definitions: all({ max_in_flight: 9 }), now: none },
  'a queue that is paused': {
    now: (store) => setPaused(definitionDependencies(store.database), 'queues', 'default', true).then(() => undefined),
  },
  'an upstream that is paused': {
    now: (store) => setPaused(definitionDependencies(store.database), 'upstreams', 'api', true).then(() => undefined),
  },
  'a limit of 0': { definitions: all({ limit: 0 }), now: none },
  'a window that is paused': {
    definitions: all(),
    now: async ({ database }) => void (await database.query('update sluice.rate_windows set paused = true')),
  },
  'a window without room': { definitions: all(), items: many(6), now: none },
  'a window with room for some, and one with room for all': {
    definitions: async (store) => {
      await all()(store);
      await store.putLimit('wide', { limit: 50, per: 60, upstreams: ['api'] });
    },
    items: many(6),
    now: none,
  },
  'a window of its partition without room': {
    definitions: async (store) => {
      await store.putLimit('account', { limit: 3, per: 60, by_partition: true, upstreams: ['api'] });
      await store.putLimit('wide', { limit: 50, per: 60, upstreams: ['api'] });
    },
    items: many(3),
    now: none,
  },
  'a cost that is more than there is': { definitions: all(), items: many(2, { cost: 3 }), now: none },
  'a cooldown': { now: (store) => throttled(store, 'upstream') },
  'a cooldown of a limit': { definitions: all({ shares_cooldown: true }), now: (store) => throttled(store, 'limit') },
  'a cooldown that is over, and ramps': {
    now: async (store) => {
      await throttled(store, 'upstream');
      const ramps = await store.database.query(
        `update sluice.cooldowns set until = clock_timestamp() - interval '1 second' where ramp is not null returning 1`,
      );
      if (ramps.length !== 1) throw new Error('it does not ramp');
    },
  },
  'a cooldown of its partition': {
    definitions: (store) => store.putLimit('account', { limit: 50, per: 60, by_partition: true, upstreams: ['api'] }),
    now: (store) => throttled(store, 'upstream', 'acct'),
  },
  'a lane that is closed': {
    now: async ({ database }) => {
      await database.query(
        `update sluice.lanes set next_at = clock_timestamp() + interval '1 minute', closed_by = 'fuse'`,
      );
    },
  },
  'a group that is closed': {
    now: async ({ database }) => {
      await database.query(
        `update sluice.lane_groups set next_at = clock_timestamp() + interval '1 minute', closed_by = 'window'`,
      );
    },
  },
  'a lease that has run out': {
    now: async ({ database }) => {
      await database.query(`update sluice.workers set lease_expires_at = clock_timestamp() - interval '1 second'`);
    },
  },
  'a row of a window that another claimer holds': {
    definitions: all(),
    now: (store) => held(store, 'select 1 from sluice.rate_windows for no key update'),
  },
  'somebody who writes a cooldown': {
    now: (store) => held(store, `select pg_advisory_xact_lock(7305002, hashtext('api'))`),
  },
  'somebody who steers its limit': {
    definitions: all(),
    now: (store) => held(store, `select pg_advisory_xact_lock(7305003, hashtext('all'))`),
  },
  'something that has fallen due': {
    now: (store) => store.addJobs({ count: 1, runAt: `clock_timestamp() - interval '1 second'` }),
  },
  'bodies that are long': { items: many(2, { body: 'x'.repeat(32_767) }), now: none, unasked: true },
  'a time of its own': { items: [{ ...item, run_at: '2000-01-01T00:00:00Z' }], now: none, unasked: true },
  'an end that is near': {
    items: [{ ...item, expires_at: new Date(Date.now() + 500).toISOString() }],
    now: none,
    unasked: true,
  },
  'more than one lane': {
    items: [item, { idempotency_key: 'elsewhere', partition_key: 'other' }],
    now: none,
    unasked: true,
  },
  'more than a few': { items: many(17), now: none, unasked: true },
};

t.test('whatever is in their way leaves them to the claims, and charges nothing', async (t) => {
  for (const [name, { definitions = none, now, items = [item], unasked = false }] of Object.entries(obstacles)) {
    await t.test(name, async (t) => {
      const store = await useClaims(t, { max: 1 });
      await store.putUpstream('api');
      await store.putQueue('default', {});
      await definitions(store);
      // The windows have their rows by this.
      await makeLanes(store, 'acct', 'other');
      const undo = await now(store);
      const before = await rowsOf(store);
      await stopTheClock(store);
      const claimer = new Claimer(store.workerId);
      const posted = await post(store, items, claimer);
      await undo?.();
      t.match(posted, { kind: 'inserted', claimed: false });
      t.same(await rowsOf(store), { ...before, ready: before.ready + items.length });
      t.same(claimer.heard, unasked ? [] : ['unused']);
    });
  }
});

t.test('without any of that the same jobs are had, and as many and as long as may be', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await makeLanes(store, 'acct');
  await all({ limit: 26 })(store);
  await stopTheClock(store);
  const claimer = new Claimer(store.workerId);
  // The text of a body has its quotation marks.
  const long = many(2, { body: 'x'.repeat(32_766) });
  const lasting = many(1, { expires_at: new Date(Date.now() + 60_000).toISOString() });
  let posted = 0;
  for (const items of [[item], many(16), long, lasting, many(6)]) {
    await post(
      store,
      items.map((each) => ({ ...each, idempotency_key: `${posted++}` })),
      claimer,
    );
  }
  t.same(
    claimer.heard,
    Array.from({ length: 5 }, () => 'claimed'),
  );
  t.same(await rowsOf(store), { ready: 0, running: 26, used: 26 });
  t.ok(claimer.jobs.every(({ permitMs }) => permitMs === 40));
  await store.settle(claimer.jobs, neverLeft);
  t.equal((await rowsOf(store)).used, 0, 'a permit that was not used goes back');
});

t.test('a job of a lane that is not there yet is had as well', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  const claimer = new Claimer(store.workerId);
  t.match(await post(store, [item], claimer), { claimed: true });
  t.same(claimer.heard, ['unused', 'claimed'], 'it was asked for both ways');
});

t.test('intakes and claims at once take no more than a window has', async (t) => {
  const limit = 60;
  const store = await useClaims(t, { max: 8 });
  await store.putUpstream('api');
  await makeLanes(store, undefined);
  await store.putLimit('all', { limit, per: 600, upstreams: ['api'] });
  const taken: string[] = [];
  let posted = 0;
  const intake = async () => {
    const claimer = new Claimer(await newWorker(store.database));
    for (let n = 0; n < 25; n += 1) {
      posted += 1;
      await post(store, [{ idempotency_key: `job-${posted}` }], claimer);
    }
    taken.push(...claimer.jobs.map(({ jobId }) => jobId));
    return claimer.jobs.length;
  };
  let over = false;
  const claims = async () => {
    const worker = await newWorker(store.database);
    while (!over) taken.push(...(await store.claim(1, worker)).jobs.map(({ jobId }) => jobId));
  };
  const claiming = [claims(), claims()];
  const byIntake = await Promise.all([intake(), intake(), intake(), intake()]);
  over = true;
  await Promise.all(claiming);
  t.ok(
    byIntake.some((count) => count > 0),
    'some were had at their intake',
  );
  t.equal(new Set(taken).size, taken.length, 'none twice');
  await store.database.query('update sluice.lane_groups set next_at = to_timestamp(0)');
  taken.push(...(await store.claimAll(10)).map(({ jobId }) => jobId));
  t.equal(taken.length, limit, 'all that the window has, and no more');
  t.same(await rowsOf(store), { ready: 100 - limit, running: limit, used: limit });
});

t.test('what has expired by the clock of the store is left to the claims, whatever the process believes', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await makeLanes(store, 'acct');
  const admitted = (seconds: number) =>
    store.database.query(
      `select 1 from sluice.lanes l cross join lateral sluice.claim_at_intake($1, l.id, 1,
         clock_timestamp() + make_interval(secs => $2), clock_timestamp(), clock_timestamp())`,
      [store.workerId, seconds],
    );
  t.equal((await admitted(-1)).length, 0);
  t.equal((await admitted(60)).length, 1);
});

t.test('no slot is kept while a connection is waited for', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await makeLanes(store, 'acct');
  const batch = await batchOf(store.database, [item]);
  const claimer = new Claimer(store.workerId);
  let posting: Promise<InsertedBatch> | undefined;
  await inTransaction(store.database, async (client) => {
    posting = insertBatch(store.database, batch, claimer);
    await client.query('select 1');
    t.same(claimer.reserved, []);
  });
  t.match(await posting, { claimed: true });
});

t.test("where another's commit was waited for nothing is had: the permits would be half over", async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.putLimit('all', { limit: 100, per: 60, upstreams: ['api'] });
  await makeLanes(store, 'acct');
  const { used } = await rowsOf(store);
  const key = `insert into sluice.idempotency_keys (tenant, key, fingerprint, job_id) values ('default', 'new', '', gen_random_uuid())`;
  const requestKey = `insert into sluice.batches (id, tenant, request_key, total, accepted, duplicate, conflict, rejected)
                      values (gen_random_uuid(), 'default', 'request', 0, 0, 0, 0, 0)`;
  for (const [items, rival] of [
    [[item], key],
    [many(2), requestKey],
  ] as const) {
    const claimer = new Claimer(store.workerId);
    let posting: Promise<InsertedBatch> | undefined;
    const failing = inTransaction(store.database, async (client) => {
      await client.query(rival);
      posting = post(store, items, claimer, 'request');
      await waitsForALock(store);
      await client.query('select pg_sleep(0.03)');
      throw new Error('rolled back');
    });
    await t.rejects(failing, /rolled back/);
    t.match(await posting, { kind: 'inserted', claimed: false });
    t.same(claimer.heard, ['unused']);
    await store.database.query('update sluice.batches set request_key = null');
  }
  t.same(await rowsOf(store), { ready: 3, running: 0, used });
});

t.test('where nobody knows whether it is committed, the worker hears so', async (t) => {
  const store = await useClaims(t, { faultPoints: faultPointsOf('intake.after_commit=pass,08006*2') });
  await store.putUpstream('api');
  await makeLanes(store, 'acct');
  for (const items of [[item], many(2)]) {
    const claimer = new Claimer(store.workerId);
    await t.rejects(post(store, items, claimer), DatabaseUnavailableError);
    t.same(claimer.heard, ['lost']);
  }
  t.equal((await rowsOf(store)).running, 3, 'it was');
});
