/** A file that is made from the code and kept in the repository: written anew, or with `--check` only compared. */
import { readFile, writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';

/**
 * Exits with 1 where `--check` finds it different.
 * @param path from the root of the repository
 * @param from what it is made from, and `command`, which makes it: for whoever reads that it differs
 */
export async function keepGenerated(path: string, text: string, from: string, command: string): Promise<void> {
  const file = fileURLToPath(new URL(`../${path}`, import.meta.url));
  if (!process.argv.includes('--check')) return writeFile(file, text);
  const kept = await readFile(file, 'utf8').catch(() => '');
  if (kept === text) return;
  process.stderr.write(`${path} differs from ${from}; run \`${command}\` and commit it\n`);
  process.exitCode = 1;
}
