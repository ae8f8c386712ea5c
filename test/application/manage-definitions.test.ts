import t, { type Test } from 'tap';
import {
  applyConfigFile,
  deleteDefinition,
  getDefinition,
  listDefinitions,
  putDefinition,
  setPaused,
} from '../../src/application/manage-definitions.ts';
import { ProblemError } from '../../src/domain/errors.ts';
import { permitMs } from '../../src/domain/rate-window.ts';
import type { Database } from '../../src/postgres/database.ts';
import { systemClock } from '../../src/system/clock.ts';
import { createTestDatabase } from '../support/database.ts';
import { definitionDependencies } from '../support/definitions.ts';
import { createJob, createLane, jobRowsAlone, type LiveState } from '../support/job-rows.ts';

const mail = { base_url: 'https://mail.example.test' };

async function setup(t: Test) {
  const { database } = await createTestDatabase(t, { breaks: jobRowsAlone });
  const deps = definitionDependencies(database);
  await putDefinition(deps, 'upstreams', 'mail', mail);
  return { database, deps };
}

const problem = (code: string, ...faults: string[]) => ({
  name: 'ProblemError',
  code,
  ...(faults.length === 0 ? {} : { errors: faults.map((fault) => ({ code: fault })) }),
});

t.test('put creates, then replaces; what is left out is the default again', async (t) => {
  const { deps } = await setup(t);
  const first = await putDefinition(deps, 'queues', 'sms', { ordering: 'fifo' });
  t.equal(first.created, true);
  t.same(first.stored.definition, { paused: false, ordering: 'fifo' });
  const second = await putDefinition(deps, 'queues', 'sms', {});
  t.equal(second.created, false);
  t.same(second.stored.definition, { paused: false, ordering: 'none' });
  t.same((await getDefinition(deps, 'queues', 'sms')).definition, second.stored.definition);
});

t.test('put refuses with every fault and changes nothing', async (t) => {
  const { deps, database } = await setup(t);
  const version = () => database.query('select version from sluice.definition_version');
  const before = await version();
  await t.rejects(
    putDefinition(deps, 'rate_limits', 'l', { limit: -1, per: 0, upstreams: ['mail'] }),
    problem('invalid_definition', 'invalid_limit', 'invalid_period'),
  );
  await t.rejects(
    putDefinition(deps, 'rate_limits', 'l', { limit: 1, upstreams: ['mial'] }),
    problem('invalid_definition', 'unknown_upstream'),
  );
  await t.rejects(putDefinition(deps, 'queues', 'BAD', {}), problem('invalid_definition', 'invalid_name'));
  await t.rejects(
    putDefinition(deps, 'upstreams', 'u', { ...mail, headers: { a: '$' + '{PATH}' } }),
    problem('invalid_definition', 'secret_not_allowed'),
  );
  await t.rejects(
    putDefinition(deps, 'upstreams', 'u', { base_url: 'http://127.0.0.1' }),
    problem('invalid_definition', 'base_url_private'),
  );
  for (const nothing of [null, undefined, [], 'x']) {
    await t.rejects(putDefinition(deps, 'queues', 'q', nothing), problem('invalid_definition'));
  }
  t.same(await version(), before);
  await t.rejects(getDefinition(deps, 'queues', 'q'), problem('not_found'));
});

t.test('a change answers only when nothing starts any more that was claimed before it', async (t) => {
  const { deps } = await setup(t);
  const slept: number[] = [];
  const clock = {
    ...systemClock,
    sleep: async (ms: number) => {
      slept.push(ms);
    },
  };
  await putDefinition({ ...deps, clock }, 'rate_limits', 'l', { limit: 1, upstreams: ['mail'] });
  t.same(slept, [permitMs]);
  await deleteDefinition({ ...deps, clock }, 'rate_limits', 'l');
  t.same(slept, [permitMs, permitMs]);
  await putDefinition({ ...deps, clock }, 'queues', 'q', {});
  t.same(slept, [permitMs, permitMs, permitMs], 'of a queue or an upstream as well');
});

for (const state of ['ready', 'running', 'scheduled', 'held'] as const satisfies LiveState[]) {
  t.test(`an upstream and a queue with a ${state} job cannot be deleted`, async (t) => {
    const { deps, database } = await setup(t);
    await putDefinition(deps, 'queues', 'sms', {});
    await putDefinition(deps, 'queues', 'idle', {});
    await putDefinition(deps, 'upstreams', 'idle', mail);
    const lane = await createLane(database, 'sms', 'mail');
    const job = await createJob(database, lane, state);
    await t.rejects(deleteDefinition(deps, 'upstreams', 'mail'), problem('in_use'));
    await t.rejects(deleteDefinition(deps, 'queues', 'sms'), problem('in_use'));
    await deleteDefinition(deps, 'upstreams', 'idle');
    await deleteDefinition(deps, 'queues', 'idle');
    for (const table of ['ready_jobs', 'running_jobs', 'parked_jobs']) {
      await database.query(`delete from sluice.${table} where job_id = $1`, [job]);
    }
    await deleteDefinition(deps, 'upstreams', 'mail');
    await deleteDefinition(deps, 'queues', 'sms');
    await t.rejects(getDefinition(deps, 'upstreams', 'mail'), problem('not_found'));
    await t.rejects(deleteDefinition(deps, 'upstreams', 'mail'), problem('not_found'));
  });
}

t.test('a rate limit can always be deleted, keeps its row, and is new again when it is put', async (t) => {
  const { deps, database } = await setup(t);
  await putDefinition(deps, 'rate_limits', 'l', { limit: 1, upstreams: ['mail'] });
  await createJob(database, await createLane(database, 'default', 'mail'), 'ready');
  await deleteDefinition(deps, 'rate_limits', 'l');
  await t.rejects(getDefinition(deps, 'rate_limits', 'l'), problem('not_found'));
  await t.rejects(deleteDefinition(deps, 'rate_limits', 'l'), problem('not_found'));
  t.same((await listDefinitions(deps, 'rate_limits', { after: '', limit: 10 })).items, []);
  t.equal((await database.query('select 1 from sluice.rate_limits where deleted_at is not null')).length, 1);
  t.equal((await putDefinition(deps, 'rate_limits', 'l', { limit: 2, upstreams: ['mail'] })).created, true);
  t.equal((await getDefinition(deps, 'rate_limits', 'l')).definition.limit, 2);
});

t.test('lists go by name, in pages', async (t) => {
  const { deps } = await setup(t);
  for (const name of ['b', 'a-1', 'a.1', 'a1']) await putDefinition(deps, 'queues', name, {});
  const names: string[] = [];
  let after: string | null = '';
  let pages = 0;
  while (after !== null) {
    const page: Awaited<ReturnType<typeof listDefinitions>> = await listDefinitions(deps, 'queues', {
      after,
      limit: 2,
    });
    names.push(...page.items.map((item) => item.name));
    after = page.next;
    pages += 1;
  }
  t.same(names, ['a-1', 'a.1', 'a1', 'b', 'default']);
  t.equal(pages, 3);
  t.equal((await listDefinitions(deps, 'queues', { after: '', limit: 5 })).next, null, 'exactly full: no empty page');
});

t.test('pause and resume are kept, and are no change when nothing changes', async (t) => {
  const { deps, database } = await setup(t);
  const version = async () =>
    (await database.query<{ version: number }>('select version from sluice.definition_version'))[0]?.version;
  t.equal((await setPaused(deps, 'upstreams', 'mail', true)).definition.paused, true);
  const paused = await version();
  t.equal((await setPaused(deps, 'upstreams', 'mail', true)).definition.paused, true);
  t.equal(await version(), paused);
  t.match((await setPaused(deps, 'upstreams', 'mail', false)).definition, { paused: false, ...mail });
  t.ok((await version())! > paused!);
  await t.rejects(setPaused(deps, 'queues', 'none', true), problem('not_found'));
});

// ------------------------------------------------------------------- jobs that were sent before the upstream changed

async function stateOf(database: Database, job: string) {
  const [row] = await database.query<{ state: string }>(
    `select 'ready' as state from sluice.ready_jobs where job_id = $1 union all
     select 'running' from sluice.running_jobs where job_id = $1 union all
     select concat_ws(' ', state, reason) from sluice.parked_jobs where job_id = $1`,
    [job],
  );
  return row?.state;
}

const moves: [string, object][] = [
  ['another base_url', { base_url: 'https://other.example.test' }],
  ['another path in base_url', { base_url: 'https://mail.example.test/v2' }],
  ['another idempotency_header', { ...mail, idempotency_header: 'X-Key' }],
  ['no idempotency_header', { ...mail, idempotency_header: null }],
];
for (const [what, definition] of moves) {
  t.test(`${what} holds jobs that may have had an effect, and only those of this upstream`, async (t) => {
    const { deps, database } = await setup(t);
    await putDefinition(deps, 'upstreams', 'pay', mail);
    const lanes = [
      await createLane(database, 'default', 'mail'),
      await createLane(database, 'default', 'mail', 'acct'),
    ];
    const elsewhere = await createLane(database, 'default', 'pay');
    const jobs = new Map<string, string>();
    let seq = 0;
    for (const lane of lanes) {
      for (const state of ['ready', 'running', 'scheduled', 'held'] as const) {
        for (const sent of [true, false]) {
          seq += 1;
          const after =
            state === 'held' ? 'held outcome_unknown' : sent && state !== 'running' ? 'held upstream_changed' : state;
          jobs.set(await createJob(database, lane, state, { sent, seq }), after);
        }
      }
    }
    jobs.set(await createJob(database, elsewhere, 'ready', { sent: true }), 'ready');
    await putDefinition(deps, 'upstreams', 'mail', definition);
    for (const [job, state] of jobs) t.equal(await stateOf(database, job), state);
    const [held] = await database.query(
      `select calls, attempts_used, due_at, first_sent_at is not null as sent from sluice.parked_jobs
        where reason = 'upstream_changed' and attempts_used > 0 limit 1`,
    );
    t.same(held, { calls: 3, attempts_used: 2, due_at: null, sent: true }, 'with its ledger');
  });
}

t.test('a change that leaves the target as it is holds nothing', async (t) => {
  const { deps, database } = await setup(t);
  const job = await createJob(database, await createLane(database, 'default', 'mail'), 'ready', { sent: true });
  await putDefinition(deps, 'upstreams', 'mail', { ...mail, timeout_ms: 1000 });
  await putDefinition(deps, 'upstreams', 'mail', {
    base_url: 'https://MAIL.example.test:443/',
    idempotency_header: 'idempotency-key',
  });
  await setPaused(deps, 'upstreams', 'mail', true);
  t.equal(await stateOf(database, job), 'ready');
});

// ------------------------------------------------------------------- the config file

const file = (revision: number | undefined, timeout_ms: number) => ({
  ...(revision === undefined ? {} : { revision }),
  upstreams: { pay: { ...mail, timeout_ms } },
  rate_limits: { pay: { limit: 5, upstreams: ['pay', 'mail'] } },
  queues: { default: { ordering: 'fifo' } },
});
const timeoutOf = async (deps: Awaited<ReturnType<typeof setup>>['deps']) =>
  (await getDefinition(deps, 'upstreams', 'pay')).definition.timeout_ms;

t.test('a config file creates what is missing; only a higher revision overwrites', async (t) => {
  const { deps } = await setup(t);
  t.same(await applyConfigFile(deps, file(1, 1000)), {
    created: ['/upstreams/pay', '/rate_limits/pay'],
    overwritten: ['/queues/default'],
    kept: [],
  });
  t.equal((await getDefinition(deps, 'queues', 'default')).definition.ordering, 'fifo');
  t.equal((await applyConfigFile(deps, file(1, 2000))).kept.length, 3);
  t.equal(await timeoutOf(deps), 1000);
  await applyConfigFile(deps, file(undefined, 2000));
  t.equal(await timeoutOf(deps), 1000, 'no revision is 0');
  await applyConfigFile(deps, file(2, 2000));
  t.equal(await timeoutOf(deps), 2000);
  await applyConfigFile(deps, file(1, 3000));
  t.equal(await timeoutOf(deps), 2000, 'never back');
});

t.test('a file without a revision may set the queue default of a new database, once', async (t) => {
  const { deps } = await setup(t);
  await applyConfigFile(deps, { queues: { default: { ordering: 'fifo' } } });
  t.equal((await getDefinition(deps, 'queues', 'default')).definition.ordering, 'fifo');
  await applyConfigFile(deps, { queues: { default: {} } });
  t.equal((await getDefinition(deps, 'queues', 'default')).definition.ordering, 'fifo');
});

t.test('a restart with the same file undoes nothing that an operator did', async (t) => {
  const { deps } = await setup(t);
  await applyConfigFile(deps, file(7, 1000));
  await putDefinition(deps, 'upstreams', 'pay', { ...mail, timeout_ms: 555 });
  await setPaused(deps, 'queues', 'default', true);
  // Put by hand, then written into the file too without a new revision.
  await putDefinition(deps, 'queues', 'late', { paused: true });
  await applyConfigFile(deps, { ...file(7, 1000), queues: { default: {}, late: {} } });
  t.equal(await timeoutOf(deps), 555);
  t.equal((await getDefinition(deps, 'queues', 'default')).definition.paused, true);
  t.equal((await getDefinition(deps, 'queues', 'late')).definition.paused, true);
  await applyConfigFile(deps, file(8, 1000));
  t.equal(await timeoutOf(deps), 1000, 'a new revision is meant');
});

t.test('a file may refer to what is stored; one with a fault changes nothing and says everything', async (t) => {
  const { deps } = await setup(t);
  const bad = { queues: { ok: {} }, rate_limits: { a: { limit: 1, upstreams: ['mail', 'gone'] }, b: { limit: 1 } } };
  const error = await applyConfigFile(deps, bad).catch((each: unknown) => each);
  t.type(error, ProblemError);
  t.match(error, { code: 'invalid_definition' });
  t.same(
    (error as ProblemError).errors.map(({ pointer, code }) => `${pointer} ${code}`),
    ['/rate_limits/a/upstreams/1 unknown_upstream', '/rate_limits/b limit_covers_nothing'],
  );
  await t.rejects(getDefinition(deps, 'queues', 'ok'), problem('not_found'));
  for (const nothing of [null, [], 'x', 1])
    await t.rejects(applyConfigFile(deps, nothing), problem('invalid_definition'));
  t.same(await applyConfigFile(deps, {}), { created: [], overwritten: [], kept: [] });
});

t.test('a file that changes a target holds jobs like a put does', async (t) => {
  const { deps, database } = await setup(t);
  const job = await createJob(database, await createLane(database, 'default', 'mail'), 'ready', { sent: true });
  await applyConfigFile(deps, { revision: 1, upstreams: { mail: { base_url: 'https://other.example.test' } } });
  t.equal(await stateOf(database, job), 'held upstream_changed');
});

t.test('replicas that start at once with one file agree', async (t) => {
  const { deps } = await setup(t);
  const reports = await Promise.all(Array.from({ length: 5 }, () => applyConfigFile(deps, file(1, 1000))));
  t.equal(reports.flatMap((report) => report.created).length, 2);
  t.equal(reports.flatMap((report) => report.kept).length, 12);
});

t.test('everything works with one connection', async (t) => {
  const { database } = await createTestDatabase(t, { max: 1 });
  const deps = definitionDependencies(database);
  await Promise.all([
    putDefinition(deps, 'upstreams', 'mail', mail),
    putDefinition(deps, 'queues', 'a', {}),
    applyConfigFile(deps, { queues: { b: {} } }),
    listDefinitions(deps, 'queues', { after: '', limit: 1 }),
  ]);
  t.equal((await listDefinitions(deps, 'queues', { after: '', limit: 10 })).items.length, 3);
});
