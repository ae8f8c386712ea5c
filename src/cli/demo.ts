/**
 * `sluice demo`: the main job from end to end on one machine, with real processes. It needs nothing set up, cleans up behind
 * itself, and its exit code is the verdict: 0 only if nothing was lost, doubled or over the limit, by the upstream's own books.
 */
import { randomBytes } from 'node:crypto';
import { play } from './demo/play.ts';
import type { Environment } from './demo/replica.ts';
import type { Scenario } from './demo/scenario.ts';
import { Stage } from './demo/stage.ts';
import { interruptedCode, listenForInterrupt } from './interrupt.ts';

export interface DemoOptions {
  readonly replicas: number;
  readonly items: number;
  /** Starts per second. */
  readonly limit: number;
  /** Absent: an embedded PostgreSQL in a temporary folder. */
  readonly databaseUrl: string | undefined;
  /** What the service's processes inherit; settings of Sluice in it are left out. */
  readonly environment: Environment;
  readonly out: NodeJS.WriteStream;
}

const exitCodes = { passed: 0, failed: 1, interrupted: interruptedCode } as const;

/** Resolves with the exit code when everything is cleaned up; does not reject. */
export async function runDemo(options: DemoOptions): Promise<number> {
  const { out } = options;
  const interrupt = listenForInterrupt();
  const stage = await Stage.open();
  let code: number = exitCodes.failed;
  try {
    const passed = await play(scenarioOf(options), { ...options, stage, signal: interrupt.signal });
    if (passed) code = exitCodes.passed;
  } catch (error) {
    if (interrupt.signal.aborted) code = exitCodes.interrupted;
    else out.write(`\nThe demo failed: ${error instanceof Error ? error.message : String(error)}\n`);
  }
  if (code === exitCodes.interrupted) out.write('\nInterrupted; cleaning up.\n');
  await stage.close(code === exitCodes.failed);
  if (code === exitCodes.failed) out.write(`The log of every process is in ${stage.logFolder}\n`);
  interrupt.release();
  return code;
}

function scenarioOf({ items, limit, replicas, databaseUrl }: DemoOptions): Scenario {
  if (databaseUrl === undefined) return { items, limit, replicas, name: 'demo', keyPrefix: '' };
  // A shared database remembers the keys and definitions of earlier runs.
  const run = randomBytes(4).toString('hex');
  return { items, limit, replicas, name: `demo-${run}`, keyPrefix: `${run}-` };
}
