/**
 * Whether PostgreSQL takes writes just now: asked without writing, and refused by a server that only reads, as one that a
 * fail-over has left behind does (25006). Its time limit is its own: behind a network that swallows everything, a client
 * must not be kept for as long as a real query may take.
 */
import { type Database, withClient } from './database.ts';

/** Resolves where writes are taken; throws DatabaseUnavailableError where not, or not within `timeoutMs` of the question. */
export async function checkWritable(database: Database, timeoutMs: number): Promise<void> {
  const question = {
    text: 'update sluice.definition_version set version = version where false',
    query_timeout: timeoutMs,
  };
  // Not in the line of those who share connections: however many ask, PostgreSQL is there or not.
  await withClient({ pool: database.pool, turns: undefined }, (client) => client.query(question));
}
