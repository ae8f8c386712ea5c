/**
 * PL/pgSQL functions that are installed by postgres/migrate.ts whenever their text changes.
 */
export const storedFunctions: readonly { name: string; sql: string }[] = [];
