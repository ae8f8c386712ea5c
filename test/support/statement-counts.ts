/** Counts the statements that go to a database, by the name that each has. */
import type { Database } from '../../src/postgres/database.ts';

export interface CountedDatabase {
  readonly database: Database;
  /** Statements of this name so far; without a name: all. */
  count(name?: string): number;
}

export function countStatements(database: Database): CountedDatabase {
  const counts = new Map<string, number>();
  const query: Database['query'] = (text, values, name, options) => {
    counts.set(name ?? '', (counts.get(name ?? '') ?? 0) + 1);
    return database.query(text, values, name, options);
  };
  return {
    database: { ...database, query },
    count: (name) =>
      name === undefined ? [...counts.values()].reduce((sum, n) => sum + n, 0) : (counts.get(name) ?? 0),
  };
}
