/**
 * `npm run bench:windows`: are rate windows exact over three replicas, how much of the quota do they use, and does a claim
 * cost the same however much waits behind closed lanes. Ends with 1 where a bound was broken; slowness is printed, not
 * judged. `--quick`: shorter cases and a backlog of 100,000. `--only limits,closed`: parts of it.
 */
import { parseArgs } from 'node:util';
import { table } from '../src/cli/demo/table.ts';
import { inWords, spreadInWords } from './figures.ts';
import { type LimitCase, type LimitFigures, measureLimit } from './fleet-limits.ts';
import { type ClaimCost, type ClaimCosts, measureClaimCosts } from './measure-claim-cost.ts';
import { type IdleFigures, measureIdle } from './measure-idle.ts';
import { describeMachine, load, machineInWords, writeResults } from './results.ts';
import { onStage } from './stage.ts';

const { values } = parseArgs({
  options: { quick: { type: 'boolean', default: false }, only: { type: 'string', default: 'limits,closed' } },
});
const parts = new Set(values.only.split(','));
const longestMinutes = 15;
const backlog = values.quick ? 100_000 : 1_000_000;

const cases: readonly LimitCase[] = [
  { name: '50 per 1 s, two kill -9', limit: 50, per: 1, algorithm: 'sliding_window', jobs: 1000, kills: 2 },
  { name: '1 per 1 s', limit: 1, per: 1, algorithm: 'sliding_window', jobs: values.quick ? 8 : 25 },
  values.quick
    ? { name: '50 per 10 s, for 300 per 60 s', limit: 50, per: 10, algorithm: 'sliding_window', jobs: 110 }
    : { name: '300 per 60 s, two periods', limit: 300, per: 60, algorithm: 'sliding_window', jobs: 610 },
  { name: '2,000 per 1 s', limit: 2000, per: 1, algorithm: 'sliding_window', jobs: values.quick ? 8000 : 20_000 },
  { name: '50 per 1 s', limit: 50, per: 1, algorithm: 'fixed_window', jobs: 500 },
  { name: '50 per 1 s, burst 20', limit: 50, per: 1, algorithm: 'token_bucket', burst: 20, jobs: 500 },
];

await onStage(longestMinutes, async (stage) => {
  const { database } = await stage.createDatabase('machine');
  const machine = await describeMachine(database);
  console.log(`${machineInWords(machine)}\n`);
  const limits: LimitFigures[] = [];
  if (parts.has('limits')) {
    for (const [i, each] of cases.entries()) limits.push(await measureLimit(stage, i, each));
    showLimits(limits);
  }
  let claimCosts: Omit<ClaimCosts, 'lastDatabase'> | null = null;
  let idle: IdleFigures | null = null;
  if (parts.has('closed')) {
    const { lastDatabase, ...costs } = await measureClaimCosts(stage, {
      byBacklog: [
        { lanes: 100, jobsPerLane: 10 },
        { lanes: 100, jobsPerLane: backlog / 100 },
      ],
      byLanes: [
        { lanes: 10, jobsPerLane: 10 },
        { lanes: 10_000, jobsPerLane: backlog / 10_000 },
      ],
    });
    claimCosts = costs;
    showClaimCosts(costs);
    idle = await measureIdle(stage, lastDatabase, values.quick ? 20 : 60);
    showIdle(idle);
  }
  const path = await writeResults('windows', { machine, loadAtEnd: load(), limits, claimCosts, idle });
  console.log(`\nload at the end ${load()}; all figures are in ${path}`);
  if (limits.some(({ faults }) => faults.length > 0)) process.exitCode = 1;
});

function showLimits(all: readonly LimitFigures[]): void {
  const rows = all.map((each) => [
    each.faults.length === 0 ? 'ok' : 'WRONG',
    each.algorithm,
    each.name,
    `${each.audited} of ${each.bound ?? '-'}`,
    String(each.atUpstream),
    `${each.used === null ? '-' : (each.used * 100).toFixed(1)} %`,
    `${each.calls} calls of ${each.jobs} jobs`,
    each.faults.join('; '),
  ]);
  show('three replicas under one limit', [
    ['', '', '', 'audit, of its bound', 'at the upstream', 'quota used', '', ''],
    ...rows,
  ]);
}

function showClaimCosts({ slots, byBacklog, byLanes }: Omit<ClaimCosts, 'lastDatabase'>): void {
  for (const [title, costs] of [
    ['by what waits in closed lanes', byBacklog],
    ['by how many lanes are closed', byLanes],
  ] as const) {
    const first = costs[0]!;
    show(`a claim of ${slots} from one open lane, ${title}`, [
      ['closed lanes', 'waiting in them', 'claimed', 'buffers', 'ms'],
      ...costs.map((cost) => [
        inWords(cost.lanes),
        inWords(cost.lanes * cost.jobsPerLane),
        String(cost.claimed),
        spreadInWords(cost.buffers),
        spreadInWords(cost.ms),
        ratio(cost, first),
      ]),
    ]);
  }
}

function ratio(cost: ClaimCost, first: ClaimCost): string {
  if (cost === first) return '';
  const buffers = cost.buffers.median / first.buffers.median;
  return `${buffers.toFixed(2)} x the buffers, ${(cost.ms.median / first.ms.median).toFixed(2)} x the time`;
}

function showIdle({
  waitingJobs,
  closedLanes,
  seconds,
  statementsPerMinute,
  byStatement,
  postToCallMs,
}: IdleFigures): void {
  show(
    `one idle service, ${inWords(waitingJobs)} jobs in ${inWords(closedLanes)} closed lanes, watched for ${seconds} s`,
    [
      ['statements per minute', String(statementsPerMinute)],
      ...byStatement.slice(0, 12).map(([text, perMinute]) => [`  ${text}`, String(perMinute)]),
    ],
  );
  show('a new job in an open lane meanwhile', [['POST to call, ms', spreadInWords(postToCallMs)]]);
}

function show(title: string, rows: ReadonlyArray<ReadonlyArray<string>>): void {
  console.log(`\n${title}\n${table(rows)}`);
}
