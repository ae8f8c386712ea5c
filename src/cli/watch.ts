/** `sluice watch BATCH`: follows a batch to its end; the exit code says how it came out. */
import { Command } from 'commander';
import { endOf, exitCodeOf, followBatch } from './follow-batch.ts';
import { openProgressView } from './progress-view.ts';
import { exitCodes, openClient, talk, talking, talkingHelp } from './talk.ts';

const help = `
Progress and jobs that did not succeed go to stderr, the result to stdout.

Exit codes:
  ${exitCodes.ok}    completed, and every job behind the batch succeeded
  ${exitCodes.notAll}    over, with jobs that failed, were cancelled or expired
  ${exitCodes.usage}    wrong arguments or environment
  ${exitCodes.unreachable}    the service could not be reached, or could not answer just now
  ${exitCodes.refused}    refused: no such batch, or not with this key
  ${exitCodes.held}    what is left of it is held: a person has to decide
  ${exitCodes.interrupted}  interrupted; the batch goes on without being watched
${talkingHelp}`;

interface WatchOptions {
  readonly url?: string;
  readonly json?: true;
}

export function watchCommand(): Command {
  return talking(
    new Command('watch')
      .description('follow a batch to its end, with a progress bar; the exit code says how it came out')
      .argument('<batch>', 'id of the batch')
      .option('--json', 'write the batch as JSON to stdout, as GET /v1/batches/{batch_id} gives it'),
  )
    .addHelpText('after', help)
    .action((batchId: string, { url, json }: WatchOptions) =>
      talk(async (signal) => {
        const batch = await followBatch({
          client: openClient(url),
          batchId,
          view: openProgressView(process.stderr),
          signal,
        });
        process.stdout.write(`${json ? JSON.stringify(batch) : endOf(batch)}\n`);
        return exitCodeOf(batch);
      }),
    );
}
