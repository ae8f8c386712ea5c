/**
 * The pool of connections, and what every query relies on: instants come back as Date ('infinity' as the number Infinity),
 * int8 as number (one that is no safe integer is an error, never rounded), and no client is lent again after it saw its
 * server go away, turn read-only or fall silent.
 *
 * Errors: whatever means "PostgreSQL cannot be used just now" is a DatabaseUnavailableError, so that callers can keep what
 * they hold and come back; every other error is the driver's own.
 */
import { drizzle, type NodePgDatabase } from 'drizzle-orm/node-postgres';
import pg from 'pg';
import { systemClock } from '../system/clock.ts';
import { type FaultPoints, type FaultPointsAround, noFaultPoints } from '../system/fault-points.ts';
import type { Logger } from '../system/logger.ts';
import { Turns } from '../system/turns.ts';
import * as schema from './schema.ts';

/** How long things may take, in milliseconds. */
export interface DatabaseLimits {
  /** One connection to come up. */
  readonly connectMs: number;
  /** A caller's wait for its turn; longer than a connect, since with a pool of 1 all work stands in one line. */
  readonly turnMs: number;
  /** The server gives up a statement after this … */
  readonly statementMs: number;
  /** … and if it has not said so by then, the client is given up: its socket may be dead. */
  readonly queryMs: number;
}

const usualLimits: DatabaseLimits = { connectMs: 5_000, turnMs: 15_000, statementMs: 30_000, queryMs: 35_000 };
/**
 * For statements that take milliseconds and that much waits for. On a connection that fell silent (a network that forgot it, a
 * fail-over without a word) the usual limit would stop a worker for longer than its lease lasts.
 */
export const promptMs = 5_000;

/** The limit of a statement that may be slow, and not lost: doubled each time it was hit, so that it gets through in the end. */
export function patientMs(timesHit: number): number {
  return Math.min(usualLimits.queryMs, promptMs * 2 ** timesHit);
}

/**
 * A session that does nothing in mid-transaction for so long has lost its client, silently: it is ended, since it would hold
 * its keys until the server's system notices, which is hours by default. Ours never pause between statements.
 */
const idleInTransactionMs = 15_000;
/** A connection that is idle for so long is asked for a sign of life by the system, and is lost 10 s later without one. */
const keepAliveMs = 5_000;

export interface Database {
  readonly pool: pg.Pool;
  readonly orm: NodePgDatabase<typeof schema>;
  /** Passed by the transitions of this store. */
  readonly faultPoints: FaultPoints;
  /** One is taken before a connection is asked for (`shareOf`); undefined: whoever comes stands in the pool's own line. */
  readonly turns: Turns | undefined;
  /** How long an answer is waited for where a statement says nothing else (`promptly`); undefined: the usual time. */
  readonly withinMs: (() => number) | undefined;
  /**
   * Runs one statement on any client and gives its rows. `name`: prepared under it, once per connection.
   */
  query<R>(text: string, values?: readonly unknown[], name?: string, options?: StatementOptions): Promise<R[]>;
  /** Whether a session of the server, by its process id, is one of this pool's connections. */
  ownsSession(processId: number): boolean;
  /** Ends all connections; clients that are lent out are waited for. */
  close(): Promise<void>;
}

/** Points are those of a statement that is a transition of its own; an error there is taken for one of the connection in use. */
export interface StatementOptions extends FaultPointsAround {
  /**
   * How long an answer is waited for, in milliseconds, where the usual time is too long. When it is over nobody knows what the
   * statement does: the server may still be at it.
   */
  readonly withinMs?: number;
}

/** PostgreSQL cannot be reached, is read-only, is shutting down or did not answer in time; `cause` is the original. */
export class DatabaseUnavailableError extends Error {
  constructor(cause: unknown) {
    super(`PostgreSQL is not available: ${cause instanceof Error ? cause.message || cause.name : 'unknown error'}`, {
      cause,
    });
    this.name = 'DatabaseUnavailableError';
  }
}

export interface DatabaseOptions {
  readonly connectionString: string;
  /** Most connections at once; everything works with 1. */
  readonly max: number;
  readonly logger: Logger;
  readonly applicationName?: string;
  readonly limits?: Partial<DatabaseLimits>;
  readonly faultPoints?: FaultPoints;
}

/** Opens a pool; connects only when it is used first, so it does not fail here. */
export function openDatabase({
  connectionString,
  max,
  logger,
  applicationName = 'sluice',
  limits: changed = {},
  faultPoints = noFaultPoints,
}: DatabaseOptions): Database {
  const limits = { ...usualLimits, ...changed };
  // The pool has one time limit for a turn and for a connect; a connect gets its own, shorter one.
  class PromptClient extends pg.Client {
    constructor(poolOptions: pg.ClientConfig) {
      super({ ...poolOptions, connectionTimeoutMillis: limits.connectMs });
    }
  }
  const pool = new pg.Pool({
    ...sessionOptions(connectionString, applicationName, limits),
    max,
    // A statement goes out at once, also behind one whose answer is still on its way (transaction.ts).
    pipeline: true,
    connectionTimeoutMillis: limits.turnMs,
    Client: PromptClient as unknown as new () => pg.ClientBase,
  });
  // Without a listener, a server that goes away ends the process: the pool tells of idle clients, a lent one tells itself.
  pool.on('error', (err) => logger.warn({ err }, 'an idle PostgreSQL connection was lost'));
  const sessions = new Set<number | undefined>();
  pool.on('remove', (client) => sessions.delete(sessionOf(client)));
  pool.on('connect', (client) => {
    sessions.add(sessionOf(client));
    client.on('error', (err) => logger.debug({ err }, 'a PostgreSQL connection was lost'));
    client.on('notice', ({ routine }) => {
      if (routine === 'SyncRepWaitForLSN') unreplicated.add(client);
    });
  });
  const orm = drizzle(pool, { schema });
  const ownsSession = (processId: number) => sessions.has(processId);
  return withQuery({
    pool,
    orm,
    faultPoints,
    turns: undefined,
    withinMs: undefined,
    ownsSession,
    close: () => pool.end(),
  });
}

/** The types do not have it. */
function sessionOf(client: pg.ClientBase): number | undefined {
  return (client as { readonly processID?: number }).processID;
}

/**
 * The same database, of whose connections no more than `most` are used at once through this view. Who asks through the other
 * one finds a connection free, or with a pool of 1 no more than one of these statements in front of it.
 */
export function shareOf(database: Database, most: number): Database {
  return withQuery({ ...database, turns: new Turns(most, systemClock) });
}

/** The same database, of whose statements none is waited for longer than this: also those of transactions. */
export function promptly(database: Database, withinMs: () => number): Database {
  return withQuery({ ...database, withinMs });
}

function withQuery(parts: Omit<Database, 'query'>): Database {
  const database: Database = {
    ...parts,
    query: (text, values, name, { before, after, withinMs = parts.withinMs?.() } = {}) =>
      withClient(database, async (client) => {
        if (before !== undefined) await parts.faultPoints.pass(before);
        const rows = await queryRows<never>(client, text, values, name, { withinMs });
        if (after !== undefined) await parts.faultPoints.pass(after);
        return rows;
      }),
  };
  return database;
}

/** What each of our connections is opened with, pooled or not. */
export function sessionOptions(
  connectionString: string,
  applicationName: string,
  limits: DatabaseLimits = usualLimits,
): pg.ClientConfig {
  return {
    connectionString,
    application_name: applicationName,
    connectionTimeoutMillis: limits.connectMs,
    statement_timeout: limits.statementMs,
    query_timeout: limits.queryMs,
    idle_in_transaction_session_timeout: idleInTransactionMs,
    keepAlive: true,
    keepAliveInitialDelayMillis: keepAliveMs,
    types: { getTypeParser },
  };
}

/**
 * Lends a client to `work` and takes it back, or destroys it where it must not be used again. No other connection may be
 * asked for inside `work`: with a pool of 1 that would wait for itself.
 */
export async function withClient<T>(
  { pool, turns }: Pick<Database, 'pool' | 'turns'>,
  work: (client: pg.PoolClient) => Promise<T>,
): Promise<T> {
  if (turns === undefined) return lend(pool, work);
  if (!(await turns.take(usualLimits.turnMs))) {
    throw new DatabaseUnavailableError(new Error('no connection of the share came free in time'));
  }
  try {
    return await lend(pool, work);
  } finally {
    turns.give();
  }
}

async function lend<T>(pool: pg.Pool, work: (client: pg.PoolClient) => Promise<T>): Promise<T> {
  const client = await borrow(pool);
  try {
    const result = await work(client);
    if (unreplicated.has(client))
      throw new DatabaseUnavailableError(new Error('a commit did not wait for its standby'));
    provenAt.set(client, lossesOf(pool));
    client.release();
    return result;
  } catch (error) {
    const unavailable = asUnavailable(error);
    if (unavailable !== undefined && isLoss(unavailable)) losses.set(pool, lossesOf(pool) + 1);
    client.release(unavailable !== undefined);
    throw unavailable ?? error;
  }
}

/**
 * Clients with a commit that is at the primary only: somebody cancelled its wait for the synchronous standby, and all that
 * PostgreSQL has to say to that is a warning. A fail-over would lose it, so it does not count as done.
 */
const unreplicated = new WeakSet<pg.ClientBase>();

/** How many clients of a pool were lost so far; and of each client, how many it was when it last proved good. */
const losses = new WeakMap<pg.Pool, number>();
const provenAt = new WeakMap<pg.PoolClient, number>();

function lossesOf(pool: pg.Pool): number {
  return losses.get(pool) ?? 0;
}

/**
 * A client that has proved good since another one was lost, or a new one. What took one away mostly took all: each of the
 * others, idle since then, would cost its caller the whole time limit, one after the other.
 */
async function borrow(pool: pg.Pool): Promise<pg.PoolClient> {
  for (;;) {
    const client = await pool.connect().catch((error: unknown) => {
      throw new DatabaseUnavailableError(error);
    });
    if ((provenAt.get(client) ?? Number.POSITIVE_INFINITY) >= lossesOf(pool)) return client;
    // A farewell would not come back over a connection that is dead, and the pool would wait for it.
    client.connection.stream.destroy();
    client.release(true);
  }
}

/** Whether the connection is to blame, and not one statement that was too slow, or a server that is short of something. */
function isLoss(unavailable: DatabaseUnavailableError): boolean {
  for (let each: unknown = unavailable; each instanceof Error; each = each.cause) {
    if ('code' in each && /^(53...|57014)$/.test(String(each.code))) return false;
  }
  return true;
}

export interface RowsOptions {
  /** How long an answer is waited for, instead of the client's own time limit. */
  readonly withinMs?: number | undefined;
  /** Rows as arrays, values in the order of the columns. */
  readonly rowMode?: 'array';
}

/** Runs one statement on this client and gives its rows. */
export async function queryRows<R>(
  client: pg.ClientBase,
  text: string,
  values: readonly unknown[] | undefined,
  name: string | undefined,
  { withinMs, rowMode }: RowsOptions = {},
): Promise<R[]> {
  const result = await client.query({
    text,
    ...(values === undefined ? {} : { values: [...values] }),
    ...(name === undefined ? {} : { name }),
    ...(rowMode === undefined ? {} : { rowMode }),
    // The types do not have it.
    ...(withinMs === undefined ? {} : { query_timeout: withinMs }),
  });
  return result.rows as R[];
}

/**
 * The error as a DatabaseUnavailableError if that is what it, or what it wraps (drizzle wraps), amounts to; else undefined.
 * A client that raised one must be destroyed.
 */
export function asUnavailable(error: unknown): DatabaseUnavailableError | undefined {
  for (let each = error; each instanceof Error; each = each.cause) {
    if (each instanceof DatabaseUnavailableError) return each;
    if (isUnavailable(each)) return new DatabaseUnavailableError(error);
  }
  return undefined;
}

/** Whether it is our own limit that ended a statement: nobody knows what the server makes of it. */
export function ranOutOfTime(error: unknown): boolean {
  for (let each = error; each instanceof Error; each = each.cause) {
    if (each.message === 'Query read timeout') return true;
  }
  return false;
}

/**
 * By SQLSTATE: 08 connection exceptions, 25006 read-only (a fail-over left us at the old primary), 25P03 idle too long in a
 * transaction (this process stood still), 53 out of resources, 57014 a statement ran into its time limit, 57P01 to 57P05
 * shutdown, crash, starting, database dropped, idle time limit.
 */
const unavailableStates = /^(08...|25006|25P03|53...|57014|57P0[1-5])$/;
/** Errors of the socket and of name resolution, by Node's code. */
const socketCodes =
  /^(ECONNREFUSED|ECONNRESET|ECONNABORTED|EPIPE|ETIMEDOUT|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|EHOSTDOWN|ENETDOWN)$/;
/** pg's own errors have no code. */
const driverMessages =
  /^(Connection terminated|Query read timeout|timeout expired|timeout exceeded when trying to connect|Client has encountered a connection error|Client was closed|Cannot use a pool after calling end)/;

function isUnavailable(error: Error): boolean {
  const code = 'code' in error && typeof error.code === 'string' ? error.code : undefined;
  if (code === undefined) return driverMessages.test(error.message);
  return unavailableStates.test(code) || socketCodes.test(code);
}

const int8 = 20;
const int8Array = 1016;

/** As pg's own, but int8 and its arrays become numbers. */
function getTypeParser(oid: number, format?: string): (text: string) => unknown {
  if (format !== 'binary') {
    if (oid === int8) return parseInt8;
    if (oid === int8Array) return parseInt8Array;
  }
  return pg.types.getTypeParser(oid, format as 'text');
}

function parseInt8(text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value)) throw new RangeError(`the int8 ${text} is too large for a JavaScript number`);
  return value;
}

/** pg's own parser of int8[] leaves its elements as text. */
const parseTextArray = pg.types.getTypeParser(int8Array as number, 'text') as (text: string) => (string | null)[];

function parseInt8Array(text: string): (number | null)[] {
  return parseTextArray(text).map((each) => (each === null ? null : parseInt8(each)));
}
