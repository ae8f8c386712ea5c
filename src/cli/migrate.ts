/** `sluice migrate`: brings the database up to date and ends; for deployments that do so before they start replicas. */
import { Command } from 'commander';
import { type Config, loadConfig } from '../config.ts';
import { createLogger, type Logger } from '../system/logger.ts';

/** Migrates the configured database, or the embedded one. */
export type MigrateDatabase = (config: Config, logger: Logger) => Promise<void>;

export function migrateCommand(migrateDatabase: MigrateDatabase): Command {
  return new Command('migrate')
    .description('bring the database up to date and exit; safe to run from several places at once')
    .addHelpText(
      'after',
      '\nEnvironment:\n  DATABASE_URL     PostgreSQL to use; without it the embedded one in SLUICE_DATA_DIR',
    )
    .action(async () => {
      const config = loadConfig();
      const logger = createLogger(config.logLevel);
      await migrateDatabase(config, logger);
      logger.info('the database is up to date');
    });
}
