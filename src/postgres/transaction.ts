/**
 * One transaction on one client: BEGIN, COMMIT and ROLLBACK are all awaited before the client goes back, a client whose
 * ROLLBACK failed is never lent again, and the work's client refuses statements once the transaction is over, so that a
 * forgotten promise cannot run outside of it.
 * No transaction may be held across a call to anybody else.
 */
import { systemClock } from '../system/clock.ts';
import type { FaultPointsAround } from '../system/fault-points.ts';
import { asUnavailable, type Database, DatabaseUnavailableError, promptMs, queryRows, withClient } from './database.ts';

/** Serialization failure, deadlock: the same transaction can succeed when it is run again. */
const repeatableStates = new Set(['40001', '40P01']);
const maxRepeats = 3;
/** First pause before a repeat, doubled each time, with full jitter so that two rivals part. */
const firstPauseMs = 10;

/** The client of a running transaction. */
export interface TransactionClient {
  /** Runs one statement in the transaction and gives its rows. `name`: prepared under it, once per connection. */
  query<R>(text: string, values?: readonly unknown[], name?: string): Promise<R[]>;
}

/**
 * Runs `work` in a transaction (READ COMMITTED) and gives its result once it is committed. Whatever `work` throws rolls
 * back and is thrown on. SQLSTATE 40001 and 40P01 run `work` again up to 3 times, then it is a DatabaseUnavailableError;
 * so `work` must do nothing outside of the database. When the connection is lost during COMMIT, nobody knows whether it
 * was committed: that is a DatabaseUnavailableError too.
 * @param points passed around the COMMIT
 */
export async function inTransaction<T>(
  database: Database,
  work: (client: TransactionClient) => Promise<T>,
  points: FaultPointsAround = {},
): Promise<T> {
  for (let repeats = 0; ; repeats++) {
    try {
      return await runOnce(database, work, points);
    } catch (error) {
      if (!isRepeatable(error)) throw error;
      if (repeats === maxRepeats) throw new DatabaseUnavailableError(error);
      await systemClock.sleep(Math.random() * firstPauseMs * 2 ** repeats);
    }
  }
}

function runOnce<T>(
  database: Database,
  work: (client: TransactionClient) => Promise<T>,
  points: FaultPointsAround,
): Promise<T> {
  return withClient(database, async (client) => {
    let over = false;
    const lent: TransactionClient = {
      query: (text, values, name) => {
        if (over) return Promise.reject(new Error('this transaction is over; the statement was not sent'));
        return queryRows(client, text, values, name, { withinMs: database.withinMs?.() });
      },
    };
    // Waits for nothing at the server, so silence means that the connection is dead.
    await queryRows(client, 'BEGIN', undefined, undefined, { withinMs: promptMs });
    let result: T;
    try {
      result = await work(lent);
      if (points.before !== undefined) await database.faultPoints.pass(points.before);
    } catch (error) {
      over = true;
      // The client is destroyed, which rolls back; over a dead connection a ROLLBACK would only wait for its time limit.
      if (asUnavailable(error) !== undefined) throw error;
      await client.query('ROLLBACK').catch((cause: unknown) => {
        // The work's own error says more, but only this one makes sure that the client is destroyed.
        throw new DatabaseUnavailableError(
          new AggregateError([error, cause], 'a transaction could not be rolled back'),
        );
      });
      throw error;
    }
    over = true;
    const { command } = await client.query('COMMIT');
    // PostgreSQL answers COMMIT of a failed transaction with ROLLBACK and no error: work that swallowed one ends here.
    if (command !== 'COMMIT')
      throw new Error('the transaction had failed and was rolled back, though its work went on');
    if (points.after !== undefined) await database.faultPoints.pass(points.after);
    return result;
  });
}

function isRepeatable(error: unknown): boolean {
  for (let each = error; each instanceof Error; each = each.cause) {
    if ('code' in each && repeatableStates.has(String(each.code))) return true;
  }
  return false;
}
