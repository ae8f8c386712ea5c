/** The database's clock, for what is judged by it without being stored. */
import type { Database } from './database.ts';

/** Microseconds since 1970. */
export async function readClock(database: Database): Promise<number> {
  const [row] = await database.query<{ us: number }>('select sluice.clock_us() as us', [], 'read-clock');
  return row!.us;
}
