/** Starts another job queue in a process of its own (`peers/main.js`) and tells it what to do. */
import { fork } from 'node:child_process';
import { access } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import type { BenchItem } from './calls-to-make.ts';

export interface PeerOptions {
  /** The file under `peers` that knows it. */
  readonly peer: string;
  readonly settings: Readonly<Record<string, number>>;
  /** Calls in flight. */
  readonly slots: number;
  readonly upstreamUrl: string;
  readonly connectionString?: string;
  readonly redisPort?: number;
}

export interface PeerProcess {
  readonly pid: number;
  /** Gives the seconds that it took. */
  insert(items: readonly BenchItem[], size: number): Promise<number>;
  /** Resolves when all are done and the workers have stopped. */
  drain(count: number): Promise<void>;
  /** Milliseconds from each send to the start of its handler. */
  latency(items: readonly BenchItem[]): Promise<number[]>;
  close(): Promise<void>;
}

interface Reply {
  readonly id: number;
  readonly value?: unknown;
  readonly error?: string;
}

const folder = fileURLToPath(new URL('peers/', import.meta.url));

export function peersAreInstalled(): Promise<boolean> {
  return access(`${folder}node_modules`).then(
    () => true,
    () => false,
  );
}

/** Rejects where it ends before it is ready; whatever waits when it ends later rejects, too. */
export async function startPeer(options: PeerOptions): Promise<PeerProcess> {
  const child = fork(`${folder}main.js`, [JSON.stringify(options)], { execArgv: [], serialization: 'advanced' });
  const waiting = new Map<number, { resolve: (value: unknown) => void; reject: (error: Error) => void }>();
  let lastId = 0;
  const answered = (id: number) => new Promise<unknown>((resolve, reject) => waiting.set(id, { resolve, reject }));
  child.on('message', ({ id, value, error }: Reply) => {
    const asked = waiting.get(id);
    waiting.delete(id);
    if (error === undefined) asked?.resolve(value);
    else asked?.reject(new Error(`${options.peer}: ${error}`));
  });
  const ended = new Promise<void>((resolve) => {
    child.once('exit', (code, signal) => {
      for (const { reject } of waiting.values()) reject(new Error(`${options.peer} ended (${signal ?? code})`));
      waiting.clear();
      resolve();
    });
  });
  const ask = (call: object): Promise<unknown> => {
    lastId += 1;
    const answer = answered(lastId);
    child.send({ ...call, id: lastId });
    return answer;
  };
  await answered(0);
  return {
    pid: child.pid!,
    insert: (items, size) => ask({ call: 'insert', items, size }) as Promise<number>,
    drain: (count) => ask({ call: 'drain', count }) as Promise<void>,
    latency: (items) => ask({ call: 'latency', items }) as Promise<number[]>,
    async close() {
      if (child.connected) child.disconnect();
      await ended;
    },
  };
}
