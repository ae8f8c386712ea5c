/**
 * Brings a database to the state this version of the code needs: the migrations in `drizzle/`, the stored functions whose
 * text has changed, and the queue that must always be there. Any number of processes may do so at once: an advisory lock, held on the very connection that
 * migrates, lets one through at a time, and is gone with the connection if that process dies.
 */
import { createHash } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { drizzle } from 'drizzle-orm/node-postgres';
import { migrate as runMigrations } from 'drizzle-orm/node-postgres/migrator';
import pg from 'pg';
import { queueSchema } from '../domain/definitions.ts';
import { defaultQueue } from '../domain/submission.ts';
import type { Logger } from '../system/logger.ts';
import { asUnavailable, queryRows, sessionOptions } from './database.ts';
import { definitionsLock } from './lane-groups.ts';
import { storedFunctions } from './stored-functions.ts';

/** The same depth from `src/postgres` and from `dist/postgres`. */
const migrationsFolder = fileURLToPath(new URL('../../drizzle', import.meta.url));
/** Any fixed number will do, as long as nobody changes it. */
const migrationLock = 7305000;

/**
 * Migrates; waits for others who do. Throws DatabaseUnavailableError where PostgreSQL cannot be used, and the driver's
 * error where a migration fails (nothing of it is kept then).
 */
export async function migrate(connectionString: string, logger: Logger): Promise<void> {
  // No time limits: a long migration, or a wait for somebody else's, is no fault.
  const client = new pg.Client({
    ...sessionOptions(connectionString, 'sluice migrate'),
    statement_timeout: 0,
    query_timeout: 0,
  });
  client.on('error', (err) => logger.debug({ err }, 'the connection that migrates was lost'));
  try {
    await client.connect();
    await client.query('SELECT pg_advisory_lock($1)', [migrationLock]);
    await runMigrations(drizzle(client), { migrationsFolder, migrationsSchema: 'sluice_migrations' });
    const installed = await installStoredFunctions(client, storedFunctions);
    await ensureDefaultQueue(client);
    logger.debug({ installed }, 'the database is migrated');
  } catch (error) {
    throw asUnavailable(error) ?? error;
  } finally {
    // Ends the session, and the lock with it.
    await client.end().catch(() => undefined);
  }
}

/**
 * Installs, in one transaction, all functions anew where the text of any is not the installed one; gives the names whose
 * text was another. All, because they call each other and share helpers, and CREATE OR REPLACE can neither change a return
 * type nor take away a function that is no longer there. A later generation is left as it is: a process of an older version
 * that starts during an upgrade must not take the functions back.
 */
export async function installStoredFunctions(
  client: pg.Client,
  functions: readonly { name: string; sql: string }[],
  generation = functionsGeneration,
): Promise<string[]> {
  const rows = await queryRows<{ name: string; sha256: string }>(
    client,
    'SELECT name, sha256 FROM sluice.stored_functions',
    undefined,
    undefined,
  );
  const known = new Map(rows.map((row) => [row.name, row.sha256]));
  if (Number(known.get(generationName) ?? 0) > generation) return [];
  const texts = functions.map(({ name, sql }) => ({
    name,
    sql,
    sha256: createHash('sha256').update(sql).digest('hex'),
  }));
  const changed = texts.filter(({ name, sha256 }) => known.get(name) !== sha256);
  const gone = [...known.keys()].filter((name) => name !== generationName && !texts.some((text) => text.name === name));
  if (changed.length === 0 && gone.length === 0) return [];

  await client.query('BEGIN');
  await dropFunctions(client);
  await client.query('DELETE FROM sluice.stored_functions');
  for (const { sql } of texts) await client.query(sql);
  await client.query(
    'INSERT INTO sluice.stored_functions (name, sha256) SELECT * FROM unnest($1::text[], $2::text[])',
    [
      [...texts.map(({ name }) => name), generationName],
      [...texts.map(({ sha256 }) => sha256), String(generation)],
    ],
  );
  await client.query('COMMIT');
  return changed.map(({ name }) => name);
}

/**
 * Items that name no queue go to `default`, so without it every one of them would be rejected. The API deletes it never; a
 * restored or hand-edited database may lack it. Its revision is below that of any file, which may so declare it otherwise.
 */
async function ensureDefaultQueue(client: pg.Client): Promise<void> {
  const [row] = await queryRows<{ name: string }>(
    client,
    'SELECT name FROM sluice.queues WHERE name = $1',
    [defaultQueue],
    undefined,
  );
  if (row !== undefined) return;
  // Lane groups say of a queue without a row what they say of this one, so they need not be worked out again.
  await client.query('BEGIN');
  await client.query('SELECT pg_advisory_xact_lock($1)', [definitionsLock]);
  await client.query(
    'INSERT INTO sluice.queues (name, definition, revision) VALUES ($1, $2::jsonb, -1) ON CONFLICT (name) DO NOTHING',
    [defaultQueue, JSON.stringify(queueSchema.parse({}))],
  );
  await client.query('UPDATE sluice.definition_version SET version = version + 1');
  await client.query("SELECT pg_notify('sluice_definitions', ''), pg_notify('sluice_work', '')");
  await client.query('COMMIT');
}

/** Grows by one with each release that changes a stored function. */
const functionsGeneration = 4;
/** Its row among those of the functions' texts. */
const generationName = '(generation)';

/** Drops all functions of the schema; it has no others than these. */
async function dropFunctions(client: pg.Client): Promise<void> {
  const [row] = await queryRows<{ signatures: string | null }>(
    client,
    `SELECT string_agg(p.oid::regprocedure::text, ', ') AS signatures FROM pg_proc p
     WHERE p.pronamespace = 'sluice'::regnamespace AND p.prokind = 'f'`,
    undefined,
    undefined,
  );
  if (row?.signatures) await client.query(`DROP FUNCTION ${row.signatures}`);
}
