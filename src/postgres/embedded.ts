/**
 * The PostgreSQL that Sluice brings along, for whoever has no DATABASE_URL: under the data folder, kept between starts.
 *
 * One process owns it at a time: the one that holds an advisory lock in the server itself, so a kill -9 frees it with the
 * connection, whatever pids and files are left. The owner stops the server, last of all, when it is told to; a server left
 * over by a killed owner is taken over as it runs. A second process is refused with the owner's address.
 */
import { mkdir, mkdtemp, readFile, readlink, realpath, rm, stat, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import pg from 'pg';
import { type Clock, systemClock } from '../system/clock.ts';
import type { Logger } from '../system/logger.ts';
import { asUnavailable } from './database.ts';
import { type Account, canEnter, findAccount } from './embedded-account.ts';
import { ownFolder, prepareBinaries } from './embedded-binaries.ts';
import { EmbeddedError } from './embedded-error.ts';
import { createServerFolder } from './embedded-folder.ts';
import { type RunningServer, type ServerPlace, signalServer, startServer, stopServer } from './embedded-server.ts';

/** Any fixed number; in the embedded server only. */
const ownerLock = 7305002;
/** An owner that was killed a moment ago may still seem to hold the lock. */
const lockTries = 10;
const lockPauseMs = 100;
const lockTimeoutMs = 5_000;
/** Between attempts to bring back a server that went away under us. */
const recoveryPauseMs = 1_000;

export interface EmbeddedPostgres {
  readonly connectionString: string;
  /** Tells the next process that comes to this folder where we can be reached. */
  announce(url: string): Promise<void>;
  /** Stops the server and waits for it; everything else must have let go of it before. */
  stop(): Promise<void>;
}

/** Another process owns this data folder; the message names its address where it is known. */
export class EmbeddedInUseError extends EmbeddedError {
  constructor(dataDir: string, url: string | undefined) {
    super(
      `another Sluice process runs on ${dataDir}, ${url === undefined ? 'and is just starting' : `at ${url}`}: ` +
        'use that one, or stop it, or give this one a SLUICE_DATA_DIR of its own, or let both share a DATABASE_URL',
    );
    this.name = 'EmbeddedInUseError';
  }
}

/**
 * Starts the server of `dataDir`, or takes over the one that was left running there. Throws EmbeddedInUseError where another
 * process owns it, and another EmbeddedError where it cannot be started.
 */
export async function startEmbedded({
  dataDir,
  logger,
  clock = systemClock,
}: {
  dataDir: string;
  logger: Logger;
  clock?: Clock;
}): Promise<EmbeddedPostgres> {
  const home = resolve(dataDir);
  const place = await findPlace(home, logger, clock);
  const { server, lock } = await own(place, home);
  logger.info(
    { folder: place.folder, port: server.port, user: place.account.name, found: server.found },
    'PostgreSQL runs',
  );
  return new OwnedServer(place, home, logger, server, lock);
}

/** The server's folder, made if need be, and the user and programs to run it with. */
async function findPlace(home: string, logger: Logger, clock: Clock): Promise<ServerPlace> {
  await mkdir(home, { recursive: true, mode: 0o755 });
  const path = join(home, 'postgres');
  await dropDanglingLink(path, logger);
  const account = await findAccount(join(path, 'data'));
  if (account.ids !== undefined) {
    logger.info({ user: account.name }, `PostgreSQL does not run as root, so it runs as the user ${account.name}`);
  }
  const binaries = await prepareBinaries(account, home, logger);
  if (!(await isThere(path))) {
    const elsewhere = (await canEnter(account, home)) ? undefined : await mkdtemp(join(await ownFolder(), 'data-'));
    await createServerFolder(path, { account, binaries }, elsewhere);
  }
  const folder = await realpath(path);
  if (folder !== join(await realpath(home), 'postgres')) {
    logger.info({ folder, user: account.name }, `the data is in ${folder}, since ${account.name} cannot enter ${home}`);
  }
  await refuseUnreachable(folder, account);
  return { folder, account, binaries, clock };
}

async function dropDanglingLink(path: string, logger: Logger): Promise<void> {
  const goal = await readlink(path).catch(() => undefined);
  if (goal === undefined || (await isThere(path))) return;
  logger.warn({ goal }, 'the folder that held the data is gone; starting with an empty one');
  await rm(path, { force: true });
}

async function refuseUnreachable(folder: string, account: Account): Promise<void> {
  if (await canEnter(account, join(folder, 'data'))) return;
  throw new EmbeddedError(
    `the user ${account.name}, which owns the data in ${folder}, can no longer enter that folder; open the folders above it to that user (chmod o+x)`,
  );
}

function isThere(path: string): Promise<boolean> {
  return stat(path).then(
    () => true,
    () => false,
  );
}

interface Owned {
  readonly server: RunningServer;
  /** The connection that holds the lock. */
  readonly lock: pg.Client;
}

/** A server that is ours. `port`: where it must listen if it has to be started, since others know the address. */
async function own(place: ServerPlace, home: string, port?: number, signal?: AbortSignal): Promise<Owned> {
  for (let tries = 1; ; tries++) {
    const server = await startServer(place, port, signal);
    const lock = await tryLock(server);
    if (lock !== undefined) return { server, lock };
    if (tries >= lockTries) throw new EmbeddedInUseError(home, await readAddress(home));
    await place.clock.sleep(lockPauseMs);
  }
}

/** The connection that now holds the lock; undefined where somebody else does, or the server is just going away. */
async function tryLock(server: RunningServer): Promise<pg.Client | undefined> {
  const client = new pg.Client({
    connectionString: server.connectionString,
    application_name: 'sluice owner',
    connectionTimeoutMillis: lockTimeoutMs,
    query_timeout: lockTimeoutMs,
  });
  client.on('error', () => undefined);
  try {
    await client.connect();
    const { rows } = await client.query<{ got: boolean }>('SELECT pg_try_advisory_lock($1) AS got', [ownerLock]);
    if (rows[0]?.got === true) return client;
  } catch (error) {
    if (asUnavailable(error) === undefined) throw error;
  }
  await client.end().catch(() => undefined);
  return undefined;
}

async function readAddress(home: string): Promise<string | undefined> {
  const text = await readFile(join(home, 'address'), 'utf8').catch(() => '');
  return text.trim() || undefined;
}

class OwnedServer implements EmbeddedPostgres {
  readonly connectionString: string;
  readonly #place: ServerPlace;
  readonly #home: string;
  readonly #logger: Logger;
  /** Undefined while the server is gone, or somebody else's. */
  #owned: Owned | undefined;
  readonly #stopping = new AbortController();
  #recovery: Promise<void> | undefined;

  constructor(place: ServerPlace, home: string, logger: Logger, server: RunningServer, lock: pg.Client) {
    this.#place = place;
    this.#home = home;
    this.#logger = logger;
    this.connectionString = server.connectionString;
    this.#hold({ server, lock });
    process.on('exit', this.#atExit);
  }

  async announce(url: string): Promise<void> {
    await writeFile(join(this.#home, 'address'), `${url}\n`);
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    await this.#recovery;
    process.off('exit', this.#atExit);
    const owned = this.#owned;
    this.#owned = undefined;
    if (owned === undefined) return;
    await rm(join(this.#home, 'address'), { force: true });
    // The lock goes with the server: nobody can own it in between.
    await stopServer(owned.server, this.#place);
    await owned.lock.end().catch(() => undefined);
    this.#logger.info('PostgreSQL stopped');
  }

  /** The process ends without having called `stop`, by an uncaught error: at least do not leave the server behind. */
  readonly #atExit = () => {
    if (this.#owned !== undefined) signalServer(this.#owned.server.pid, 'SIGINT');
  };

  #hold(owned: Owned): void {
    this.#owned = owned;
    owned.lock.once('end', () => {
      if (this.#owned !== owned) return;
      this.#owned = undefined;
      if (!this.#stopping.signal.aborted) this.#recovery = this.#recover(owned.server.port);
    });
  }

  /** The lock's connection broke: the server restarts after a crash of a session, or somebody killed it. */
  async #recover(port: number): Promise<void> {
    this.#logger.error('the embedded PostgreSQL went away; bringing it back');
    while (!this.#stopping.signal.aborted) {
      try {
        this.#hold(await own(this.#place, this.#home, port, this.#stopping.signal));
        this.#logger.info({ port }, 'the embedded PostgreSQL is back');
        return;
      } catch (err) {
        this.#logger.error({ err }, 'the embedded PostgreSQL cannot be brought back yet');
        await this.#place.clock.sleep(recoveryPauseMs, this.#stopping.signal);
      }
    }
  }
}
