/** Where the servers of tests keep their data: thrown away, so as fast as the machine has it, and open to their user. */
import { chmod, mkdtemp, statfs } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Account, canEnter } from '../../src/postgres/embedded-account.ts';
import { ownFolder } from '../../src/postgres/embedded-binaries.ts';

const plentyBytes = 4 * 1024 ** 3;

/**
 * A new folder that `account` can enter. A database is 300 files, and on some disks that takes 200 ms to make and 40 ms in
 * memory: so memory, if there is plenty (in a container it may be 64 MB). Else the folder for temporary files, or, where the
 * server's user cannot go there, one of root's own.
 */
export async function makeServerHome(account: Account): Promise<string> {
  const memory = await statfs('/dev/shm').catch(() => undefined);
  const places = memory !== undefined && memory.bavail * memory.bsize > plentyBytes ? ['/dev/shm'] : [];
  for (const place of [...places, tmpdir()]) {
    const home = await mkdtemp(join(place, 'sluice-tests-')).catch(() => undefined);
    if (home === undefined) continue;
    await chmod(home, 0o755);
    if (await canEnter(account, home)) return home;
  }
  return mkdtemp(join(await ownFolder(), 'test-'));
}
