import t, { type Test } from 'tap';
import { DefinitionStore } from '../../src/application/definitions.ts';
import { putDefinition, setPaused } from '../../src/application/manage-definitions.ts';
import { createTestDatabase } from '../support/database.ts';
import { definitionDependencies } from '../support/definitions.ts';

async function setup(t: Test) {
  const { database } = await createTestDatabase(t);
  const statements: string[] = [];
  const counted: typeof database = {
    ...database,
    query: (text, values, name) => {
      statements.push(text);
      return database.query(text, values, name);
    },
  };
  return { database, deps: definitionDependencies(database), store: new DefinitionStore(counted), statements };
}

const mail = { base_url: 'https://mail.example.test' };

t.test('a new database has the queue default and nothing else', async (t) => {
  const { store } = await setup(t);
  const { upstreams, rateLimits, queues } = await store.current();
  t.same([...queues], [['default', { paused: false, ordering: 'none' }]]);
  t.equal(upstreams.size + rateLimits.size, 0);
});

t.test('every definition comes back with all its fields', async (t) => {
  const { deps, store } = await setup(t);
  const limit = {
    limit: 7,
    per: 60,
    algorithm: 'token_bucket',
    burst: 3,
    slack_ms: 0,
    max_in_flight: 9,
    by_partition: true,
    shares_cooldown: true,
    scope: 'fleet',
    upstreams: ['mail'],
    queues: ['default'],
  };
  await putDefinition(deps, 'upstreams', 'mail', { ...mail, headers: { 'X-Key': 'v' }, idempotency_header: null });
  await putDefinition(deps, 'rate_limits', 'l', limit);
  await putDefinition(deps, 'rate_limits', 'open', { limit: null, queues: ['default'] });
  const { upstreams, rateLimits } = await store.current();
  t.same(rateLimits.get('l'), limit);
  t.equal(rateLimits.get('open')?.limit, null);
  t.match(upstreams.get('mail'), {
    ...mail,
    headers: { 'X-Key': 'v' },
    idempotency_header: null,
    retry: { max_attempts: 5, max_throttles: 100 },
    fuse: { statuses: [401] },
    key_ttl_s: 86400,
  });
});

t.test('current() sees each change, and reads everything only when something has changed', async (t) => {
  const { deps, store, statements } = await setup(t);
  const first = await store.current();
  statements.length = 0;
  t.equal(await store.current(), first, 'the same object');
  t.equal(statements.length, 1);
  await putDefinition(deps, 'upstreams', 'mail', mail);
  const second = await store.current();
  t.ok(second.version > first.version);
  t.ok(second.upstreams.has('mail'));
  await setPaused(deps, 'upstreams', 'mail', true);
  t.equal((await store.current()).upstreams.get('mail')?.paused, true);
});

t.test('atLeast() asks nobody where memory is new enough', async (t) => {
  const { deps, store, statements } = await setup(t);
  const { version } = await store.current();
  statements.length = 0;
  t.equal((await store.atLeast(version)).version, version);
  t.equal(statements.length, 0);
  await putDefinition(deps, 'upstreams', 'mail', mail);
  t.equal((await store.atLeast(version)).version, version, 'still from memory');
  t.ok((await store.atLeast(version + 1)).upstreams.has('mail'));
  t.equal(statements.length, 1);
});

t.test('callers at the same time share one read, and a version that never was does not hang', async (t) => {
  const { store, statements } = await setup(t);
  const all = await Promise.all([store.atLeast(1), store.atLeast(1), store.atLeast(1)]);
  t.equal(new Set(all).size, 1);
  t.equal(statements.length, 1);
  t.equal((await store.atLeast(1_000_000)).version, all[0].version);
});

t.test('a database that was set back is believed', async (t) => {
  const { database, deps, store } = await setup(t);
  await putDefinition(deps, 'upstreams', 'mail', mail);
  await store.current();
  await database.query('delete from sluice.upstreams');
  await database.query('update sluice.definition_version set version = 0');
  t.equal((await store.current()).upstreams.size, 0);
});

t.test('rows of other versions of the service can be read', async (t) => {
  const { database, store } = await setup(t);
  await database.query(`insert into sluice.upstreams (name, definition) values ('old', $1), ('new', $2)`, [
    JSON.stringify(mail),
    JSON.stringify({ ...mail, a_field_of_tomorrow: 1 }),
  ]);
  const { upstreams } = await store.current();
  t.equal(upstreams.get('old')?.timeout_ms, 15_000);
  t.notOk('a_field_of_tomorrow' in upstreams.get('new')!);
});
