/**
 * `npm run build`: compiles src into dist. Starts from an empty folder, so that no file stays of a source that is gone, and
 * makes the program executable, since `npx sluice` runs it as it is. Runs right after `npm ci` (script `prepare`).
 */
import { spawnSync } from 'node:child_process';
import { chmodSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const dist = join(root, 'dist');
const tsc = join(dirname(createRequire(import.meta.url).resolve('typescript/package.json')), 'bin', 'tsc');

rmSync(dist, { recursive: true, force: true });
const { status } = spawnSync(process.execPath, [tsc, '-p', join(root, 'tsconfig.build.json')], { stdio: 'inherit' });
if (status === 0) chmodSync(join(dist, 'main.js'), 0o755);
process.exitCode = status ?? 1;
