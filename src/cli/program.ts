/** The commands of `sluice`, put together. What they need from the composition comes in as functions. */
import { Command, InvalidArgumentError } from 'commander';
import { inheritedEnvironment, loadConfig } from '../config.ts';
import { checkCommand } from './check.ts';
import { runDemo } from './demo.ts';
import { type MigrateDatabase, migrateCommand } from './migrate.ts';
import { type StartService, serveCommand } from './serve.ts';
import { submitCommand } from './submit.ts';
import { watchCommand } from './watch.ts';

export interface ProgramOptions {
  readonly version: string;
  readonly startService: StartService;
  readonly migrateDatabase: MigrateDatabase;
}

export function createProgram({ version, startService, migrateDatabase }: ProgramOptions): Command {
  return new Command('sluice')
    .description(
      'Pushes many calls at rate-limited third-party APIs: nothing lost, the quota never exceeded, nothing done twice.',
    )
    .version(version)
    .addCommand(serveCommand(startService))
    .addCommand(migrateCommand(migrateDatabase))
    .addCommand(checkCommand())
    .addCommand(submitCommand())
    .addCommand(watchCommand())
    .addCommand(demoCommand());
}

function demoCommand(): Command {
  return new Command('demo')
    .description('play the main job from end to end on this machine, with real processes, and prove the bound')
    .option('--replicas <n>', 'processes of the service', count(1, 16), 1)
    .option('--items <n>', 'calls in the main batch', count(1, 10_000), 500)
    .option('--limit <n>', 'starts per second', count(1, 10_000), 50)
    .addHelpText(
      'after',
      '\nExit code: 0 if nothing was lost, doubled or over the limit, else 1.\nEnvironment:\n  DATABASE_URL  PostgreSQL to use; without it an embedded one in a temporary folder',
    )
    .action(async (options: { replicas: number; items: number; limit: number }) => {
      const environment = inheritedEnvironment();
      const { DATABASE_URL } = environment;
      const { databaseUrl } = loadConfig({ DATABASE_URL });
      process.exitCode = await runDemo({ ...options, databaseUrl, environment, out: process.stdout });
    });
}

function count(min: number, max: number): (text: string) => number {
  return (text) => {
    if (/^\d{1,9}$/.test(text) && Number(text) >= min && Number(text) <= max) return Number(text);
    throw new InvalidArgumentError(`It must be an integer from ${min} to ${max}.`);
  };
}
