/**
 * Sets the stage of the demo and clears it again: a folder, a database, the simulated upstream, and the service's processes.
 * Whatever was set up is taken down in reverse order, also after a failure half-way and after Ctrl-C.
 */
import { createWriteStream } from 'node:fs';
import { chmod, mkdir, mkdtemp, realpath, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { destination, pino } from 'pino';
import { startEmbedded } from '../../postgres/embedded.ts';
import { startUpstreamProcess, type UpstreamProcess } from '../../simulator/upstream-process.ts';
import { type Environment, type Replica, startReplica } from './replica.ts';
import { faults, seed } from './scenario.ts';

/** The whole demo has 40 seconds; a replica that needs this long does not come. */
const readyWithinMs = 20_000;

export class Stage {
  /** Logs of the processes; kept where the demo fails. */
  readonly logFolder: string;
  readonly #folder: string;
  readonly #replicas: Replica[] = [];
  readonly #tearDowns: Array<() => Promise<unknown>> = [];

  private constructor(folder: string) {
    this.#folder = folder;
    this.logFolder = join(folder, 'logs');
  }

  static async open(): Promise<Stage> {
    const folder = await mkdtemp(join(tmpdir(), 'sluice-demo-'));
    // The embedded PostgreSQL may run as another user, who must get through to its data.
    await chmod(folder, 0o755);
    const stage = new Stage(folder);
    await mkdir(stage.logFolder);
    return stage;
  }

  /** Gives a connection string. */
  async startDatabase(): Promise<string> {
    const logger = pino({ level: 'info' }, destination({ dest: join(this.logFolder, 'postgres.log'), sync: true }));
    const home = join(this.#folder, 'data');
    const database = await startEmbedded({ dataDir: home, logger });
    this.#tearDowns.push(async () => {
      await database.stop();
      // A link to another place, where the user that PostgreSQL runs as could not enter this one.
      await rm(await realpath(join(home, 'postgres')), { recursive: true, force: true });
    });
    return database.connectionString;
  }

  async startUpstream(): Promise<UpstreamProcess> {
    const upstream = await startUpstreamProcess({ faults, seed });
    this.#tearDowns.push(() => upstream.close());
    return upstream;
  }

  /**
   * All at once, as a deployment would. `inherited`: the environment to start from; settings of Sluice in it are left out.
   * Rejects with the first failure, when each has come up or ended.
   */
  async startReplicas(count: number, databaseUrl: string, inherited: Environment): Promise<readonly Replica[]> {
    const environment = { ...withoutOurs(inherited), ...settings(databaseUrl) };
    const starts = Array.from({ length: count }, (_, i) => this.#startReplica(i + 1, environment));
    const failure = (await Promise.allSettled(starts)).find((outcome) => outcome.status === 'rejected');
    if (failure !== undefined) throw failure.reason;
    return this.#replicas;
  }

  async #startReplica(number: number, environment: Environment): Promise<void> {
    const log = createWriteStream(join(this.logFolder, `replica-${number}.log`));
    const replica = await startReplica({
      environment,
      // A folder without a sluice.json: the demo brings its own definitions.
      cwd: this.#folder,
      readyWithinMs,
      // Else it would go away under us before we know that we are to stop.
      ownGroup: true,
      onLine: (line) => log.write(`${line}\n`),
    });
    void replica.exited.then(() => log.end());
    this.#replicas.push(replica);
  }

  /** Ends every process and removes the folder; `keepLogs` leaves the logs. Never rejects: it goes on to the next. */
  async close(keepLogs: boolean): Promise<void> {
    await Promise.all(this.#replicas.map((replica) => replica.stop()));
    for (const tearDown of this.#tearDowns.reverse()) await tearDown().catch(() => {});
    const leftovers = keepLogs ? join(this.#folder, 'data') : this.#folder;
    await rm(leftovers, { recursive: true, force: true }).catch(() => {});
  }
}

/** Small and quick to end: nobody waits long for Ctrl-C. */
function settings(databaseUrl: string): Record<string, string> {
  return { DATABASE_URL: databaseUrl, HOST: '127.0.0.1', PORT: '0', SLUICE_SHUTDOWN_SECONDS: '3', LOG_LEVEL: 'info' };
}

function withoutOurs(environment: Environment): Environment {
  return Object.fromEntries(Object.entries(environment).filter(([name]) => !name.startsWith('SLUICE_')));
}
