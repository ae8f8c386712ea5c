/**
 * Writes `openapi/openapi.json` from the routes: `node --import tsx scripts/openapi.ts`. With `--check` it writes nothing and
 * exits 1 where the file differs from the code. The same code always gives the same bytes.
 */
import { readFile, writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { type AppDependencies, buildApp } from '../src/http/app.ts';
import { systemClock } from '../src/system/clock.ts';
import { createLogger } from '../src/system/logger.ts';

const file = fileURLToPath(new URL('../openapi/openapi.json', import.meta.url));

/** The document as it is kept in the repository. */
export async function openApiText(): Promise<string> {
  // Routes touch what they depend on only when they are asked something.
  const dependencies = { logger: createLogger('silent'), clock: systemClock, readiness: () => [] };
  const app = buildApp(dependencies as unknown as AppDependencies);
  await app.ready();
  const document = app.swagger();
  await app.close();
  return `${JSON.stringify(document, null, 2)}\n`;
}

async function run(check: boolean): Promise<void> {
  const text = await openApiText();
  if (!check) {
    await writeFile(file, text);
    return;
  }
  const kept = await readFile(file, 'utf8').catch(() => '');
  if (kept === text) return;
  process.stderr.write('openapi/openapi.json differs from the routes; run `npm run openapi` and commit it\n');
  process.exitCode = 1;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await run(process.argv.includes('--check'));
