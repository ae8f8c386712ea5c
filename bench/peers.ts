/**
 * The other job queues, each at the settings that its own documentation gives for speed, and tried out here: those that keep
 * no more than 1,000 jobs in the process, which a crash would leave hanging until they expire, and one that does not care.
 */

import { items } from './calls-to-make.ts';
import type { Contender } from './contender.ts';
import { type PeerOptions, startPeer } from './peer-process.ts';
import { type AppendFsync, redisVersion, startRedis } from './redis-server.ts';
import type { Stage } from './stage.ts';

const slots = 64;
const insertSize = 1_000;

type Where = Pick<PeerOptions, 'connectionString' | 'redisPort'>;

interface PeerKind extends Omit<Contender, 'open'> {
  readonly peer: string;
  readonly with: Readonly<Record<string, number>>;
  readonly where: (stage: Stage) => Promise<Where>;
}

export interface Peers {
  readonly contenders: readonly Contender[];
  /** What is left out, and why. */
  readonly notMeasured: readonly string[];
}

export function peers(): Peers {
  const redis = redisVersion();
  const kinds = [...onPostgres, ...(redis === null ? [] : onRedis(redis))];
  const notMeasured = redis === null ? ['BullMQ on Redis: no redis-server (PATH, or BENCH_REDIS_SERVER)'] : [];
  return { contenders: kinds.map(asContender), notMeasured };
}

const onPostgres: readonly PeerKind[] = [
  {
    name: 'graphile-worker 0.17.3',
    settings: 'local queue of 500, completes in batches',
    kind: 'within',
    peer: 'graphile-worker',
    with: { prefetch: 500, completeDelayMs: 0 },
    where: freshDatabase('graphile'),
    timed: true,
  },
  {
    name: 'pg-boss 10.4.2',
    settings: '1,000 a fetch',
    kind: 'within',
    latencyShare: 0.2,
    peer: 'pg-boss',
    with: { size: 1_000, loops: 1, pollSeconds: 0.5, longestPauseMs: 500 },
    where: freshDatabase('boss_1000'),
    timed: true,
  },
  {
    name: 'pg-boss 10.4.2',
    settings: '500 a fetch, two loops',
    kind: 'within',
    peer: 'pg-boss',
    with: { size: 500, loops: 2 },
    where: freshDatabase('boss_500'),
    timed: false,
  },
  {
    name: 'pg-boss 10.4.2',
    settings: '5,000 a fetch',
    kind: 'any',
    peer: 'pg-boss',
    with: { size: 5_000, loops: 1 },
    where: freshDatabase('boss_5000'),
    timed: false,
  },
  {
    name: 'BullMQ 6.7.0 on PostgreSQL',
    settings: 'concurrency 64',
    kind: 'within',
    share: 0.2,
    peer: 'bullmq',
    with: {},
    where: freshDatabase('bullmq'),
    timed: true,
  },
];

function onRedis(version: string): PeerKind[] {
  return (['always', 'everysec'] as const).map((appendFsync) => ({
    name: `BullMQ 6.7.0 on Redis ${version}`,
    settings: `concurrency 64, appendfsync ${appendFsync}`,
    kind: appendFsync === 'always' ? 'within' : 'any',
    peer: 'bullmq',
    with: {},
    where: freshRedis(appendFsync),
    timed: appendFsync === 'always',
  }));
}

/** A database of its own for each run. */
function freshDatabase(name: string): PeerKind['where'] {
  let made = 0;
  return async (stage) => {
    made += 1;
    const { connectionString } = await stage.createEmptyDatabase(`${name}_${made}`);
    return { connectionString };
  };
}

function freshRedis(appendFsync: AppendFsync): PeerKind['where'] {
  let made = 0;
  return async (stage) => {
    made += 1;
    return { redisPort: await startRedis(stage, appendFsync, `${appendFsync}-${made}`) };
  };
}

function asContender({ peer, with: settings, where, ...contender }: PeerKind): Contender {
  return {
    ...contender,
    async open(stage, upstream) {
      const process = await startPeer({ peer, settings, slots, upstreamUrl: upstream.url, ...(await where(stage)) });
      stage.onClose(() => process.close());
      return {
        insert: (label, count) => process.insert(items(label, count), insertSize),
        drain: (count) => process.drain(count),
        latency: (label, count) => process.latency(items(label, count)),
        close: () => process.close(),
      };
    },
  };
}
