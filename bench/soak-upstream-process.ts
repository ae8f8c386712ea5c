/** Starts the upstream of a soak and asks it for what has come; questions are answered in their order. */
import { fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';

/** Since the last time. Latencies: from POST to arrival; null: nothing came. */
export interface Taken {
  readonly total: number;
  readonly calls: number;
  readonly p50Ms: number | null;
  readonly p99Ms: number | null;
  readonly mostMs: number | null;
}

export interface SoakUpstream {
  readonly url: string;
  readonly pid: number;
  /** Calls in all. */
  count(): Promise<number>;
  take(): Promise<Taken>;
  close(): Promise<void>;
}

export async function startSoakUpstream(): Promise<SoakUpstream> {
  const child = fork(fileURLToPath(new URL('soak-upstream.ts', import.meta.url)));
  const waiting: Array<{ resolve: (value: unknown) => void; reject: (error: Error) => void }> = [];
  const answered = () => new Promise<unknown>((resolve, reject) => waiting.push({ resolve, reject }));
  child.on('message', (value) => waiting.shift()?.resolve(value));
  const ended = new Promise<void>((resolve) => {
    child.once('exit', (code, signal) => {
      for (const { reject } of waiting.splice(0)) reject(new Error(`the upstream ended (${signal ?? code})`));
      resolve();
    });
  });
  const ask = (command: 'count' | 'take') => {
    const answer = answered();
    child.send(command);
    return answer;
  };
  const url = (await answered()) as string;
  return {
    url,
    pid: child.pid!,
    count: async () => (await ask('count')) as number,
    take: async () => (await ask('take')) as Taken,
    async close() {
      if (child.connected) child.disconnect();
      await ended;
    },
  };
}
