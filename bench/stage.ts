/**
 * What every bench stands on: a folder of its own, a durable PostgreSQL, the simulated upstream, and the built service as a
 * user would start it (`node dist/main.js serve`). All on loopback. Whatever was set up is taken down in reverse order: at
 * the end, after a failure, on Ctrl-C, and at a deadline, so that no bench is left running.
 */
import { chmod, mkdtemp, realpath, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Replica } from '../src/cli/demo/replica.ts';
import { type Database, openDatabase } from '../src/postgres/database.ts';
import { startEmbedded } from '../src/postgres/embedded.ts';
import { migrate } from '../src/postgres/migrate.ts';
import type { UpstreamOptions } from '../src/simulator/upstream.ts';
import { startUpstreamProcess, type UpstreamProcess } from '../src/simulator/upstream-process.ts';
import { createLogger } from '../src/system/logger.ts';

export interface BenchDatabase {
  readonly name: string;
  readonly connectionString: string;
  /** For the bench's own questions; the services have pools of their own. */
  readonly database: Database;
}

export interface ServiceOptions {
  readonly env?: Readonly<Record<string, string>>;
  /** Flags of Node itself, such as --cpu-prof. */
  readonly nodeFlags?: readonly string[];
}

export interface StageOptions {
  /** Libraries that PostgreSQL loads at its start, such as pg_stat_statements. */
  readonly preload?: string;
}

const logger = createLogger('error');

export class Stage {
  readonly folder: string;
  readonly #server: string;
  readonly #open = new Set<Database>();
  readonly #tearDowns: Array<() => Promise<unknown>> = [];

  private constructor(folder: string, server: string) {
    this.folder = folder;
    this.#server = server;
  }

  static async open({ preload }: StageOptions = {}): Promise<Stage> {
    const folder = await mkdtemp(join(tmpdir(), 'sluice-bench-'));
    // As root the server runs as another user, who must get through to its data.
    await chmod(folder, 0o755);
    const dataDir = join(folder, 'data');
    const server = await startEmbeddedWith(preload, dataDir);
    const stage = new Stage(folder, server.connectionString);
    stage.onClose(() => rm(folder, { recursive: true, force: true }));
    stage.onClose(async () => {
      const place = await realpath(join(dataDir, 'postgres'));
      await server.stop();
      await rm(place, { recursive: true, force: true });
    });
    return stage;
  }

  /** A fresh database with all migrations, on the one server. */
  async createDatabase(name: string): Promise<BenchDatabase> {
    const target = await this.createEmptyDatabase(name);
    await migrate(target.connectionString, logger);
    return target;
  }

  async createEmptyDatabase(name: string): Promise<BenchDatabase> {
    const admin = openDatabase({ connectionString: this.#server, max: 1, logger });
    await admin.query(`create database ${name}`).finally(() => admin.close());
    const url = new URL(this.#server);
    url.pathname = `/${name}`;
    const connectionString = url.href;
    const database = openDatabase({ connectionString, max: 4, logger, applicationName: 'bench' });
    this.#open.add(database);
    this.onClose(() => this.#closeOnce(database));
    return { name, connectionString, database };
  }

  /** A long bench need not keep all that it has filled; nothing may use this one any more. */
  async dropDatabase({ name, database }: BenchDatabase): Promise<void> {
    await this.#closeOnce(database);
    const admin = openDatabase({ connectionString: this.#server, max: 1, logger });
    await admin.query(`drop database ${name} with (force)`).finally(() => admin.close());
  }

  async #closeOnce(database: Database): Promise<void> {
    if (this.#open.delete(database)) await database.close();
  }

  /** The folder in which PostgreSQL writes `server.log`. */
  serverFolder(): Promise<string> {
    return realpath(join(this.folder, 'data', 'postgres'));
  }

  async startUpstream(options: UpstreamOptions = {}): Promise<UpstreamProcess> {
    const upstream = await startUpstreamProcess({ lean: true, ...options });
    this.onClose(() => upstream.close());
    return upstream;
  }

  async startService({ connectionString }: BenchDatabase, { env = {}, nodeFlags = [] }: ServiceOptions = {}) {
    const startReplica = await builtStartReplica();
    const replica: Replica = await startReplica({
      environment: {
        PATH: process.env.PATH,
        DATABASE_URL: connectionString,
        HOST: '127.0.0.1',
        PORT: '0',
        LOG_LEVEL: 'info',
        SLUICE_SHUTDOWN_SECONDS: '3',
        // A service that npm started ends when its parent is gone, also where we are killed.
        npm_lifecycle_event: 'bench',
        ...env,
      },
      cwd: this.folder,
      nodeFlags,
      ownGroup: true,
      onLine: (line) => {
        if (/"level":(40|50|60)/.test(line)) console.error(line);
      },
    });
    this.onClose(() => replica.stop());
    return replica;
  }

  onClose(tearDown: () => Promise<unknown>): void {
    this.#tearDowns.push(tearDown);
  }

  async close(): Promise<void> {
    for (const tearDown of this.#tearDowns.splice(0).reverse()) {
      await tearDown().catch((error: unknown) => console.error('while taking down:', error));
    }
  }
}

/** Runs a bench on a stage and takes the stage down, whatever happens; after `longestMinutes` it gives up. */
export async function onStage(
  longestMinutes: number,
  work: (stage: Stage) => Promise<void>,
  options: StageOptions = {},
): Promise<void> {
  const stage = await Stage.open(options);
  const giveUp = (why: string, code: number) => {
    console.error(why);
    void stage.close().finally(() => process.exit(code));
  };
  process.once('SIGINT', () => giveUp('interrupted', 130));
  process.once('SIGTERM', () => giveUp('terminated', 143));
  const deadline = setTimeout(() => giveUp(`not done within ${longestMinutes} minutes`, 1), longestMinutes * 60_000);
  try {
    await work(stage);
  } finally {
    clearTimeout(deadline);
    await stage.close();
  }
}

/** A setting of this kind counts from the next start on. */
async function startEmbeddedWith(preload: string | undefined, dataDir: string) {
  const server = await startEmbedded({ dataDir, logger });
  if (preload === undefined) return server;
  const admin = openDatabase({ connectionString: server.connectionString, max: 1, logger });
  await admin.query(`alter system set shared_preload_libraries = '${preload}'`).finally(() => admin.close());
  await server.stop();
  return startEmbedded({ dataDir, logger });
}

/** The built one starts the built program. */
async function builtStartReplica(): Promise<typeof import('../src/cli/demo/replica.ts').startReplica> {
  const built = fileURLToPath(new URL('../dist/cli/demo/replica.js', import.meta.url));
  const module = (await import(built)) as typeof import('../src/cli/demo/replica.ts');
  return module.startReplica;
}
