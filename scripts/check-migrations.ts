/**
 * `npm run db:check`: fails where `drizzle/` is not what the tables in the code need, that is, where generating migrations
 * would write one more. Works on a copy.
 */
import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
process.chdir(root);
const kit = join(dirname(createRequire(import.meta.url).resolve('drizzle-kit')), 'bin.cjs');
// Inside the project: the tool takes paths from there only.
const copy = mkdtempSync(join(root, '.drizzle-check-'));
try {
  cpSync('drizzle', copy, { recursive: true });
  const { status, stdout, stderr } = spawnSync(
    process.execPath,
    [kit, 'generate', '--dialect=postgresql', '--schema=./src/postgres/schema.ts', `--out=./${relative(root, copy)}`],
    // It asks where a column may have been renamed; an answer would be a guess.
    { stdio: ['ignore', 'pipe', 'pipe'], encoding: 'utf8' },
  );
  const known = new Set(readdirSync('drizzle'));
  const missing = readdirSync(copy).filter((name) => !known.has(name));
  if (status !== 0) {
    process.stderr.write(`${stdout}${stderr}`);
    process.exitCode = 1;
  } else if (missing.length > 0) {
    process.stderr.write('drizzle/ does not match src/postgres/schema.ts; run `npm run db:generate`. Missing:\n');
    for (const name of missing) process.stderr.write(`${readFileSync(join(copy, name), 'utf8')}\n`);
    process.exitCode = 1;
  } else {
    process.stdout.write('drizzle/ matches the code\n');
  }
} finally {
  rmSync(copy, { recursive: true, force: true });
}
