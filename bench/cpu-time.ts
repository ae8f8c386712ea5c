/**
 * Processor time that processes have used, from /proc: tells who is busy where two processors are shared by all. Zero where
 * there is no /proc.
 */
import { readdir, readFile } from 'node:fs/promises';

/** Linux counts in hundredths of a second for whoever asks, on every architecture that Node has. */
const ticksPerSecond = 100;

interface ProcessTimes {
  readonly parent: number;
  readonly seconds: number;
}

/** Seconds of user and system time of a process, with its children (also those that have ended) if asked for. */
export async function cpuSeconds(pid: number, { withChildren = false } = {}): Promise<number> {
  const own = await timesOf(pid, withChildren);
  if (!withChildren) return own?.seconds ?? 0;
  const pids = (await readdir('/proc').catch(() => [])).filter((name) => /^\d+$/.test(name)).map(Number);
  const others = await Promise.all(pids.map((each) => timesOf(each, true)));
  const children = others.filter((each) => each?.parent === pid);
  return children.reduce((sum, each) => sum + (each?.seconds ?? 0), own?.seconds ?? 0);
}

async function timesOf(pid: number, waitedFor: boolean): Promise<ProcessTimes | undefined> {
  const text = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => undefined);
  if (text === undefined) return undefined;
  // The name in parentheses may have anything in it; numbers follow, from the third field on.
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  const ticks = (fields: readonly (string | undefined)[]) => fields.reduce((sum, field) => sum + Number(field), 0);
  const counted = ticks(fields.slice(11, waitedFor ? 15 : 13));
  return { parent: Number(fields[1]), seconds: counted / ticksPerSecond };
}

/** Seconds that all processors together have been busy since the machine started. */
export async function machineSeconds(): Promise<number> {
  const text = await readFile('/proc/stat', 'utf8').catch(() => '');
  const [user = 0, nice = 0, system = 0, , , irq = 0, softirq = 0] = text
    .split('\n')[0]!
    .split(/\s+/)
    .slice(1)
    .map(Number);
  return (user + nice + system + irq + softirq) / ticksPerSecond;
}

/** The parent of a process; 0 where there is no /proc. */
export async function parentOf(pid: number): Promise<number> {
  return (await timesOf(pid, false))?.parent ?? 0;
}
