/**
 * One transaction on one client: BEGIN, COMMIT and ROLLBACK are all awaited before the client goes back, a client whose
 * ROLLBACK failed is never lent again, and the work's client refuses statements once the transaction is over, so that a
 * forgotten promise cannot run outside of it.
 * No transaction may be held across a call to anybody else.
 */
import type { PoolClient } from 'pg';
import { systemClock } from '../system/clock.ts';
import { type FaultPointsAround, noFaultPoints } from '../system/fault-points.ts';
import { asUnavailable, type Database, DatabaseUnavailableError, promptMs, queryRows, withClient } from './database.ts';

/** Serialization failure, deadlock: the same transaction can succeed when it is run again. */
const repeatableStates = new Set(['40001', '40P01']);
const maxRepeats = 3;
/** The transaction has failed before this statement. */
const abortedState = '25P02';
/** First pause before a repeat, doubled each time, with full jitter so that two rivals part. */
const firstPauseMs = 10;

/** The client of a running transaction. */
export interface TransactionClient {
  /**
   * Runs one statement in the transaction and gives its rows. `name`: prepared under it, once per connection. Those that do
   * not need each other's rows need not be waited for: they leave together, and run in this order.
   */
  query<R>(text: string, values?: readonly unknown[], name?: string): Promise<R[]>;
  /** The same for a statement behind which there is only the COMMIT, and that goes out with it: the work must not fail afterwards. */
  last<R>(text: string, values?: readonly unknown[], name?: string): Promise<R[]>;
  /** What was sent leaves now, and not at the end of this turn of the event loop: before some work that needs no answer. */
  flush(): void;
  /** Where there is an `opening`, or work goes out `atOnce`: to be waited for before anything else is sent. */
  readonly begun: Promise<unknown>;
}

export interface TransactionOptions<T = unknown> extends FaultPointsAround {
  /** Whether it has done what the points are around; by default it has. */
  readonly isDone?: (result: T) => boolean;
  /**
   * Goes out with the BEGIN, and with what the work sends before it waits. A BEGIN can be refused, and what comes behind it is
   * then on its own: so all of this must do nothing, unless it is in one transaction with the opening.
   */
  readonly opening?: { readonly text: string; readonly name: string };
  /** The work's first statement goes out with the BEGIN: it must be one that may as well be a transaction of its own. */
  readonly atOnce?: true;
}

/**
 * Runs `work` in a transaction (READ COMMITTED) and gives its result once it is committed. Whatever `work` throws rolls
 * back and is thrown on. SQLSTATE 40001 and 40P01 run `work` again up to 3 times, then it is a DatabaseUnavailableError;
 * so `work` must do nothing outside of the database. When the connection is lost during COMMIT, nobody knows whether it
 * was committed: that is a DatabaseUnavailableError too.
 * @param options points are passed around the COMMIT
 */
export async function inTransaction<T>(
  database: Database,
  work: (client: TransactionClient) => Promise<T>,
  options: TransactionOptions<T> = {},
): Promise<T> {
  for (let repeats = 0; ; repeats++) {
    try {
      return await runOnce(database, work, options);
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
  { before, after, opening, atOnce, isDone = () => true }: TransactionOptions<T>,
): Promise<T> {
  return withClient(database, async (client) => {
    const pieces = new Pieces(client);
    let over = false;
    let failed: unknown;
    let committed: Promise<{ readonly command: string }> | undefined;
    let begun: Promise<unknown> = Promise.resolve();
    const lent: TransactionClient = {
      query: (text, values, name) => {
        if (over) return Promise.reject(new Error('this transaction is over; the statement was not sent'));
        pieces.gather();
        return queryRows<never>(client, text, values, name, { withinMs: database.withinMs?.() }).catch(
          (error: unknown) => {
            // What went out behind a failed statement fails because of it, and whoever waits for several may hear of that first.
            failed ??= error;
            throw stateOf(error) === abortedState ? failed : error;
          },
        );
      },
      last: (text, values, name) => {
        const rows = lent.query<never>(text, values, name);
        // Where a test may stop before the COMMIT, it comes by itself.
        if (before !== undefined && database.faultPoints !== noFaultPoints) return rows;
        over = true;
        committed = client.query('COMMIT');
        // Looked at below.
        committed.catch(() => undefined);
        return rows;
      },
      flush: () => pieces.send(),
      get begun() {
        return begun;
      },
    };
    pieces.gather();
    // Waits for nothing at the server, so silence means that the connection is dead.
    begun = queryRows(client, 'BEGIN', undefined, undefined, { withinMs: promptMs });
    if (opening === undefined && !atOnce) await begun;
    if (opening !== undefined) begun = Promise.all([begun, lent.query(opening.text, [], opening.name)]);
    begun.catch(() => undefined);
    let result: T;
    try {
      result = await work(lent);
      if (before !== undefined && isDone(result)) await database.faultPoints.pass(before);
    } catch (error) {
      over = true;
      // The client is destroyed, which rolls back; over a dead connection a ROLLBACK would only wait for its time limit.
      if (asUnavailable(error) !== undefined) throw error;
      if (committed !== undefined) {
        // It ends what has failed.
        await committed;
        throw error;
      }
      await client.query('ROLLBACK').catch((cause: unknown) => {
        // The work's own error says more, but only this one makes sure that the client is destroyed.
        throw new DatabaseUnavailableError(
          new AggregateError([error, cause], 'a transaction could not be rolled back'),
        );
      });
      throw error;
    }
    over = true;
    const { command } = await (committed ?? client.query('COMMIT'));
    // PostgreSQL answers COMMIT of a failed transaction with ROLLBACK and no error: work that swallowed one ends here.
    if (command !== 'COMMIT')
      throw new Error('the transaction had failed and was rolled back, though its work went on');
    if (after !== undefined && isDone(result)) await database.faultPoints.pass(after);
    return result;
  });
}

/** Puts together what one turn of the event loop sends: each piece that leaves by itself may wake the server by itself. */
class Pieces {
  readonly #stream: PoolClient['connection']['stream'];
  #gathering = false;

  constructor({ connection }: PoolClient) {
    this.#stream = connection.stream;
  }

  gather(): void {
    if (this.#gathering) return;
    this.#gathering = true;
    this.#stream.cork();
    process.nextTick(() => this.send());
  }

  send(): void {
    if (!this.#gathering) return;
    this.#gathering = false;
    this.#stream.uncork();
  }
}

function isRepeatable(error: unknown): boolean {
  for (let each = error; each instanceof Error; each = each.cause) {
    if (repeatableStates.has(stateOf(each))) return true;
  }
  return false;
}

/** SQLSTATE, or another code; empty: none. */
function stateOf(error: unknown): string {
  return error instanceof Error && 'code' in error ? String(error.code) : '';
}
