/** The HTTP side on a database, without workers or a process of its own; its log lines are there to look at. */
import type { Test } from 'tap';
import { DefinitionStore } from '../../src/application/definitions.ts';
import { type AppDependencies, buildApp } from '../../src/http/app.ts';
import { type Database, openDatabase } from '../../src/postgres/database.ts';
import { systemClock } from '../../src/system/clock.ts';
import { createLogger } from '../../src/system/logger.ts';

export interface TestApp {
  readonly app: ReturnType<typeof buildApp>;
  /** Log lines so far, parsed; the text is in `logText`. */
  logLines(): Record<string, unknown>[];
  logText(): string;
}

/** Not listening yet: use `inject`, or `listen({ port: 0 })` for real sockets. Closed when `t` ends. */
export async function createTestApp(
  t: Test,
  database: Database,
  overrides: Partial<AppDependencies> = {},
): Promise<TestApp> {
  let text = '';
  const logger = createLogger('debug', {
    write: (line) => {
      text += line;
    },
  });
  const app = buildApp({
    logger,
    clock: systemClock,
    database,
    definitions: new DefinitionStore(database),
    secrets: new Set(['API_KEY']),
    keyRetentionDays: 7,
    adminKey: undefined,
    readiness: () => [],
    ...overrides,
  });
  t.teardown(() => app.close());
  await app.ready();
  return {
    app,
    logLines: () =>
      text
        .split('\n')
        .filter(Boolean)
        .map((line) => JSON.parse(line) as Record<string, unknown>),
    logText: () => text,
  };
}

/** A database that nobody can reach; closed when `t` ends. */
export function unreachableDatabase(t: Test): Database {
  // Port 1 (tcpmux) is never listened to on a machine that runs tests.
  const database = openDatabase({
    connectionString: 'postgres://nobody@127.0.0.1:1/none',
    max: 1,
    logger: createLogger('silent'),
  });
  t.teardown(() => database.close());
  return database;
}
