/**
 * A kill -9 at every fault point, one by one, with calls in flight; then another process goes on. Whatever the point, the jobs
 * that the dead one held can run again within its lease and a few seconds, the key that goes out again is the same, the
 * upstream has one effect for each key, and the batch's answer is complete and true.
 * The processes are real and so is the upstream's idempotency store; each point has a database of its own. What is submitted
 * goes in by an API in this process, so that no answer is lost that the test needs.
 */
import t, { type Test } from 'tap';
import { RequestLog } from '../../src/simulator/request-log.ts';
import { type FaultPoint, faultPlaces } from '../../src/system/fault-points.ts';
import { type BatchAnswer, type BatchStatus, numberedItems, type VerdictItem } from '../support/client.ts';
import { eventually } from '../support/eventually.ts';
import { assertOneEffectEach } from '../support/fleet.ts';
import { defaults, type Intake, useIntake } from '../support/intake.ts';
import { type Service, startService } from '../support/service.ts';
import type { Rule, UpstreamProcess } from '../support/upstream.ts';
import { useUpstreamProcess } from '../support/upstream.ts';

t.setTimeout(300_000);
// Processes start slowly and wait for leases: several points at a time.
t.jobs = 4;

const leaseSeconds = 2;
/** A round of maintenance comes every 1.2 s at the latest; the rest is for a busy machine. */
const fewSecondsMs = 5_000;
const slots = 4;
const itemCount = 8;

/** What one point needs to be met with calls in flight, and what must be true of the held jobs' calls afterwards. */
interface Scenario {
  /** How many calls are answered before answers begin to wait for the death of the process; 0 by default. */
  readonly answered?: number;
  /** The first call is told to wait a second. */
  readonly throttled?: boolean;
  /** The plan; default: a kill the first time. */
  readonly plan?: string;
  /** What is killed; default: a worker at work. */
  readonly victim?: 'api' | 'reaper' | 'drained';
  /** Whether jobs are left running under the dead worker's lease, and had left for the upstream. */
  readonly leaves: 'sent' | 'unsent' | 'nothing';
  /** The verdicts when all of it is submitted again. */
  readonly again?: 'accepted' | 'duplicate';
}

const scenarios: Readonly<Record<FaultPoint, Scenario>> = {
  'intake.before_commit': { victim: 'api', leaves: 'nothing', again: 'accepted' },
  'intake.after_commit': { victim: 'api', leaves: 'nothing', again: 'duplicate' },
  'claim.after': { leaves: 'unsent' },
  'send.before': { leaves: 'unsent' },
  'send.after': { leaves: 'sent' },
  'answer.read': { answered: 2, leaves: 'sent' },
  'settle.before': { answered: 2, leaves: 'sent' },
  'settle.after': { answered: 2, leaves: 'sent' },
  'cooldown.after': { throttled: true, leaves: 'sent' },
  // Not the first time: by then it has calls in flight.
  'renew.before': { plan: 'pass*3,kill', leaves: 'sent' },
  'renew.after': { plan: 'pass*3,kill', leaves: 'sent' },
  'reaper.before_settle': { victim: 'reaper', leaves: 'sent' },
  'reaper.after_settle': { victim: 'reaper', leaves: 'sent' },
  'drain.begin': { victim: 'drained', leaves: 'sent' },
  'drain.written': { victim: 'drained', leaves: 'nothing' },
};

const results = new Map<FaultPoint, Readonly<Record<string, string | number>>>();

const upstream = await useUpstreamProcess(t);
for (const point of Object.keys(scenarios) as FaultPoint[]) {
  t.test(`kill -9 at ${point}: ${faultPlaces[point].what}`, { buffered: true }, async (t) => {
    await upstream.script(...rulesOf(point));
    const stage = await setTheStage(t, point);
    const successor = await standBy(stage);
    const { held, deadAt } = await playToTheDeath(t, point, stage);
    successor.kill('SIGCONT');
    await upstream.release(gateOf(point));
    await judge(t, point, stage, { held, deadAt, successor });
  });
}
await t.test('each of them ended well', { buffered: false }, async (t) => {
  const rows = (Object.keys(scenarios) as FaultPoint[]).map((point) => ({ point, ...results.get(point) }));
  for (const line of asTable(rows)) t.comment(line);
  t.equal(results.size, Object.keys(faultPlaces).length);
});

function gateOf(point: FaultPoint): string {
  return `${point} is dead`;
}

function rulesOf(point: FaultPoint): Rule[] {
  const { answered = 0, throttled = false } = scenarios[point];
  const path = `/${point}/*`;
  const rules: Rule[] = [{ path, skip: answered, answer: { gate: gateOf(point) } }];
  if (throttled) rules.unshift({ path, times: 1, answer: { status: 429, headers: [['Retry-After', '1']] } });
  return rules;
}

interface Stage {
  readonly intake: Intake;
  readonly keys: readonly string[];
  /** A service on the stage's database, with these fault points. */
  start(plan?: string, env?: Readonly<Record<string, string>>): Promise<Service>;
  submit(): Promise<BatchAnswer>;
  callsSoFar(): Promise<RequestLog>;
}

async function setTheStage(t: Test, point: FaultPoint): Promise<Stage> {
  const intake = await useIntake(t);
  await intake.putUpstream('api', {
    base_url: `${upstream.url}/${point}`,
    allow_private_addresses: true,
    timeout_ms: 30_000,
    retry: { base_ms: 50, cap_ms: 200 },
  });
  const items = numberedItems(point, itemCount);
  return {
    intake,
    keys: items.map((item) => item.idempotency_key),
    start: (plan, env = {}) =>
      startService(t, {
        databaseUrl: intake.connectionString,
        env: {
          NODE_ENV: 'test',
          SLUICE_LEASE_SECONDS: String(leaseSeconds),
          SLUICE_CONCURRENCY: String(slots),
          ...(plan === undefined ? {} : { SLUICE_FAULT_POINTS: plan }),
          ...env,
        },
      }),
    async submit() {
      const { status, body } = await intake.post({ defaults, items });
      if (status !== 202) throw new Error(`answered ${status}: ${JSON.stringify(body)}`);
      return body;
    },
    callsSoFar: () => callsOf(upstream, point),
  };
}

/** Another replica, stopped until it is needed, so that it takes nothing of what the victim shall take. */
async function standBy(stage: Stage): Promise<Service> {
  const replica = await stage.start();
  replica.kill('SIGSTOP');
  return replica;
}

async function callsOf(upstream: UpstreamProcess, point: FaultPoint): Promise<RequestLog> {
  const { requests } = await upstream.log();
  return new RequestLog(requests.filter(({ path }) => path.startsWith(`/${point}/`)));
}

/** What the process held when it died, and when that was on the database's clock. */
interface Death {
  readonly held: ReadonlyMap<string, string>;
  readonly deadAt: Date;
}

async function playToTheDeath(t: Test, point: FaultPoint, stage: Stage): Promise<Death> {
  const { victim: kind, plan = 'kill', again, leaves } = scenarios[point];
  const full = `${point}=${plan}`;
  let victim: Service;
  if (kind === 'api') {
    victim = await stage.start(full, { SLUICE_ROLES: 'api' });
    const items = numberedItems(point, itemCount);
    await t.rejects(victim.client.submit('api', items), 'its client never gets an answer');
  } else if (kind === 'reaper') {
    const first = await stage.start('send.after=pass*3,kill');
    await stage.submit();
    await first.exited;
    victim = await stage.start(full);
  } else {
    victim = await stage.start(full);
    await stage.submit();
  }
  if (kind === 'drained') {
    await eventually('its slots are taken', async () => (await stage.callsSoFar()).requests.length === slots);
    victim.kill('SIGTERM');
    if (leaves === 'nothing') {
      await victim.waitForLine(({ msg }) => msg === 'shutting down');
      await upstream.release(gateOf(point));
    }
  }
  const end = await Promise.race([
    victim.exited,
    eventually('the victim dies', () => false, 30_000).catch(() => 'it did not die' as const),
  ]);
  t.same(end, { code: null, signal: 'SIGKILL' }, 'it died at the point');
  t.ok(
    victim.lines.some((line) => line.fault_point === point),
    'and nowhere else',
  );
  if (again !== undefined) {
    const { counts } = await stage.submit();
    t.match(counts, { total: itemCount, [again]: itemCount }, `submitted again: ${again}`);
  }
  return takeStock(stage.intake);
}

async function takeStock({ database }: Intake): Promise<Death> {
  const held = await database.query<{ job_id: string; worker_id: string }>(
    'select job_id, worker_id from sluice.running_jobs',
  );
  const [clock] = await database.query<{ now: Date }>('select clock_timestamp() as now');
  return { held: new Map(held.map((row) => [row.job_id, row.worker_id])), deadAt: clock!.now };
}

async function judge(
  t: Test,
  point: FaultPoint,
  { intake, keys, callsSoFar }: Stage,
  { held, deadAt, successor }: Death & { readonly successor: Service },
): Promise<void> {
  const { leaves, again } = scenarios[point];
  const batches = await intake.database.query<{ id: string }>('select id from sluice.batches order by id');
  t.equal(batches.length, again === 'duplicate' ? 2 : 1, 'every batch that was answered, or would have been, is there');
  let status = '';
  for (const { id } of batches) {
    const batch = await eventually(
      'the batch is completed',
      async () => {
        const { body } = await intake.get<BatchStatus>(`/v1/batches/${id}`);
        return body.status === 'completed' && body;
      },
      60_000,
    );
    ({ status } = batch);
    t.match(batch, { counts: { total: itemCount }, jobs: { succeeded: itemCount }, progress: 1 });
    const { body } = await intake.get<{ items: VerdictItem[] }>(`/v1/batches/${id}/items`);
    t.same(
      body.items.map((item) => [item.index, item.idempotency_key, item.job_state, item.response_status]),
      keys.map((key, index) => [index, key, 'succeeded', 200]),
      'every item has its answer',
    );
  }

  if (leaves === 'nothing') t.equal(held.size, 0, 'no job was held');
  else t.ok(held.size > 0, `${held.size} jobs were held`);
  const log = await callsSoFar();
  assertOneEffectEach(t, log, keys);
  let mostCalls = 0;
  let lastBackMs = 0;
  for (const [jobId, workerId] of held) {
    const calls = log.requests.filter((request) => request.jobId === jobId);
    mostCalls = Math.max(mostCalls, calls.length);
    t.equal(new Set(calls.map(({ key }) => key)).size, 1, 'one key, however often it went out');
    const attempts = await intake.database.query<{ worker_id: string; outcome: string; after_ms: number }>(
      `select worker_id, outcome, (extract(epoch from ended_at - $2::timestamptz) * 1000)::float8 as after_ms
         from sluice.attempts where job_id = $1 order by number`,
      [jobId, deadAt],
    );
    const [lost, last] = [attempts.find((attempt) => attempt.worker_id === workerId), attempts.at(-1)];
    t.match(lost, { outcome: 'unknown' }, 'what the dead one did is told apart');
    t.match(last, { outcome: 'success', worker_id: successor.workerId }, 'the other one has done it');
    lastBackMs = Math.max(lastBackMs, lost?.after_ms ?? Number.POSITIVE_INFINITY);
  }
  if (leaves === 'sent') t.ok(mostCalls > 1, 'a key went out twice, and the upstream knew it');
  if (leaves === 'unsent') t.equal(mostCalls, 1, 'what had not left was sent once');
  t.ok(lastBackMs <= leaseSeconds * 1000 + fewSecondsMs, `eligible again ${Math.round(lastBackMs)} ms after the death`);
  const sum = log.summary();
  results.set(point, {
    held: held.size,
    'eligible after': held.size === 0 ? 'at once' : `${(lastBackMs / 1000).toFixed(1)} s`,
    calls: sum.requests,
    effects: sum.effects,
    replayed: sum.replayed,
    doubles: sum.doubles,
    ...(again === undefined ? {} : { 'sent again': again }),
    batch: status,
  });
}

function asTable(rows: ReadonlyArray<Readonly<Record<string, string | number>>>): string[] {
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const widths = columns.map((column) =>
    Math.max(column.length, ...rows.map((row) => String(row[column] ?? '').length)),
  );
  const line = (cells: readonly string[]) => cells.map((cell, n) => cell.padEnd(widths[n]!)).join(' | ');
  return [line(columns), ...rows.map((row) => line(columns.map((column) => String(row[column] ?? ''))))];
}
