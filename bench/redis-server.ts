/**
 * A Redis for a bench, as durable as a commit here is: every write is in its file before it is answered (appendfsync
 * always), unless asked otherwise. Uses `redis-server` of the PATH, or the one that BENCH_REDIS_SERVER names.
 */
import { spawn, spawnSync } from 'node:child_process';
import { mkdir } from 'node:fs/promises';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import type { Stage } from './stage.ts';

export type AppendFsync = 'always' | 'everysec';

const program = process.env.BENCH_REDIS_SERVER ?? 'redis-server';

/** Such as `7.0.15`; null: there is none. */
export function redisVersion(): string | null {
  const { stdout, status } = spawnSync(program, ['--version'], { encoding: 'utf8' });
  return status === 0 ? (/v=(\S+)/.exec(stdout)?.[1] ?? 'unknown') : null;
}

/** An empty one, in a folder of this name. Gives the port; the server ends with the stage. */
export async function startRedis(stage: Stage, appendFsync: AppendFsync, name: string): Promise<number> {
  const folder = join(stage.folder, `redis-${name}`);
  await mkdir(folder);
  const port = await freePort();
  const settings = {
    bind: '127.0.0.1',
    port: String(port),
    dir: folder,
    save: '',
    appendonly: 'yes',
    appendfsync: appendFsync,
    'maxmemory-policy': 'noeviction',
  };
  const flags = Object.entries(settings).flatMap(([name, value]) => [`--${name}`, value]);
  const child = spawn(program, flags, { stdio: ['ignore', 'pipe', 'inherit'] });
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()));
  stage.onClose(async () => {
    child.kill('SIGTERM');
    await ended;
  });
  let said = '';
  await new Promise<void>((resolve, reject) => {
    child.stdout.on('data', (chunk: Buffer) => {
      said += chunk.toString();
      if (said.includes('Ready to accept connections')) resolve();
    });
    void ended.then(() => reject(new Error(`redis-server ended: ${said}`)));
  });
  return port;
}

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}
