#!/usr/bin/env node
/**
 * The program's entry: runs the command that the arguments name, and turns what stops it into lines and an exit code.
 * Faults that the user can mend come without a stack, one line each.
 */
import { readFileSync } from 'node:fs';
import { createProgram } from './cli/program.ts';
import { StartError } from './cli/start-error.ts';
import { migrateDatabase, startService } from './compose.ts';
import { ConfigError } from './config.ts';
import { DatabaseUnavailableError } from './postgres/database.ts';
import { EmbeddedError } from './postgres/embedded-error.ts';

const { version } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8')) as {
  version: string;
};

try {
  await createProgram({ version, startService, migrateDatabase }).parseAsync();
} catch (error) {
  for (const line of linesOf(error)) process.stderr.write(`sluice: ${line}\n`);
  process.exitCode = 1;
}
// What is still open (a socket that its peer keeps) must not hold up the end.
process.exit();

function linesOf(error: unknown): readonly string[] {
  if (error instanceof ConfigError) return error.faults;
  if (error instanceof StartError) return error.lines;
  if (error instanceof EmbeddedError || error instanceof DatabaseUnavailableError) return [error.message];
  return [error instanceof Error ? (error.stack ?? error.message) : String(error)];
}
