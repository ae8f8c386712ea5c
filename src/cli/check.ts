/** `sluice check FILE`: every fault of a file of definitions, without a database and without a running service. */
import { Command } from 'commander';
import { loadSecrets } from '../config.ts';
import { checkConfigFile } from '../domain/check-definitions.ts';
import { faultLines, readDefinitionsFile } from './definitions-file.ts';
import { StartError } from './start-error.ts';

export function checkCommand(): Command {
  return new Command('check')
    .description('check a file of upstreams, rate limits and queues; exit code 1 and a line per fault if it has any')
    .argument('<file>', 'JSON file, in the shape of SLUICE_CONFIG')
    .addHelpText(
      'after',
      '\nEnvironment:\n  SLUICE_SECRETS  names of environment variables that headers may use; each one used must be set',
    )
    .action(async (file: string) => {
      const faults = checkConfigFile(await readDefinitionsFile(file), loadSecrets());
      if (faults.length > 0) throw new StartError(faultLines(file, faults));
      process.stdout.write(`${file}: no faults\n`);
    });
}
