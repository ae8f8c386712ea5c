/**
 * What a bench leaves behind: JSON under bench/results with the machine and its load, so that figures of two days can be
 * told apart by more than their size.
 */
import { spawnSync } from 'node:child_process';
import { mkdir, writeFile } from 'node:fs/promises';
import { cpus, loadavg, totalmem } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Database } from '../src/postgres/database.ts';

export interface Machine {
  readonly cpus: number;
  readonly model: string;
  readonly memoryGb: number;
  /** Of the code that was measured, with a plus where it had changes; null: not known. */
  readonly commit: string | null;
  readonly node: string;
  readonly postgres: string;
  /** Settings that decide how durable a commit is. */
  readonly durability: Readonly<Record<string, string>>;
  readonly loadAtStart: number;
}

const folder = fileURLToPath(new URL('results/', import.meta.url));

/** Refuses a server that would be fast by not being durable. */
export async function describeMachine(database: Database): Promise<Machine> {
  await mkdir(folder, { recursive: true });
  const names = ['fsync', 'synchronous_commit', 'full_page_writes', 'wal_level', 'shared_buffers', 'max_wal_size'];
  const rows = await database.query<{ name: string; setting: string }>(
    'select name, current_setting(name) as setting from pg_settings where name = any ($1::text[])',
    [names],
  );
  const durability = Object.fromEntries(rows.map(({ name, setting }) => [name, setting]));
  for (const name of ['fsync', 'synchronous_commit', 'full_page_writes']) {
    if (durability[name] !== 'on') throw new Error(`${name} is ${durability[name]}: figures would mean nothing`);
  }
  const [version] = await database.query<{ server_version: string }>('show server_version');
  return {
    cpus: cpus().length,
    model: cpus()[0]?.model ?? 'unknown',
    memoryGb: Math.round(totalmem() / 2 ** 30),
    commit: commitOfCode(),
    node: process.version,
    postgres: version!.server_version,
    durability,
    loadAtStart: load(),
  };
}

function commitOfCode(): string | null {
  const git = (...args: string[]) => spawnSync('git', args, { cwd: folder, encoding: 'utf8' });
  const { status, stdout } = git('rev-parse', '--short', 'HEAD');
  if (status !== 0) return null;
  const changed = git('status', '--porcelain', '--', '../../src').stdout.trim() !== '';
  return `${stdout.trim()}${changed ? '+' : ''}`;
}

/** Of the last minute; what else runs on the machine is in it, and at the end so are we. */
export function load(): number {
  return Math.round(loadavg()[0]! * 100) / 100;
}

export function machineInWords({ cpus, model, node, postgres, loadAtStart }: Machine): string {
  return `${cpus} x ${model.trim()}, node ${node}, PostgreSQL ${postgres} (durable), load at the start ${loadAtStart}`;
}

export function resultPath(name: string): string {
  return join(folder, name);
}

/** `name`.json and latest.json; gives the path of the first. */
export async function writeResults(name: string, results: object): Promise<string> {
  await mkdir(folder, { recursive: true });
  const text = `${JSON.stringify({ at: new Date().toISOString(), ...results }, null, 2)}\n`;
  await writeFile(join(folder, 'latest.json'), text);
  const path = join(folder, `${name}.json`);
  await writeFile(path, text);
  return path;
}
