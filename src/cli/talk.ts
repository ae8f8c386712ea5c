/**
 * What the commands have in common that speak with a running service: where it is, and what becomes of a call that fails. Their
 * exit codes are for scripts, and part of each command's help.
 */
import type { Command, CommanderError } from 'commander';
import { SluiceClient, SluiceConnectionError, SluiceError } from '../client/index.ts';
import { ConfigError, loadClientConfig } from '../config.ts';
import { interruptedCode, listenForInterrupt } from './interrupt.ts';

export const exitCodes = {
  ok: 0,
  /** It was done, and not all of it came out well. */
  notAll: 1,
  /** Arguments, the environment, or a file. */
  usage: 2,
  unreachable: 3,
  refused: 4,
  held: 5,
  interrupted: interruptedCode,
} as const;

/** A fault that the user can mend before anything is sent. */
export class UsageError extends Error {}

export interface Failure {
  readonly exitCode: number;
  /** One line or more, for people. */
  readonly message: string;
  /** The problem's code; of a failure without one, what it is. */
  readonly code: string;
}

/** Adds what all of them take; wrong arguments end with their own exit code. */
export function talking(command: Command): Command {
  return command
    .option('--url <url>', 'address of the service (default: SLUICE_URL, else http://127.0.0.1:3000)')
    .exitOverride((error: CommanderError) => process.exit(error.exitCode === 0 ? exitCodes.ok : exitCodes.usage));
}

export const talkingHelp = `
Environment:
  SLUICE_URL      address of the service (http://127.0.0.1:3000)
  SLUICE_API_KEY  key to send`;

/** Throws a UsageError for an address that cannot be right, and a ConfigError for a variable that cannot. */
export function openClient(url: string | undefined): SluiceClient {
  const config = loadClientConfig();
  const baseUrl = url ?? config.url;
  try {
    return new SluiceClient({ ...(baseUrl === undefined ? {} : { baseUrl }), apiKey: config.apiKey });
  } catch (error) {
    throw new UsageError((error as Error).message, { cause: error });
  }
}

/** Runs with a signal that Ctrl-C aborts, and sets the exit code. What is no failure of this kind is thrown on. */
export async function talk(
  run: (signal: AbortSignal) => Promise<number>,
  onFailure: (failure: Failure) => void = tell,
): Promise<void> {
  const interrupt = listenForInterrupt();
  try {
    process.exitCode = await run(interrupt.signal);
  } catch (error) {
    const failure = interrupt.signal.aborted ? interrupted : failureOf(error);
    if (failure === undefined) throw error;
    onFailure(failure);
    process.exitCode = failure.exitCode;
  } finally {
    interrupt.release();
  }
}

const interrupted: Failure = { exitCode: exitCodes.interrupted, code: 'interrupted', message: 'interrupted' };

export function tell({ message }: Failure): void {
  for (const line of message.split('\n')) process.stderr.write(`sluice: ${line.trimEnd()}\n`);
}

function failureOf(error: unknown): Failure | undefined {
  if (error instanceof UsageError || error instanceof ConfigError) {
    return { exitCode: exitCodes.usage, code: 'usage', message: error.message };
  }
  if (error instanceof SluiceConnectionError) {
    return { exitCode: exitCodes.unreachable, code: 'unreachable', message: error.message };
  }
  if (!(error instanceof SluiceError)) return undefined;
  // That it cannot work just now is no refusal: another time it would be taken.
  const away = error.status === 429 || error.status >= 500;
  // Where a key is set it is the wrong one.
  const advice = error.status === 401 ? '\nset SLUICE_API_KEY to a key that the service knows' : '';
  const message = `${error.message}${advice}`;
  return { exitCode: away ? exitCodes.unreachable : exitCodes.refused, code: error.code, message };
}
