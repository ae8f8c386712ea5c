/**
 * The figures of `npm run bench` and `npm run bench:soak` as tables: the same ones in the terminal and in
 * docs/benchmarks.md. A part that was not run has none.
 */
import { inPercent, inWords, type Spread, spreadInWords } from './figures.ts';
import type { BacklogFigures } from './measure-backlog.ts';
import type { Bill, CostFigures } from './measure-costs.ts';
import type { DrainFigures } from './measure-drain.ts';
import type { FloorFigures } from './measure-floors.ts';
import type { FootprintFigures } from './measure-footprint.ts';
import type { IntakeFigures } from './measure-intake.ts';
import type { Latency, LatencyFigures } from './measure-latency.ts';
import type { ContenderFigures, PeerFigures } from './measure-peers.ts';
import type { ReplicaFigures } from './measure-replicas.ts';
import type { Machine } from './results.ts';

/** One part of the bench each; in the order in which they run. */
export interface BenchParts {
  readonly floors: FloorFigures;
  readonly intake: IntakeFigures;
  readonly drain: DrainFigures;
  readonly latency: LatencyFigures;
  readonly replicas: ReplicaFigures;
  readonly costs: CostFigures;
  readonly footprint: FootprintFigures;
  readonly backlog: BacklogFigures;
  readonly peers: PeerFigures;
}

export type BenchResults = { readonly [Name in keyof BenchParts]?: BenchParts[Name] } & {
  /** When it began, ISO 8601. */
  readonly at: string;
  readonly machine: Machine;
  readonly loadAtEnd: number;
  readonly quick: boolean;
  readonly runs: number;
};

export interface Section {
  /** Of the markers in the document. */
  readonly name: string;
  readonly title: string;
  readonly header: readonly string[];
  readonly rows: ReadonlyArray<readonly string[]>;
  /** Below the table. */
  readonly notes?: readonly string[];
}

/** The tables of one part. */
export function sectionsOf(part: keyof BenchParts, results: BenchResults): Section[] {
  switch (part) {
    case 'floors':
      return results.floors === undefined ? [] : [floorSection(results.floors)];
    case 'intake':
      return results.intake === undefined ? [] : [intakeSection(results.intake, results.peers)];
    case 'drain':
      return results.drain === undefined ? [] : drainSections(results.drain, results.floors);
    case 'latency':
      return results.latency === undefined ? [] : [latencySection(results.latency)];
    case 'replicas':
      return results.replicas === undefined ? [] : [replicaSection(results.replicas)];
    case 'costs':
      return results.costs === undefined ? [] : costSections(results.costs);
    case 'footprint':
      return results.footprint === undefined ? [] : [footprintSection(results.footprint)];
    case 'backlog':
      return results.backlog === undefined ? [] : [backlogSection(results.backlog)];
    case 'peers':
      return results.peers === undefined ? [] : peerSections(results.peers, results.floors);
  }
}

function floorSection({ slots, undici, sender }: FloorFigures): Section {
  return {
    name: 'floors',
    title: `Calls alone, ${slots} at a time, nothing behind them`,
    header: ['', 'calls/s', ''],
    rows: [
      ['undici alone', spreadInWords(undici), ''],
      ['the sender of the service', spreadInWords(sender), share(sender, undici, 'undici alone')],
    ],
  };
}

function intakeSection({ batchSize, rates }: IntakeFigures, peers: PeerFigures | undefined): Section {
  const notes =
    peers === undefined ? [] : ["The peers' bulk inserts are in the tables of peers: one call of 1,000 in flight."];
  return {
    name: 'intake',
    title: `Intake, batches of ${inWords(batchSize)}`,
    header: ['', 'items/s', ''],
    rows: rates.flatMap(({ inFlight, raw, http }) => [
      [`raw unnest insert of the same rows, ${inFlight} in flight`, spreadInWords(raw), ''],
      [
        `POST /v1/batches with verdicts, ${inFlight} in flight`,
        spreadInWords(http),
        share(http, raw, 'the raw insert'),
      ],
    ]),
    notes,
  };
}

function drainSections({ slots, jobs, free, windowed }: DrainFigures, floors: FloorFigures | undefined): Section[] {
  const cost = (1 - windowed.rate.median / free.rate.median) * 100;
  const both = (name: string, pick: (figures: DrainFigures['free']) => Spread) => [
    name,
    inWords(pick(free).median),
    inWords(pick(windowed).median),
  ];
  return [
    {
      name: 'drain',
      title: `Drain of ${inWords(jobs)} jobs through real calls, ${slots} slots, one replica`,
      header: ['', 'jobs/s', ''],
      rows: [
        [
          'no limit',
          spreadInWords(free.rate),
          floors === undefined ? '' : share(free.rate, floors.undici, 'undici alone'),
        ],
        [
          'a fleet window far above the speed',
          spreadInWords(windowed.rate),
          `the window costs ${cost <= 0 ? 'nothing' : `${cost.toFixed(1)} %`}`,
        ],
      ],
    },
    {
      name: 'drain-costs',
      title: 'Of these drains',
      header: ['', 'no limit', 'a fleet window'],
      rows: [
        both('WAL bytes per job', (figures) => figures.walBytesPerJob),
        both('jobs per claim', (figures) => figures.jobsPerClaim),
        both('jobs per settle', (figures) => figures.jobsPerSettle),
        ...(['service', 'postgres', 'upstream'] as const).map((name) =>
          both(`CPU ms per 1,000 jobs: ${name}`, (figures) => figures.cpuMsPer1000[name]),
        ),
        both('processors busy with something else', (figures) => figures.elsewhere),
      ],
    },
  ];
}

function latencySection({ jobs, toCall, toAnswer, windowed }: LatencyFigures): Section {
  const row = (what: string, { p50Ms, p99Ms, mostMs }: Latency) => [what, ...[p50Ms, p99Ms, mostMs].map(inWords)];
  return {
    name: 'latency',
    title: `POST to call on an idle service, ${inWords(jobs)} jobs one by one`,
    header: ['', 'p50, ms', 'p99, ms', 'most, ms'],
    rows: [
      row('POST to the arrival at the upstream', toCall),
      row('the same under a fleet window far above the speed', windowed.toCall),
      row('POST to its answer', toAnswer),
      row('the same under that window', windowed.toAnswer),
    ],
  };
}

function replicaSection({ jobs, byReplicas }: ReplicaFigures): Section {
  const one = byReplicas[0]!.callsPerSecond;
  return {
    name: 'replicas',
    title: `Drain of ${inWords(jobs)} jobs by several replicas, 64 slots each, on one machine`,
    header: ['replicas', 'calls/s', ''],
    rows: byReplicas.map(({ replicas, callsPerSecond }) => [
      String(replicas),
      spreadInWords(callsPerSecond),
      replicas === 1 ? '' : share(callsPerSecond, one, 'one'),
    ]),
  };
}

function costSections({ jobs, batchSize, cases }: CostFigures): Section[] {
  const bill = (name: string, { statements, buffers, walBytes }: Bill) => [
    name,
    statements.toFixed(3),
    inWords(buffers),
    inWords(walBytes),
  ];
  return [
    {
      name: 'costs',
      title: `What a job costs the database (${inWords(jobs)} jobs, batches of ${inWords(batchSize)})`,
      header: ['per job', 'statements', 'pages', 'WAL bytes'],
      rows: cases.flatMap(({ name, intake, work }) => [
        bill(`intake, ${name}`, intake),
        bill(`claim to outcome, ${name}`, work),
      ]),
    },
    {
      name: 'dead-rows',
      title: 'Rows left dead by a job, from its intake to its outcome',
      header: ['', 'per job', 'updates without a new index entry', 'by table'],
      rows: cases.map(({ name, deadRowsPerJob, hotShare, deadRowsByTable }) => [
        name,
        deadRowsPerJob.toFixed(2),
        hotShare === null ? '-' : inPercent(hotShare),
        deadRowsByTable.map(([table, perJob]) => `${table} ${perJob.toFixed(2)}`).join(', '),
      ]),
    },
  ];
}

function footprintSection({ slots, jobs, connections, idleMb, mostMb }: FootprintFigures): Section {
  return {
    name: 'footprint',
    title: `One replica with ${slots} slots, ${inWords(jobs)} jobs`,
    header: ['connections, the listening one included', 'memory before, MB', 'most memory, MB'],
    rows: [[String(connections), inWords(idleMb), inWords(mostMb)]],
  };
}

function backlogSection({ jobs, latencyJobs, cases }: BacklogFigures): Section {
  return {
    name: 'backlog',
    title: `Drain of ${inWords(jobs)} jobs while others wait; latency of ${inWords(latencyJobs)} on an idle service`,
    header: ['waiting', 'where', 'calls/s', 'pages per job', 'p50, ms', 'p99, ms'],
    rows: cases.map(({ waiting, place, callsPerSecond, buffersPerJob, p50Ms, p99Ms }) => [
      inWords(waiting),
      place,
      spreadInWords(callsPerSecond),
      spreadInWords(buffersPerJob),
      ...[p50Ms, p99Ms].map((spread) => (spread === null ? '-' : spreadInWords(spread))),
    ]),
  };
}

function peerSections({ latencyJobs, contenders, notMeasured }: PeerFigures, floors?: FloorFigures): Section[] {
  const sorted = (pick: (each: ContenderFigures) => number, ascending = false) =>
    [...contenders].sort((a, b) => (ascending ? 1 : -1) * (pick(a) - pick(b)));
  const kinds = { ours: 'Sluice', within: 'no more than 1,000 jobs at hand', any: 'any setting' };
  const notes = notMeasured.map((what) => `Not measured: ${what}.`);
  const timed = contenders.filter(({ p50Ms }) => p50Ms !== null);
  return [
    {
      name: 'peers-calls',
      title: 'Calls per second from the first to the last call at the upstream, 64 in flight',
      header: ['', 'settings', 'kind', 'jobs', 'calls/s'],
      rows: [
        ...(floors === undefined ? [] : [['undici alone', '', 'floor', '', spreadInWords(floors.undici)]]),
        ...sorted((each) => each.callsPerSecond.median).map((each) => [
          each.name,
          each.settings,
          kinds[each.kind],
          inWords(each.jobs),
          spreadInWords(each.callsPerSecond),
        ]),
      ],
      notes,
    },
    {
      name: 'peers-intake',
      title: 'Jobs taken in per second, 1,000 a call, one call in flight',
      header: ['', 'settings', 'how', 'jobs/s'],
      rows: sorted((each) => each.insertedPerSecond.median).map((each) => [
        each.name,
        each.settings,
        each.kind === 'ours' ? 'over HTTP, with verdicts and keys' : 'in process',
        spreadInWords(each.insertedPerSecond),
      ]),
      notes,
    },
    {
      name: 'peers-latency',
      title: `One job at a time on an idle worker (${inWords(latencyJobs)} a run), ms`,
      header: ['', 'from, to', 'p50', 'p99'],
      rows: [...timed]
        .sort((a, b) => a.p50Ms!.median - b.p50Ms!.median)
        .map((each) => [
          each.name,
          each.kind === 'ours' ? 'POST over HTTP, arrival at the upstream' : 'send in process, start of the handler',
          spreadInWords(each.p50Ms!),
          spreadInWords(each.p99Ms!),
        ]),
      notes,
    },
  ];
}

function share(part: Spread, whole: Spread, of: string): string {
  return `${(part.median / whole.median).toFixed(2)} of ${of}`;
}
