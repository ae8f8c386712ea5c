/** The dependencies of the use cases around definitions, on a test's database. */
import type { DefinitionDependencies } from '../../src/application/manage-definitions.ts';
import type { Database } from '../../src/postgres/database.ts';
import { systemClock } from '../../src/system/clock.ts';

export function definitionDependencies(database: Database): DefinitionDependencies {
  return { database, clock: systemClock, secrets: new Set(['API_KEY']) };
}
