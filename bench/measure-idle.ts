/**
 * A service that has only closed lanes: which statements it makes in a minute, told by PostgreSQL's own log, and how soon a
 * new job in an open lane starts all the same.
 */
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { systemClock as clock } from '../src/system/clock.ts';
import { items } from './calls-to-make.ts';
import { type Spread, spread } from './figures.ts';
import { timePosts } from './post-to-call.ts';
import { declareUpstream } from './service-client.ts';
import type { BenchDatabase, Stage } from './stage.ts';

export interface IdleFigures {
  readonly waitingJobs: number;
  readonly closedLanes: number;
  /** Watched for so long. */
  readonly seconds: number;
  readonly statementsPerMinute: number;
  /** By the start of their text, most frequent first. */
  readonly byStatement: ReadonlyArray<readonly [text: string, perMinute: number]>;
  /** One job at a time, each in a new lane. */
  readonly postToCallMs: Spread;
}

const jobsPosted = 30;

/** `target`: has an upstream `api` under a limit per partition key, and only closed lanes. */
export async function measureIdle(stage: Stage, target: BenchDatabase, seconds: number): Promise<IdleFigures> {
  const upstream = await stage.startUpstream();
  const service = await stage.startService(target);
  await declareUpstream(service.url, 'api', upstream.url);
  await emptyOpenLane(target);
  await clock.sleep(2_000);
  const statements = await logStatements(stage, target, seconds);
  // Each in a lane of its own, that is new.
  const fresh = items('fresh', jobsPosted).map((item) => ({ ...item, partition_key: item.idempotency_key }));
  const { toCall } = await timePosts(service.url, upstream, fresh);
  const [waiting] = await target.database.query<{ jobs: number; lanes: number }>(
    `select (select count(*) from sluice.ready_jobs)::int as jobs,
            (select count(*) from sluice.lanes where next_at > clock_timestamp() and closed_by = 'window')::int as lanes`,
  );
  await service.stop();
  await upstream.close();
  return {
    waitingJobs: waiting!.jobs,
    closedLanes: waiting!.lanes,
    seconds,
    statementsPerMinute: Math.round((statements.length * 60) / seconds),
    byStatement: counted(statements).map(([text, count]) => [text, Math.round((count * 60) / seconds)]),
    postToCallMs: spread(toCall),
  };
}

/** The service works it off, or has used up its hour. */
async function emptyOpenLane({ database }: BenchDatabase): Promise<void> {
  for (;;) {
    const open = await database.query(
      `select from sluice.lanes l where l.next_at <= clock_timestamp() union all select from sluice.running_jobs limit 1`,
    );
    if (open.length === 0) return;
    await clock.sleep(100);
  }
}

/** What the services say to the server in this time, as it logs it. */
async function logStatements(stage: Stage, { database, name }: BenchDatabase, seconds: number): Promise<string[]> {
  const path = join(await stage.serverFolder(), 'server.log');
  const mark = await sizeOf(path);
  await database.query(`alter system set log_statement = 'all'`);
  await database.query(`alter system set log_line_prefix = '%a|%d|'`);
  await database.query('select pg_reload_conf()');
  await clock.sleep(seconds * 1000);
  await database.query('alter system reset log_statement');
  await database.query('alter system reset log_line_prefix');
  await database.query('select pg_reload_conf()');
  const log = await open(path);
  const buffer = Buffer.alloc((await log.stat()).size - mark);
  await log.read(buffer, 0, buffer.length, mark);
  await log.close();
  return buffer
    .toString('utf8')
    .split('\n')
    .filter((line) => line.startsWith('sluice') && line.includes(`|${name}|`))
    .flatMap((line) => {
      const said = /LOG: {2}(?:statement|execute [^:]*): (.*)/.exec(line);
      return said === null ? [] : [said[1]!.trim().replace(/\s+/g, ' ').slice(0, 60)];
    });
}

async function sizeOf(path: string): Promise<number> {
  const file = await open(path);
  const { size } = await file.stat();
  await file.close();
  return size;
}

function counted(texts: readonly string[]): Array<[string, number]> {
  const counts = new Map<string, number>();
  for (const text of texts) counts.set(text, (counts.get(text) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]);
}
