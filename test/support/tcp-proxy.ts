/**
 * A TCP proxy on loopback that can fall silent, as a network does that drops packets: connections stay open, new ones are
 * accepted, and no byte passes either way.
 */
import { connect, createServer, type Socket } from 'node:net';
import type { Test } from 'tap';

export interface TcpProxy {
  readonly port: number;
  /** From now on nothing passes, on old connections and on new ones. */
  silence(): void;
  /** From now on every connection is reset at once. */
  refuse(): void;
  /** New connections pass again; those that saw the silence stay dead. */
  heal(): void;
}

/** A proxy in front of the server that `connectionString` names; ended when `t` ends. */
export async function startTcpProxy(
  t: Test,
  connectionString: string,
): Promise<TcpProxy & { connectionString: string }> {
  const target = new URL(connectionString);
  const sockets = new Set<Socket>();
  let mode: 'open' | 'silent' | 'refusing' = 'open';
  const server = createServer((near) => {
    track(near);
    if (mode === 'refusing') near.resetAndDestroy();
    if (mode !== 'open') return;
    const far = connect(Number(target.port), target.hostname);
    track(far);
    near.pipe(far).pipe(near);
  });
  function track(socket: Socket): void {
    sockets.add(socket);
    socket.on('error', () => undefined);
    socket.once('close', () => sockets.delete(socket));
  }
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
      for (const socket of sockets) {
        socket.unpipe();
        socket.pause();
      }
    },
    refuse() {
      mode = 'refusing';
      for (const socket of sockets) socket.resetAndDestroy();
    },
    heal() {
      mode = 'open';
    },
  };
}
