/**
 * `sluice submit FILE`: sends a file of items to the service as one stream, of any length, and counts the verdicts. The key of
 * the submission comes from the file, so that the same command after a break goes on with the same batch.
 */
import { createHash } from 'node:crypto';
import { Command, Option } from 'commander';
import type { BatchProgress, LineDefaults, LineSubmission, LineVerdict } from '../client/index.ts';
import { FaultLines } from './fault-lines.ts';
import { endOf, exitCodeOf, followBatch } from './follow-batch.ts';
import { type LineInput, openLines } from './line-source.ts';
import { openProgressView, type ProgressView } from './progress-view.ts';
import { exitCodes, type Failure, openClient, talk, talking, talkingHelp, tell } from './talk.ts';

/** Lines that were not taken in the JSON result; more are counted. */
const mostListed = 100;

const help = `
Each line is one item: {"idempotency_key": "ord-1", "upstream": "stripe", "path": "/v1/charges", "body": {"amount": 5}}
Options fill in what lines leave out. Lines may be many: they go out as they are read, and verdicts come meanwhile.

A broken connection is taken up again by itself a few times. After that, or after Ctrl-C, give the same command again: the
key of the submission is made from the file and the options, so that it goes on with the same batch, and nothing is doubled.
Lines of a pipe can be read only once: give --key, and pipe the same lines again.

Under the same key the verdicts stay those of the first time, also where what was missing is there by now. To have rejected
lines judged anew, give --key NEW, any name not used yet: what was accepted is then a duplicate, and nothing is done twice.

Progress, and lines that were not taken, go to stderr; the result goes to stdout.

Exit codes:
  ${exitCodes.ok}    every line was accepted, or is a duplicate of what is known; with --wait: and every job succeeded
  ${exitCodes.notAll}    some line was rejected or is a conflict; with --wait: or some job failed, was cancelled or expired
  ${exitCodes.usage}    wrong arguments or environment; or the file cannot be read, has no lines, or is not one item a line
  ${exitCodes.unreachable}    the service could not be reached, or the connection broke more often than is put up with
  ${exitCodes.refused}    refused: not with this key, or not the lines that are stored under this --key; with --wait: or the lines are
       all stored, and only following them is refused
  ${exitCodes.held}    with --wait: what is left of the batch is held, and a person has to decide
  ${exitCodes.interrupted}  interrupted; the batch is incomplete until the same command is given again
${talkingHelp}`;

interface SubmitOptions {
  readonly url?: string;
  readonly key?: string;
  readonly upstream?: string;
  readonly queue?: string;
  readonly method?: NonNullable<LineDefaults['method']>;
  readonly path?: string;
  readonly partitionKey?: string;
  readonly correlationId?: string;
  readonly deriveKeys?: true;
  readonly wait?: true;
  readonly json?: true;
}

export function submitCommand(): Command {
  return talking(
    new Command('submit')
      .description('send a file of items (NDJSON, one a line) as a batch, with a progress bar and the verdicts counted')
      .argument('<file>', 'the file; - for stdin')
      .option('--upstream <name>', 'upstream of lines that name none')
      .option('--queue <name>', 'queue of lines that name none')
      .addOption(
        new Option('--method <method>', 'method of lines that have none').choices([
          'GET',
          'POST',
          'PUT',
          'PATCH',
          'DELETE',
        ]),
      )
      .option('--path <path>', 'path of lines that have none')
      .option('--partition-key <key>', 'partition key of lines that have none')
      .option('--correlation-id <id>', 'kept with the batch and its jobs')
      .option('--derive-keys', 'give lines without a key one made from their content')
      .option('--key <key>', 'Idempotency-Key of the submission (default: made from the file and these options)')
      .option('--wait', 'follow the batch to its end')
      .option('--json', 'write the result as JSON to stdout'),
  )
    .addHelpText('after', help)
    .action(submit);
}

async function submit(file: string, options: SubmitOptions): Promise<void> {
  const view = openProgressView(process.stderr);
  let run: Run | undefined;
  await talk(
    async (signal) => {
      const client = openClient(options.url);
      const input = await openLines(file, process.stdin, signal);
      const defaults = defaultsOf(options);
      const idempotencyKey = options.key ?? derivedKey(input, defaults);
      const submission = client.submitLines(input.lines, {
        defaults,
        idempotencyKey,
        signal,
        onBreak: (error, ms) => view.say(`${error.message}; going on in ${(ms / 1000).toFixed(1)} s`),
      });
      run = new Run(file, options, input, submission, view);
      await run.readVerdicts();
      const batchId = submission.batchId as string;
      const batch = options.wait ? await followBatch({ client, batchId, view, signal }) : undefined;
      return run.finish(submission.summary as BatchProgress, batch);
    },
    (failure) => {
      view.end();
      if (run === undefined) tell(failure);
      else run.fail(failure);
    },
  );
}

function defaultsOf(options: SubmitOptions): LineDefaults {
  const { upstream, queue, method, path, partitionKey, correlationId, deriveKeys } = options;
  const defaults = {
    upstream,
    queue,
    method,
    path,
    partition_key: partitionKey,
    correlation_id: correlationId,
    derive_keys: deriveKeys,
  };
  return Object.fromEntries(Object.entries(defaults).filter(([, value]) => value !== undefined));
}

/** The same file with the same options gives the same key; a pipe gives none. */
function derivedKey({ sha256 }: LineInput, defaults: LineDefaults): string | undefined {
  if (sha256 === null) return undefined;
  const form = JSON.stringify([sha256, Object.entries(defaults).sort(([a], [b]) => (a < b ? -1 : 1))]);
  return `submit-${createHash('sha256').update(form).digest('hex')}`;
}

interface NotTaken {
  readonly line: number;
  readonly index: number;
  readonly idempotency_key: string | null;
  readonly verdict: string;
  readonly errors: NonNullable<LineVerdict['errors']>;
}

/** One submission, from the first verdict to the result. */
class Run {
  readonly #file: string;
  readonly #options: SubmitOptions;
  readonly #input: LineInput;
  readonly #submission: LineSubmission;
  readonly #view: ProgressView;
  readonly #faults: FaultLines;
  readonly #counts = { total: 0, accepted: 0, duplicate: 0, conflict: 0, rejected: 0 };
  readonly #notTaken: NotTaken[] = [];
  #needRetry = 0;
  #replayed = 0;
  #replayedRejected = 0;

  constructor(file: string, options: SubmitOptions, input: LineInput, submission: LineSubmission, view: ProgressView) {
    this.#file = file;
    this.#options = options;
    this.#input = input;
    this.#submission = submission;
    this.#view = view;
    this.#faults = new FaultLines(view);
  }

  async readVerdicts(): Promise<void> {
    try {
      for await (const verdict of this.#submission) {
        this.#count(verdict);
        this.#view.show(this.#counts.total, this.#input.total, this.#countWords());
      }
    } finally {
      this.#view.end();
      this.#faults.end(this.#itemsHint());
    }
    const count = this.#replayedRejected;
    if (count === 0) return;
    this.#view.say(
      `${count} of the rejected ${count === 1 ? 'line has its verdict' : 'lines have their verdicts'} of the first time, when the same lines were sent under the same key. ` +
        'To have them judged anew, give --key NEW (any name not used yet); what was accepted is then duplicate, and nothing is done twice.',
    );
  }

  #count(verdict: LineVerdict): void {
    this.#counts.total += 1;
    this.#counts[verdict.verdict] += 1;
    if (verdict.replayed) this.#replayed += 1;
    if (verdict.replayed && verdict.verdict === 'rejected') this.#replayedRejected += 1;
    if (verdict.needs_retry) this.#needRetry += 1;
    if (verdict.verdict === 'accepted' || verdict.verdict === 'duplicate') return;
    const { index, idempotency_key, errors = [] } = verdict;
    const line = this.#input.lineNumber(index);
    this.#faults.tell(line, verdict);
    if (this.#notTaken.length === mostListed) return;
    this.#notTaken.push({ line, index, idempotency_key, verdict: verdict.verdict, errors });
  }

  /** Writes the result; gives the exit code. `end`: the batch as it was followed to its end. */
  finish(summary: BatchProgress, end: BatchProgress | undefined): number {
    const { conflict, rejected } = this.#counts;
    const own = conflict + rejected > 0 ? exitCodes.notAll : exitCodes.ok;
    const followed = end === undefined ? exitCodes.ok : exitCodeOf(end);
    const exitCode = followed === exitCodes.ok ? own : followed;
    if (this.#options.json) {
      this.#writeJson({ status: (end ?? summary).status, jobs: (end ?? summary).jobs, exit_code: exitCode });
      return exitCode;
    }
    this.#writeWords(summary.batch_id, end);
    return exitCode;
  }

  #writeWords(batchId: string, end: BatchProgress | undefined): void {
    const lines = [`${this.#counts.total} lines: ${this.#countWords()}`];
    if (this.#replayed > 0)
      lines.push(`${this.#replayed} of them had been stored before: the same lines were sent under the same key`);
    if (this.#needRetry > 0) {
      lines.push(
        `${this.#needRetry} of the duplicates ended as failed, cancelled or expired, and do not run again by themselves`,
      );
    }
    lines.push(end === undefined ? `batch ${batchId}; follow it: sluice watch ${batchId}` : endOf(end));
    process.stdout.write(`${lines.join('\n')}\n`);
  }

  fail(failure: Failure): void {
    const { batchId, idempotencyKey, summary } = this.#submission;
    if (this.#options.json) {
      const known = summary === undefined ? {} : { status: summary.status, jobs: summary.jobs };
      const error = { code: failure.code, message: failure.message };
      this.#writeJson({ ...known, error, exit_code: failure.exitCode });
    } else if (summary !== undefined) {
      this.#writeWords(summary.batch_id, undefined);
    }
    tell(failure);
    if (summary !== undefined) {
      const what = failure.exitCode === exitCodes.refused ? 'was refused: it needs a key that may read' : 'has ended';
      tell({ ...failure, message: `every line is stored in batch ${batchId}; only following it (--wait) ${what}` });
      return;
    }
    if (failure.exitCode === exitCodes.refused || failure.exitCode === exitCodes.usage) return;
    const stored =
      batchId === undefined
        ? ''
        : `${this.#counts.total} lines have their verdicts, and batch ${batchId} is incomplete. `;
    const resume =
      this.#input.sha256 === null
        ? `pipe the same lines again with --key '${idempotencyKey}'`
        : `give the same command again${this.#options.key === undefined ? ` (key ${idempotencyKey})` : ''}`;
    const close = batchId === undefined ? '' : `\nTo end it as it is: POST /v1/batches/${batchId}/close`;
    tell({ ...failure, message: `${stored}To go on with ${this.#file}, ${resume}.${close}` });
  }

  #writeJson(more: object): void {
    const { batchId, idempotencyKey } = this.#submission;
    const result = {
      batch_id: batchId ?? null,
      idempotency_key: idempotencyKey,
      counts: this.#counts,
      replayed: this.#replayed,
      needs_retry: this.#needRetry,
      not_taken: this.#notTaken,
      ...more,
    };
    process.stdout.write(`${JSON.stringify(result)}\n`);
  }

  #countWords(): string {
    const { accepted, duplicate, conflict, rejected } = this.#counts;
    return `accepted ${accepted}, duplicate ${duplicate}, conflict ${conflict}, rejected ${rejected}`;
  }

  #itemsHint(): string {
    const { conflict, rejected } = this.#counts;
    const verdicts = [...(conflict > 0 ? ['conflict'] : []), ...(rejected > 0 ? ['rejected'] : [])];
    return verdicts.map((each) => `GET /v1/batches/${this.#submission.batchId}/items?verdict=${each}`).join(', ');
  }
}
