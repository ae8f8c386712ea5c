/**
 * An upstream below HTTP: a TCP server on loopback that keeps every byte it got and answers what a test tells it to, broken
 * answers too. Nothing of HTTP is checked or added here.
 */
import { once } from 'node:events';
import net from 'node:net';
import type { Test } from 'tap';

export interface RawConnection {
  readonly socket: net.Socket;
  /** What came in so far. */
  received(): string;
  /** Resolves when this side has seen the connection end, however it ended. */
  readonly closed: Promise<void>;
}

export interface RawUpstream {
  readonly port: number;
  url(path?: string, host?: string): URL;
  /** In the order of their opening. */
  readonly connections: readonly RawConnection[];
  /** Most that were open at one time. */
  mostOpen(): number;
  /** All that came in, over all connections. */
  received(): string;
}

/** Calls `onRequest` for each complete request head with its body, by Content-Length, in the order of arrival. */
export type OnRequest = (connection: RawConnection, request: string, index: number) => void;

export async function rawUpstream(t: Test, onRequest: OnRequest = () => {}): Promise<RawUpstream> {
  const connections: RawConnection[] = [];
  let open = 0;
  let mostOpen = 0;
  let requests = 0;
  const server = net.createServer((socket) => {
    open += 1;
    mostOpen = Math.max(mostOpen, open);
    let received = '';
    let unread = '';
    const closed = new Promise<void>((resolve) => {
      socket.once('close', () => {
        open -= 1;
        resolve();
      });
    });
    const connection: RawConnection = { socket, received: () => received, closed };
    connections.push(connection);
    socket.on('error', () => {});
    socket.on('data', (chunk) => {
      received += chunk.toString('latin1');
      unread += chunk.toString('latin1');
      for (let request = firstRequest(unread); request !== null; request = firstRequest(unread)) {
        unread = unread.slice(request.length);
        onRequest(connection, request, requests);
        requests += 1;
      }
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(async () => {
    for (const { socket } of connections) socket.destroy();
    server.close();
    await once(server, 'close');
  });
  const { port } = server.address() as net.AddressInfo;
  return {
    port,
    url: (path = '/', host = '127.0.0.1') => new URL(path, `http://${host}:${port}`),
    connections,
    mostOpen: () => mostOpen,
    received: () => connections.map((connection) => connection.received()).join(''),
  };
}

function firstRequest(text: string): string | null {
  const headEnd = text.indexOf('\r\n\r\n');
  if (headEnd === -1) return null;
  const length = Number(/content-length: (\d+)/i.exec(text.slice(0, headEnd))?.[1] ?? 0);
  const end = headEnd + 4 + length;
  return text.length < end ? null : text.slice(0, end);
}

/** An answer with a body of known length. */
export function answer(status: number, body: string | Buffer = '', headers: readonly string[] = []): Buffer {
  const bytes = Buffer.from(body);
  const head = [`HTTP/1.1 ${status} X`, `content-length: ${bytes.length}`, ...headers].join('\r\n');
  return Buffer.concat([Buffer.from(`${head}\r\n\r\n`), bytes]);
}
