/**
 * Builds the test runner for its plugins in package.json, if that is not done: tap comes built with a TypeScript plugin that
 * does not work with TypeScript 7, and its first run in a fresh clone would still use that one (the second would not).
 * Runs right after `npm ci`; where only what the service needs is installed there is no tap, and nothing to do.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const runner = join(root, 'node_modules', '@tapjs', 'run', 'dist', 'esm', 'index.js');
const built = join(root, 'node_modules', '@tapjs', 'test', 'test-built', 'dist', 'esm', 'index.js');

function isBuilt() {
  return existsSync(built) && !readFileSync(built, 'utf8').includes('@tapjs/typescript');
}

if (existsSync(runner) && !isBuilt()) {
  spawnSync(process.execPath, [runner, 'build'], { cwd: root, stdio: 'inherit' });
  if (!isBuilt()) {
    process.stderr.write('tap could not be built without its TypeScript plugin; run `npx tap build`\n');
    process.exitCode = 1;
  }
}
