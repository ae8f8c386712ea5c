/**
 * Writes `openapi/openapi.json` from the routes: `node --import tsx scripts/openapi.ts`. With `--check` it writes nothing and
 * exits 1 where the file differs from the code. The same code always gives the same bytes.
 */
import { fileURLToPath } from 'node:url';
import { type AppDependencies, buildApp } from '../src/http/app.ts';
import { systemClock } from '../src/system/clock.ts';
import { createLogger } from '../src/system/logger.ts';
import { keepGenerated } from './generated-file.ts';

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

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  await keepGenerated('openapi/openapi.json', await openApiText(), 'the routes', 'npm run openapi');
}
