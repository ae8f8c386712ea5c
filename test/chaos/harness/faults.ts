/**
 * How each planned fault is brought about, and how it ends. Faults of replicas run beside each other and beside those of the
 * database; of the latter there is one at a time, since two ways to be away look like one. Each ends by itself.
 */
import { systemClock as clock } from '../../../src/system/clock.ts';
import type { OwnPostgres } from '../../support/own-postgres.ts';
import type { TcpProxy } from '../../support/tcp-proxy.ts';
import { type PlannedFault, type PlannedKind, plannedKinds } from './plan.ts';
import type { Replicas } from './replicas.ts';

export interface FaultsOptions {
  readonly plan: readonly PlannedFault[];
  readonly replicas: Replicas;
  readonly postgres: OwnPostgres;
  readonly proxy: TcpProxy;
  readonly say: (text: string) => void;
  readonly onProblem: (text: string) => void;
  readonly signal: AbortSignal;
}

/**
 * What has fallen silent is reset after so long: in a network keep-alive finds it after 15 s, but behind a proxy the system's
 * probes are answered. Longer than any limit of the service, so that it has to find it by itself, and no start hangs for ever.
 */
const buriedAfterMs = 40_000;

export class Faults {
  /** How many of each kind have happened. */
  readonly done = new Map<PlannedKind, number>();
  readonly #options: FaultsOptions;
  #databaseIsFree: Promise<unknown> = Promise.resolve();

  constructor(options: FaultsOptions) {
    this.#options = options;
  }

  get count(): number {
    return [...this.done.values()].reduce((sum, each) => sum + each, 0);
  }

  /** Resolves when all have happened and are over, with everything as it was. */
  async run(): Promise<void> {
    const { plan, signal, onProblem, say } = this.#options;
    const startMs = clock.monotonicMs();
    const under: Promise<void>[] = [];
    for (const fault of plan) {
      await clock.sleep(Math.max(0, fault.atMs - (clock.monotonicMs() - startMs)), signal);
      if (signal.aborted) break;
      const happened = this.#happen(fault).then(
        () => {
          this.done.set(fault.kind, (this.done.get(fault.kind) ?? 0) + 1);
        },
        (error: unknown) => onProblem(`${plannedKinds[fault.kind]}: the harness failed: ${String(error)}`),
      );
      under.push(happened);
      say(`${plannedKinds[fault.kind]}${fault.durationMs > 0 ? ` (${(fault.durationMs / 1000).toFixed(1)} s)` : ''}`);
    }
    await Promise.all(under);
  }

  #happen({ kind, replica, durationMs }: PlannedFault): Promise<void> {
    const { replicas, postgres, proxy, signal } = this.#options;
    switch (kind) {
      case 'kill':
        return replicas.kill(replica, signal);
      case 'terminate':
        return replicas.terminate(replica, signal);
      case 'stop_short':
      case 'stop_long':
        return replicas.standStill(replica, durationMs, signal);
      case 'restart':
        return this.#toTheDatabase(async () => {
          await postgres.stop('immediate');
          await clock.sleep(durationMs, signal);
          await postgres.start();
        });
      case 'cut':
        return this.#toTheDatabase(async () => {
          proxy.refuse();
          await clock.sleep(durationMs, signal);
          proxy.heal();
        });
      case 'silence':
        return this.#toTheDatabase(async () => {
          proxy.silence();
          await clock.sleep(durationMs, signal);
          proxy.heal();
          this.#buryLater();
        });
      case 'forget':
        return this.#toTheDatabase(async () => {
          proxy.forget();
          this.#buryLater();
        });
      case 'end_sessions':
        return this.#toTheDatabase(async () => void (await postgres.terminateSessions()));
    }
  }

  #buryLater(): void {
    const { proxy, signal } = this.#options;
    void clock.sleep(buriedAfterMs, signal).then(() => proxy.bury(buriedAfterMs));
  }

  #toTheDatabase(work: () => Promise<void>): Promise<void> {
    const done = this.#databaseIsFree.then(work);
    this.#databaseIsFree = done.catch(() => undefined);
    return done;
  }
}
