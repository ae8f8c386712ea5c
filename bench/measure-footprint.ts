/** What one replica with 256 slots takes while it works: connections to PostgreSQL, and memory. */
import { readFile } from 'node:fs/promises';
import { systemClock as clock } from '../src/system/clock.ts';
import { batches } from './calls-to-make.ts';
import { postAll } from './measure-intake.ts';
import { declareUpstream, setPaused } from './service-client.ts';
import type { BenchDatabase, Stage } from './stage.ts';

export interface FootprintFigures {
  readonly slots: number;
  readonly jobs: number;
  /** Most at any time, the one that listens included. */
  readonly connections: number;
  /** Resident megabytes of the process before the first call, and the most while it worked. */
  readonly idleMb: number;
  readonly mostMb: number;
}

const slots = 256;
const sampleMs = 50;

export async function measureFootprint(stage: Stage, { jobs }: { jobs: number }): Promise<FootprintFigures> {
  const target = await stage.createDatabase('footprint');
  const upstream = await stage.startUpstream();
  const intake = await stage.startService(target, { env: { SLUICE_ROLES: 'api' } });
  await declareUpstream(intake.url, 'api', upstream.url);
  await setPaused(intake.url, 'api', true);
  await postAll(intake.url, batches('api', 'call', jobs), 1);
  await intake.stop();
  const env = { SLUICE_CONCURRENCY: String(slots) };
  const service = await stage.startService(target, { env });
  await clock.sleep(1_000);
  const idleMb = await residentMb(service.pid);
  let connections = 0;
  let mostMb = idleMb;
  await setPaused(service.url, 'api', false);
  while ((await upstream.count()) < jobs) {
    connections = Math.max(connections, await connectionsOf(target));
    mostMb = Math.max(mostMb, await residentMb(service.pid));
    await clock.sleep(sampleMs);
  }
  await service.stop();
  await upstream.close();
  return { slots, jobs, connections, idleMb, mostMb };
}

async function connectionsOf({ database, name }: BenchDatabase): Promise<number> {
  const [row] = await database.query<{ count: number }>(
    `select count(*)::int as count from pg_stat_activity where datname = $1 and application_name <> 'bench'`,
    [name],
  );
  return row!.count;
}

/** Resident memory of a process, in megabytes; 0 where there is no /proc. */
export async function residentMb(pid: number): Promise<number> {
  const text = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '');
  return Number(/VmRSS:\s+(\d+) kB/.exec(text)?.[1] ?? 0) / 1024;
}
