/**
 * Starts the simulated upstream in a process of its own and speaks with it. Same rules and books as in-process; every call is
 * asynchronous, and `log()` is a copy as of now.
 */
import { fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { monotonicOriginMs } from '../system/clock.ts';
import type { FaultMix, Rule } from './answers.ts';
import type { Quota } from './quota.ts';
import { type ArrivedRequest, RequestLog } from './request-log.ts';
import type { UpstreamOptions } from './upstream.ts';

export type Command = { readonly id: number } & (
  | { readonly call: 'requests' }
  | { readonly call: 'count' }
  | { readonly call: 'script'; readonly rules: readonly Rule[] }
  | { readonly call: 'unscript' }
  | { readonly call: 'setFaults'; readonly mix: FaultMix }
  | { readonly call: 'setQuota'; readonly quota: Quota | null }
  | { readonly call: 'release'; readonly gate: string }
);

/** `id` of the command it answers; 0: the process listens, `value` is a `Listening`. */
export interface Reply {
  readonly id: number;
  readonly value: unknown;
}

export interface Listening {
  readonly url: string;
  /** `monotonicOriginMs` of the process. */
  readonly originMs: number;
}

type Call = Command extends infer C ? (C extends Command ? Omit<C, 'id'> : never) : never;

export interface UpstreamProcess {
  readonly url: string;
  readonly pid: number;
  /** Added to a monotonic time of its books it is that moment on the monotonic clock of this process. */
  readonly clockAheadMs: number;
  /** Every call so far. */
  log(): Promise<RequestLog>;
  /** How many calls arrived so far, without copying them. */
  count(): Promise<number>;
  script(...rules: Rule[]): Promise<void>;
  unscript(): Promise<void>;
  setFaults(mix: FaultMix): Promise<void>;
  setQuota(quota: Quota | null): Promise<void>;
  release(gate: string): Promise<void>;
  /** Resolves when the process has ended. */
  close(): Promise<void>;
}

/** Rejects where the process ends before it listens. */
export async function startUpstreamProcess(options: UpstreamOptions = {}): Promise<UpstreamProcess> {
  // The sibling file as this one runs: .ts under a loader, .js when built.
  const entry = fileURLToPath(new URL(`./main${import.meta.url.slice(-3)}`, import.meta.url));
  const child = fork(entry, [JSON.stringify(options)], { serialization: 'advanced' });
  const waiting = new Map<number, { resolve: (value: unknown) => void; reject: (error: Error) => void }>();
  let lastId = 0;

  const answered = (id: number) =>
    new Promise<unknown>((resolve, reject) => {
      waiting.set(id, { resolve, reject });
    });
  child.on('message', (reply: Reply) => {
    waiting.get(reply.id)?.resolve(reply.value);
    waiting.delete(reply.id);
  });
  const ended = new Promise<void>((resolve) => {
    child.once('exit', (code, signal) => {
      const error = new Error(`the simulated upstream ended (${signal ?? code})`);
      for (const { reject } of waiting.values()) reject(error);
      waiting.clear();
      resolve();
    });
  });
  const ask = async (call: Call): Promise<unknown> => {
    if (!child.connected) throw new Error('the simulated upstream has ended');
    lastId += 1;
    const answer = answered(lastId);
    child.send({ ...call, id: lastId });
    return answer;
  };

  const { url, originMs } = (await answered(0)) as Listening;
  return {
    url,
    pid: child.pid as number,
    clockAheadMs: originMs - monotonicOriginMs(),
    async log() {
      return new RequestLog((await ask({ call: 'requests' })) as ArrivedRequest[]);
    },
    async count() {
      return (await ask({ call: 'count' })) as number;
    },
    async script(...rules) {
      await ask({ call: 'script', rules });
    },
    async unscript() {
      await ask({ call: 'unscript' });
    },
    async setFaults(mix) {
      await ask({ call: 'setFaults', mix });
    },
    async setQuota(quota) {
      await ask({ call: 'setQuota', quota });
    },
    async release(gate) {
      await ask({ call: 'release', gate });
    },
    async close() {
      if (child.connected) child.disconnect();
      await ended;
    },
  };
}
