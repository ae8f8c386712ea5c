/**
 * The operating system's user that the embedded PostgreSQL runs as. PostgreSQL refuses to run as root, so root lends it to
 * somebody: to the owner of data that is there already, else to the user `postgres`, made if missing.
 * Also answers what that user can reach, by trying it as that user: folders above may be closed to anyone but their owner.
 */
import { type ChildProcess, execFile, type SpawnOptions, spawn } from 'node:child_process';
import { stat } from 'node:fs/promises';
import { promisify } from 'node:util';
import { EmbeddedError } from './embedded-error.ts';

const run = promisify(execFile);

/** Who PostgreSQL runs as; `ids` are absent where that is the user of this process. */
export interface Account {
  readonly name: string;
  readonly ids?: { readonly uid: number; readonly gid: number };
}

/** The user for the data folder `dataFolder`, which may not exist yet. As root: may make the user `postgres`. */
export async function findAccount(dataFolder: string): Promise<Account> {
  if (process.getuid?.() !== 0) return { name: 'the current user' };
  const owner = await stat(dataFolder).catch(() => undefined);
  if (owner !== undefined && owner.uid !== 0) {
    return { name: await nameOf(owner.uid), ids: { uid: owner.uid, gid: owner.gid } };
  }
  return { name: 'postgres', ids: (await findPostgresUser()) ?? (await makePostgresUser()) };
}

/** What a process needs to run as `account`, from a folder that everybody may enter and without our environment. */
export function spawnOptions(account: Account): SpawnOptions {
  return { ...account.ids, cwd: '/', env: { PATH: process.platform === 'win32' ? '' : '/usr/bin:/bin', LC_ALL: 'C' } };
}

/** Whether `account` may enter the folder. */
export async function canEnter(account: Account, folder: string): Promise<boolean> {
  if (account.ids === undefined) return true;
  return exitsWithZero(account, '/bin/sh', ['-c', 'cd "$1"', 'sh', folder]);
}

/** Whether `account` may read the file. */
export async function canRead(account: Account, file: string): Promise<boolean> {
  if (account.ids === undefined) return true;
  return exitsWithZero(account, '/bin/sh', ['-c', 'exec < "$1"', 'sh', file]);
}

/** Runs a command as `account`; false also where it cannot be started at all. */
export function exitsWithZero(account: Account, command: string, args: readonly string[]): Promise<boolean> {
  return new Promise((resolve) => {
    const child = spawn(command, args, { ...spawnOptions(account), stdio: 'ignore' });
    child.once('error', () => resolve(false));
    child.once('close', (code) => resolve(code === 0));
  });
}

/** How a process ends: its exit code, or the signal. Rejects where it does not start. */
export function exitOf(child: ChildProcess): Promise<number | NodeJS.Signals | null> {
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code, signal) => resolve(code ?? signal));
  });
}

async function findPostgresUser(): Promise<{ uid: number; gid: number } | undefined> {
  try {
    const [uid, gid] = await Promise.all([run('id', ['-u', 'postgres']), run('id', ['-g', 'postgres'])]);
    return { uid: Number.parseInt(uid.stdout, 10), gid: Number.parseInt(gid.stdout, 10) };
  } catch {
    return undefined;
  }
}

async function makePostgresUser(): Promise<{ uid: number; gid: number }> {
  // Both fail where somebody else makes them at this moment; what counts is whether the user is there afterwards.
  const group = await run('groupadd', ['--system', 'postgres']).catch((error: unknown) => error);
  const user = await run('useradd', [
    '--system',
    '--gid',
    'postgres',
    '--shell',
    '/usr/sbin/nologin',
    'postgres',
  ]).catch((error: unknown) => error);
  const ids = await findPostgresUser();
  if (ids !== undefined) return ids;
  throw new EmbeddedError(
    'PostgreSQL does not run as root, and the user "postgres" could not be made; make it, or run as another user, or set DATABASE_URL',
    { cause: new AggregateError([group, user]) },
  );
}

async function nameOf(uid: number): Promise<string> {
  const known = await run('id', ['-un', String(uid)]).catch(() => undefined);
  return known?.stdout.trim() || `user ${uid}`;
}
