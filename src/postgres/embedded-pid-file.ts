/**
 * What `postmaster.pid` in a server's data tells, and when it is not to be believed: the file of a server that was killed
 * stays, and its number may be somebody else's by now.
 */
import { readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { codeOf } from './embedded-error.ts';

/** The server that runs on this folder by its pid file; undefined: none, or the file is a dead one's. */
export async function readPostmaster(folder: string): Promise<{ pid: number; port: number } | undefined> {
  const text = await readFile(pidFile(folder), 'utf8').catch(() => '');
  const lines = text.split('\n');
  const pid = Number(lines[0]);
  const port = Number(lines[3]);
  if (!Number.isInteger(pid) || pid <= 0 || !Number.isInteger(port) || port <= 0) return undefined;
  return isAlive(pid) && (await isServerOf(pid, folder)) ? { pid, port } : undefined;
}

/** A start that has not written its number yet, or what a power cut left. */
export async function hasEmptyPidFile(folder: string): Promise<boolean> {
  const found = await stat(pidFile(folder)).catch(() => undefined);
  return found?.size === 0;
}

/**
 * PostgreSQL refuses to start while the pid in its file is alive, whoever that is by now: in a container the same small
 * numbers come back. It does not mind its parent's, so the line becomes ours. The rest of the file stays: by it PostgreSQL
 * finds out whether sessions of the dead server still write to the data.
 */
export async function disownReusedPid(folder: string): Promise<void> {
  const file = pidFile(folder);
  const text = await readFile(file, 'utf8').catch(() => '');
  const [first = '', ...rest] = text.split('\n');
  const pid = Number(first);
  if (!Number.isInteger(pid) || pid <= 0 || !isAlive(pid) || (await isServerOf(pid, folder))) return;
  await writeFile(file, [process.pid, ...rest].join('\n'));
}

/** Whether there is a process of this number, of whatever kind. */
export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return codeOf(error) === 'EPERM';
  }
}

/** Whether the live process `pid` is a PostgreSQL on this folder, and not somebody who got a dead one's number. */
async function isServerOf(pid: number, folder: string): Promise<boolean> {
  const commandLine = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => undefined);
  // Not Linux: believe the file, as PostgreSQL itself does.
  if (commandLine === undefined) return process.platform !== 'linux';
  return commandLine.split('\0').includes(join(folder, 'data'));
}

export function pidFile(folder: string): string {
  return join(folder, 'data', 'postmaster.pid');
}
