/**
 * A TCP proxy on loopback that can do to connections what networks do: fall silent without a word, refuse, and move what a
 * name stands for to another server. It knows a session of PostgreSQL by its start-up packet, which has the application's
 * name in clear.
 */
import { connect, createServer, type Socket } from 'node:net';
import { systemClock } from '../../src/system/clock.ts';
import type { Scope } from './scope.ts';

export interface TcpProxy {
  readonly port: number;
  /** From now on nothing passes, on old connections and on new ones. */
  silence(): void;
  /** From now on every connection is reset at once. */
  refuse(): void;
  /** New connections pass again; those that saw the silence stay dead. */
  heal(): void;
  /** The old connections fall silent for good, as behind a firewall that forgot them; new ones pass. Gives how many. */
  forget(applicationName?: string): number;
  /** Resets the connections that have been silent for so long, as keep-alive would in the end. Gives how many. */
  bury(silentForMs: number): number;
  /** The next request on an old connection passes, and its answer does not, nor anything after it. */
  forgetNextAnswer(applicationName: string): Promise<void>;
  /** New connections go to another server; old ones stay where they are. */
  pointTo(connectionString: string): void;
}

interface Connection {
  readonly near: Socket;
  readonly far: Socket;
  /** Its first packet. */
  startup: string;
  /** Called after a request has passed on. */
  onRequest: (() => void) | undefined;
}

/** A proxy in front of the server that `connectionString` names; ended when `t` ends. */
export async function startTcpProxy(
  t: Scope,
  connectionString: string,
): Promise<TcpProxy & { connectionString: string }> {
  let target = new URL(connectionString);
  const sockets = new Set<Socket>();
  /** Since when. */
  const silent = new Map<Socket, number>();
  const connections = new Set<Connection>();
  let mode: 'open' | 'silent' | 'refusing' = 'open';
  const server = createServer((near) => {
    track(near);
    if (mode === 'refusing') near.resetAndDestroy();
    if (mode === 'silent') silent.set(near, systemClock.monotonicMs());
    if (mode !== 'open') return;
    const far = connect(Number(target.port), target.hostname);
    track(far);
    const connection: Connection = { near, far, startup: '', onRequest: undefined };
    connections.add(connection);
    near.once('close', () => connections.delete(connection));
    // A reset of one side is passed on to the other, unless nothing passes between them.
    near.once('close', () => near.isPaused() || far.destroy());
    far.once('close', () => far.isPaused() || near.destroy());
    near.pipe(far).pipe(near);
    // After the pipe's own listener: what came has been passed on by then.
    near.on('data', (chunk: Buffer) => {
      if (connection.startup === '') connection.startup = chunk.toString('latin1');
      else connection.onRequest?.();
    });
  });
  function track(socket: Socket): void {
    sockets.add(socket);
    socket.on('error', () => undefined);
    socket.once('close', () => {
      sockets.delete(socket);
      silent.delete(socket);
    });
  }
  function fall(socket: Socket): void {
    if (!silent.has(socket)) silent.set(socket, systemClock.monotonicMs());
    socket.unpipe();
    socket.pause();
  }
  const isOf = ({ startup }: Connection, applicationName: string | undefined) =>
    applicationName === undefined || startup.includes(`application_name\0${applicationName}\0`);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.teardown(async () => {
    for (const socket of sockets) socket.destroy();
    await new Promise((resolve) => server.close(resolve));
  });
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('the proxy has no port');
  const through = new URL(connectionString);
  through.hostname = '127.0.0.1';
  through.port = String(address.port);
  return {
    port: address.port,
    connectionString: through.href,
    silence() {
      mode = 'silent';
      for (const socket of sockets) fall(socket);
    },
    refuse() {
      mode = 'refusing';
      for (const socket of sockets) socket.resetAndDestroy();
    },
    heal() {
      mode = 'open';
    },
    forget(applicationName) {
      const forgotten = [...connections].filter((connection) => isOf(connection, applicationName));
      for (const { near, far } of forgotten) for (const socket of [near, far]) fall(socket);
      return forgotten.length;
    },
    bury(silentForMs) {
      const now = systemClock.monotonicMs();
      const buried = [...silent].filter(([, sinceMs]) => now - sinceMs >= silentForMs);
      for (const [socket] of buried) socket.resetAndDestroy();
      return buried.length;
    },
    forgetNextAnswer(applicationName) {
      return new Promise((resolve) => {
        const watched = [...connections].filter((connection) => isOf(connection, applicationName));
        for (const connection of watched) {
          connection.onRequest = () => {
            for (const each of watched) each.onRequest = undefined;
            for (const socket of [connection.near, connection.far]) fall(socket);
            resolve();
          };
        }
      });
    },
    pointTo(connectionString) {
      target = new URL(connectionString);
    },
  };
}
