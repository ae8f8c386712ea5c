import { readdirSync } from 'node:fs';
import pg from 'pg';
import t, { type Test } from 'tap';
import { DatabaseUnavailableError } from '../../src/postgres/database.ts';
import { installStoredFunctions, migrate } from '../../src/postgres/migrate.ts';
import { storedFunctions } from '../../src/postgres/stored-functions.ts';
import { createLogger } from '../../src/system/logger.ts';
import { createEmptyDatabase } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';

const logger = createLogger('silent');
const migrationLock = 7305000;

async function setup(t: Test) {
  const { connectionString } = await createEmptyDatabase(t);
  const client = new pg.Client({ connectionString });
  client.on('error', () => undefined);
  await client.connect();
  t.teardown(() => client.end());
  const rows = async <R extends pg.QueryResultRow>(text: string) => (await client.query<R>(text)).rows;
  return { connectionString, client, rows };
}

t.test('five that start at once on an empty database all end well, and each migration is made once', async (t) => {
  const { connectionString, rows } = await setup(t);
  await Promise.all(Array.from({ length: 5 }, () => migrate(connectionString, logger)));
  const files = readdirSync('drizzle').filter((name) => name.endsWith('.sql'));
  t.same(await rows('SELECT count(*)::int AS n FROM sluice_migrations.__drizzle_migrations'), [{ n: files.length }]);
  t.same(
    (await rows<{ name: string }>('SELECT name FROM sluice.stored_functions')).map((row) => row.name).sort(),
    ['(generation)', ...storedFunctions.map((each) => each.name)].sort(),
  );

  t.test('what must always be there is there', async (t) => {
    t.same(await rows(`SELECT name, definition FROM sluice.queues`), [
      { name: 'default', definition: { paused: false, ordering: 'none' } },
    ]);
    t.same(await rows('SELECT count(*)::int AS n FROM sluice.definition_version'), [{ n: 1 }]);
  });

  t.test('every table that is written all the time is vacuumed by rules of its own', async (t) => {
    const tuned = await rows<{ name: string }>(
      `SELECT relname AS name FROM pg_class
       WHERE relnamespace = 'sluice'::regnamespace AND reloptions::text LIKE '%autovacuum_vacuum_threshold%' ORDER BY 1`,
    );
    t.same(
      tuned.map((row) => row.name),
      [
        'claims_ahead',
        'cooldowns',
        'lane_groups',
        'lanes',
        'parked_jobs',
        'rate_windows',
        'ready_jobs',
        'running_jobs',
        'workers',
      ],
    );
  });

  t.test('once more changes nothing', async (t) => {
    const before = await rows('SELECT version FROM sluice.definition_version');
    await rows(`UPDATE sluice.queues SET definition = '{"paused":true,"ordering":"none"}'`);
    await migrate(connectionString, logger);
    t.same(await rows('SELECT count(*)::int AS n FROM sluice_migrations.__drizzle_migrations'), [{ n: files.length }]);
    t.same(await rows('SELECT version FROM sluice.definition_version'), before);
    t.same(await rows('SELECT name, definition FROM sluice.queues'), [
      { name: 'default', definition: { paused: true, ordering: 'none' } },
    ]);
  });

  t.test('the queue `default` is made again where it is missing, and replicas that run learn of it', async (t) => {
    const [before] = await rows<{ version: string }>('SELECT version FROM sluice.definition_version');
    await rows('DELETE FROM sluice.queues');
    await Promise.all([migrate(connectionString, logger), migrate(connectionString, logger)]);
    t.match(await rows('SELECT name, definition, revision FROM sluice.queues'), [
      { name: 'default', definition: { paused: false, ordering: 'none' }, revision: -1 },
    ]);
    t.same(await rows('SELECT version FROM sluice.definition_version'), [
      { version: String(Number(before!.version) + 1) },
    ]);
  });
});

t.test('it waits for another that migrates, and goes on when that one is killed', async (t) => {
  const { connectionString, rows } = await setup(t);
  const holder = new pg.Client({ connectionString });
  holder.on('error', () => undefined);
  await holder.connect();
  await holder.query('SELECT pg_advisory_lock($1)', [migrationLock]);

  const migrated = migrate(connectionString, logger);
  const [waiting] = await eventually('it to wait for the lock', async () => {
    const found = await rows<{ holder: number }>(
      `SELECT (pg_blocking_pids(pid))[1] AS holder FROM pg_stat_activity
       WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = 'advisory'`,
    );
    return found.length === 1 && found;
  });
  t.same(await rows(`SELECT 1 FROM pg_namespace WHERE nspname = 'sluice'`), [], 'nothing is done meanwhile');
  await rows(`SELECT pg_terminate_backend(${waiting?.holder})`);
  await migrated;
  t.same(await rows('SELECT count(*)::int AS n FROM sluice.definition_version'), [{ n: 1 }]);
});

t.test('a server that is not there is unavailable', async (t) => {
  await t.rejects(migrate('postgresql://u:p@127.0.0.1:1/x', logger), DatabaseUnavailableError);
});

t.test('stored functions', async (t) => {
  const { connectionString, client, rows } = await setup(t);
  await migrate(connectionString, logger);
  const first = {
    name: 'test_answer',
    sql: `CREATE OR REPLACE FUNCTION sluice.test_answer(n integer) RETURNS integer LANGUAGE sql AS 'SELECT n'`,
  };
  t.same(await installStoredFunctions(client, [first]), ['test_answer']);
  t.same(await installStoredFunctions(client, [first]), [], 'the same text is not installed again');

  t.test('one that takes and gives something else takes the place of the old one', async (t) => {
    const second = {
      name: 'test_answer',
      sql: `CREATE OR REPLACE FUNCTION sluice.test_answer(n text) RETURNS text LANGUAGE sql AS 'SELECT n || ''!'''`,
    };
    t.same(await installStoredFunctions(client, [second]), ['test_answer']);
    t.same(await rows(`SELECT sluice.test_answer('1') AS n`), [{ n: '1!' }]);
    t.same(await rows(`SELECT count(*)::int AS n FROM pg_proc WHERE proname = 'test_answer'`), [{ n: 1 }]);
  });

  t.test('a helper that is no longer there goes, and an older version takes nothing back', async (t) => {
    const both = {
      name: 'test_answer',
      sql: `${first.sql}; CREATE FUNCTION sluice.test_helper() RETURNS integer LANGUAGE sql AS 'SELECT 1'`,
    };
    await installStoredFunctions(client, [both]);
    await installStoredFunctions(client, [first]);
    t.same(await rows(`SELECT 1 FROM pg_proc WHERE proname = 'test_helper'`), []);
    await installStoredFunctions(client, [both], 7);
    t.same(await installStoredFunctions(client, [first], 6), []);
    t.equal((await rows(`SELECT 1 FROM pg_proc WHERE proname = 'test_helper'`)).length, 1);
    t.same(await installStoredFunctions(client, [first], 7), ['test_answer'], 'the same generation may');
    t.same(await installStoredFunctions(client, [first], 8), []);
    await client.query('DELETE FROM sluice.stored_functions');
  });

  t.test('if one of them is wrong, none is installed', async (t) => {
    const broken = [
      { name: 'test_new', sql: `CREATE FUNCTION sluice.test_new() RETURNS integer LANGUAGE sql AS 'SELECT 1'` },
      { name: 'test_wrong', sql: 'CREATE FUNCTION sluice.test_wrong() RETURNS nonsense' },
    ];
    await t.rejects(installStoredFunctions(client, broken));
    await client.query('ROLLBACK');
    t.same(await rows(`SELECT 1 FROM pg_proc WHERE proname = 'test_new'`), []);
  });
});
