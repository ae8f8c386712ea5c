/**
 * Makes the folder of an embedded server: `data` (PostgreSQL's own), `password` (ours, mode 600), later `server.log`.
 * It appears whole or not at all, and only once, however many processes make it at the same moment.
 */
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { chmod, chown, mkdir, readdir, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { type Account, exitOf, spawnOptions } from './embedded-account.ts';
import type { Binaries } from './embedded-binaries.ts';
import { codeOf, EmbeddedError } from './embedded-error.ts';
import { isAlive } from './embedded-pid-file.ts';

/** The server's superuser and only user. */
export const userName = 'sluice';

/**
 * Makes the server's folder at `path`. If `elsewhere` is given it is made there, and `path` becomes a link to it.
 * Of several processes that do so at once one wins, and the others find its folder.
 */
export async function createServerFolder(
  path: string,
  { account, binaries }: { account: Account; binaries: Binaries },
  elsewhere?: string,
): Promise<void> {
  await removeAbandonedDrafts(path);
  const draft = elsewhere ?? `${path}.new-${process.pid}`;
  await rm(draft, { recursive: true, force: true });
  await mkdir(draft, { recursive: true });
  try {
    await chmod(draft, 0o755);
    await initialise(draft, account, binaries);
    await (elsewhere === undefined ? rename(draft, path) : symlink(draft, path));
  } catch (error) {
    await rm(draft, { recursive: true, force: true });
    if (!['ENOTEMPTY', 'EEXIST'].includes(codeOf(error))) throw error;
  }
}

/** A process that was killed in the middle left its draft behind. */
async function removeAbandonedDrafts(path: string): Promise<void> {
  const start = `${basename(path)}.new-`;
  for (const name of await readdir(dirname(path))) {
    if (name.startsWith(start) && !isAlive(Number(name.slice(start.length)))) {
      await rm(join(dirname(path), name), { recursive: true, force: true });
    }
  }
}

async function initialise(folder: string, account: Account, binaries: Binaries): Promise<void> {
  const data = join(folder, 'data');
  await mkdir(data, { mode: 0o700 });
  const password = randomBytes(24).toString('base64url');
  // initdb reads it as the account, so it starts as a file of the account's; afterwards it is ours alone.
  const passwordFile = join(folder, 'password');
  await writeFile(passwordFile, password, { mode: 0o600 });
  if (account.ids !== undefined) {
    await chown(data, account.ids.uid, account.ids.gid);
    await chown(passwordFile, account.ids.uid, account.ids.gid);
  }
  const child = spawn(
    binaries.initdb,
    [
      `--pgdata=${data}`,
      `--username=${userName}`,
      `--pwfile=${passwordFile}`,
      '--auth=scram-sha-256',
      '--encoding=UTF8',
      // The same order of text on every machine, whatever locales it has.
      '--locale=C',
      '--locale-provider=builtin',
      '--builtin-locale=C.UTF-8',
    ],
    { ...spawnOptions(account), stdio: ['ignore', 'ignore', 'pipe'] },
  );
  let said = '';
  child.stderr?.on('data', (chunk: Buffer) => {
    said += chunk.toString();
  });
  const code = await exitOf(child);
  if (code !== 0) throw new EmbeddedError(`initdb ended with ${code}: ${said.trim()}`);
  if (account.ids !== undefined) await chown(passwordFile, process.getuid?.() ?? 0, process.getgid?.() ?? 0);
}
