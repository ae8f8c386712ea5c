/** A worker pool in the test's own process, on a real store and with real calls to an upstream on loopback. */
import type { Test } from 'tap';
import { DefinitionStore } from '../../src/application/definitions.ts';
import { createSender, type Sender } from '../../src/outbound/send-request.ts';
import { openDatabase } from '../../src/postgres/database.ts';
import { systemClock } from '../../src/system/clock.ts';
import { type FaultPoints, noFaultPoints } from '../../src/system/fault-points.ts';
import { createLogger } from '../../src/system/logger.ts';
import { WorkerPool } from '../../src/worker/worker-pool.ts';

export interface WorkerOptions {
  readonly connectionString: string;
  readonly concurrency?: number;
  readonly leaseSeconds?: number;
  /** Stands between the worker and the real sender. */
  readonly around?: (sender: Sender) => Sender;
  readonly faultPoints?: FaultPoints;
  /** Default: no secret is set. */
  readonly readSecret?: (name: string) => string | undefined;
}

/** Started, with a pool of 2 connections of its own; drained when the test ends. */
export async function startWorker(t: Test, options: WorkerOptions): Promise<WorkerPool> {
  const { connectionString, concurrency = 8, leaseSeconds = 30, around = (sender: Sender) => sender } = options;
  const { faultPoints = noFaultPoints, readSecret = () => undefined } = options;
  const logger = createLogger('silent');
  const database = openDatabase({ connectionString, max: 2, logger, applicationName: 'worker', faultPoints });
  const definitions = new DefinitionStore(database);
  const sender = createSender({ clock: systemClock, connectionsPerOrigin: concurrency, faultPoints });
  const pool = new WorkerPool({
    database,
    clock: systemClock,
    logger,
    sender: around(sender),
    concurrency,
    leaseSeconds,
    readSecret,
    faultPoints,
    currentDefinitions: () => definitions.current(),
    definitionsAtLeast: (version) => definitions.atLeast(version),
    retention: { retentionDays: 30, keyRetentionDays: 7 },
  });
  await pool.start();
  t.teardown(async () => {
    await pool.drain(1_000);
    await sender.close();
    await database.close();
  });
  return pool;
}

/** A gate that lets nobody through until it is opened; counts who waits. */
export class Gate {
  #open!: () => void;
  readonly opened = new Promise<void>((resolve) => {
    this.#open = resolve;
  });
  waiting = 0;

  async pass(): Promise<void> {
    this.waiting += 1;
    await this.opened;
  }

  open(): void {
    this.#open();
  }
}

/** Stops every call between its claim and its send, as a process that was suspended there would. */
export function behind(gate: Gate): (sender: Sender) => Sender {
  return (sender) => ({
    async send(request, options) {
      await gate.pass();
      return sender.send(request, options);
    },
    close: () => sender.close(),
  });
}
