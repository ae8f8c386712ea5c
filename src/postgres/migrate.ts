/**
 * Brings a database to the state this version of the code needs: the migrations in `drizzle/`, then the stored functions
 * whose text has changed. Any number of processes may do so at once: an advisory lock, held on the very connection that
 * migrates, lets one through at a time, and is gone with the connection if that process dies.
 */
import { createHash } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { drizzle } from 'drizzle-orm/node-postgres';
import { migrate as runMigrations } from 'drizzle-orm/node-postgres/migrator';
import pg from 'pg';
import type { Logger } from '../system/logger.ts';
import { asUnavailable, queryRows, sessionOptions } from './database.ts';
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
    logger.debug({ installed }, 'the database is migrated');
  } catch (error) {
    throw asUnavailable(error) ?? error;
  } finally {
    // Ends the session, and the lock with it.
    await client.end().catch(() => undefined);
  }
}

/** Installs, in one transaction, the functions whose text is not the one that is installed; gives their names. */
export async function installStoredFunctions(
  client: pg.Client,
  functions: readonly { name: string; sql: string }[],
): Promise<string[]> {
  const rows = await queryRows<{ name: string; sha256: string }>(
    client,
    'SELECT name, sha256 FROM sluice.stored_functions',
    undefined,
    undefined,
  );
  const known = new Map(rows.map((row) => [row.name, row.sha256]));
  const changed = functions
    .map(({ name, sql }) => ({ name, sql, sha256: createHash('sha256').update(sql).digest('hex') }))
    .filter(({ name, sha256 }) => known.get(name) !== sha256);
  if (changed.length === 0) return [];

  await client.query('BEGIN');
  for (const { name, sql, sha256 } of changed) {
    await dropFunctions(client, name);
    await client.query(sql);
    await client.query(
      `INSERT INTO sluice.stored_functions (name, sha256) VALUES ($1, $2)
       ON CONFLICT (name) DO UPDATE SET sha256 = excluded.sha256`,
      [name, sha256],
    );
  }
  await client.query('COMMIT');
  return changed.map(({ name }) => name);
}

/**
 * Drops what has this name, whatever its parameters: CREATE OR REPLACE cannot change a return type, and with other
 * parameters it would leave the old function beside the new one.
 */
async function dropFunctions(client: pg.Client, name: string): Promise<void> {
  const old = await queryRows<{ signature: string }>(
    client,
    `SELECT p.oid::regprocedure::text AS signature FROM pg_proc p
     WHERE p.pronamespace = 'sluice'::regnamespace AND p.proname = $1 AND p.prokind = 'f'`,
    [name.replace(/^sluice\./, '')],
    undefined,
  );
  for (const { signature } of old) await client.query(`DROP FUNCTION ${signature}`);
}
