/**
 * A kill -9 at every fault point, one by one, with calls in flight; then another process goes on. Whatever the point, the jobs
 * that the dead one held can run again within its lease and a few seconds, the key that goes out again is the same, the
 * upstream has one effect for each key, and the batch's answer is complete and true.
 * The processes are real and so is the upstream's idempotency store. Points share a database and the replica that goes on, a
 * few at a time: it is stopped until the victim is dead, so that it takes nothing of what the victim shall take. What is
 * submitted goes in by an API in this process, so that no answer is lost that the test needs.
 */
import t, { type Test } from 'tap';
import { RequestLog } from '../../src/simulator/request-log.ts';
import { type FaultPoint, faultPlaces } from '../../src/system/fault-points.ts';
import { type BatchAnswer, type BatchStatus, numberedItems, type VerdictItem } from '../support/client.ts';
import { eventually } from '../support/eventually.ts';
import { assertOneEffectEach } from '../support/fleet.ts';
import { defaults, type Intake, useIntake } from '../support/intake.ts';
import { type Service, startService } from '../support/service.ts';
import { type Rule, useUpstreamProcess } from '../support/upstream.ts';

t.setTimeout(300_000);
/** Processes start slowly and wait for leases: so many points at a time. */
const chains = 4;

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
  readonly victim?: 'api' | 'decision' | 'reaper' | 'drained';
  /** Whether jobs are left running under the lease of who died, and whether some of them had left for the upstream. */
  readonly leaves: 'sent' | 'unsent' | 'nothing';
  /** The verdicts when all of it is submitted again. */
  readonly again?: 'accepted' | 'duplicate';
}

const scenarios: Readonly<Record<FaultPoint, Scenario>> = {
  'intake.before_commit': { victim: 'api', leaves: 'nothing', again: 'accepted' },
  'intake.after_commit': { victim: 'api', leaves: 'nothing', again: 'duplicate' },
  'decision.before_commit': { victim: 'decision', leaves: 'nothing' },
  'decision.after_commit': { victim: 'decision', leaves: 'nothing' },
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
const points = Object.keys(scenarios) as FaultPoint[];
t.test('point by point', { jobs: chains }, async (t) => {
  for (let chain = 0; chain < chains; chain += 1) {
    t.test(`points ${chain + 1} of ${chains}`, { buffered: true }, async (t) => {
      const stage = await setTheStage(t);
      for (const point of points.filter((_, n) => n % chains === chain)) {
        await t.test(`kill -9 at ${point}: ${faultPlaces[point].what}`, async (t) => {
          await upstream.script(...rulesOf(point));
          await stage.intake.putUpstream(point, definitionOf(point));
          stage.standby.kill('SIGSTOP');
          const death = await playToTheDeath(t, point, stage);
          stage.standby.kill('SIGCONT');
          await upstream.release(gateOf(point));
          await judge(t, point, stage, death);
        });
      }
    });
  }
});
t.test('all of them', async (t) => {
  for (const line of asTable(points.map((point) => ({ point, ...results.get(point) })))) t.comment(line);
  t.equal(results.size, points.length);
});

function gateOf(point: FaultPoint): string {
  return `${point} is dead`;
}

function rulesOf(point: FaultPoint): Rule[] {
  const { answered = 0, throttled = false, victim } = scenarios[point];
  const path = `/${point}/*`;
  if (victim === 'decision') return [{ path, times: itemCount, answer: { status: 400 } }];
  const rules: Rule[] = [{ path, skip: answered, answer: { gate: gateOf(point) } }];
  if (throttled) rules.unshift({ path, times: 1, answer: { status: 429, headers: [['Retry-After', '1']] } });
  return rules;
}

function definitionOf(point: FaultPoint): object {
  const retry = { base_ms: 50, cap_ms: 200 };
  return { base_url: `${upstream.url}/${point}`, allow_private_addresses: true, timeout_ms: 30_000, retry };
}

function itemsOf(point: FaultPoint) {
  return numberedItems(point, itemCount);
}

interface Stage {
  readonly intake: Intake;
  readonly standby: Service;
  /** A service on the stage's database, with these fault points; stopped at the end of `t`. */
  start(t: Test, plan?: string, env?: Readonly<Record<string, string>>): Promise<Service>;
}

async function setTheStage(t: Test): Promise<Stage> {
  const intake = await useIntake(t);
  const start: Stage['start'] = (t, plan, env = {}) =>
    startService(t, {
      databaseUrl: intake.connectionString,
      env: {
        NODE_ENV: 'test',
        SLUICE_LEASE_SECONDS: String(leaseSeconds),
        SLUICE_CONCURRENCY: String(slots),
        ...(plan === undefined ? {} : { SLUICE_FAULT_POINTS: plan }),
        ...env,
      },
    });
  return { intake, start, standby: await start(t) };
}

async function submit({ intake }: Stage, point: FaultPoint): Promise<BatchAnswer> {
  const { status, body } = await intake.post({ defaults: { ...defaults, upstream: point }, items: itemsOf(point) });
  if (status !== 202) throw new Error(`answered ${status}: ${JSON.stringify(body)}`);
  return body;
}

async function callsSoFar(point: FaultPoint): Promise<RequestLog> {
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
    victim = await stage.start(t, full, { SLUICE_ROLES: 'api' });
    await t.rejects(victim.client.submit(point, itemsOf(point)), 'its client never gets an answer');
  } else if (kind === 'decision') {
    victim = await decide(t, point, stage, full);
  } else if (kind === 'reaper') {
    // It takes what is left of the work, and then, when the lease of the first one is over, its jobs.
    const [first, second] = await Promise.all([stage.start(t, 'send.after=pass*3,kill'), stage.start(t, full)]);
    second.kill('SIGSTOP');
    await submit(stage, point);
    await first.exited;
    second.kill('SIGCONT');
    victim = second;
  } else {
    victim = await stage.start(t, full);
    await submit(stage, point);
  }
  if (kind === 'drained') {
    await eventually('its slots are taken', async () => (await callsSoFar(point)).requests.length === slots);
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
    const { counts } = await submit(stage, point);
    t.match(counts, { total: itemCount, [again]: itemCount }, `submitted again: ${again}`);
  }
  return takeStock(stage.intake);
}

/** All jobs fail; then each is retried, the first of them by the victim. */
async function decide(t: Test, point: FaultPoint, stage: Stage, plan: string): Promise<Service> {
  stage.standby.kill('SIGCONT');
  const { batch_id, items } = await submit(stage, point);
  await eventually('all have failed', async () => {
    const { body } = await stage.intake.get<BatchStatus>(`/v1/batches/${batch_id}`);
    return body.jobs.failed === itemCount;
  });
  stage.standby.kill('SIGSTOP');
  const victim = await stage.start(t, plan, { SLUICE_ROLES: 'api' });
  const paths = items.map(({ job_id }) => `/v1/jobs/${job_id}/retry`);
  await t.rejects(victim.client.send('POST', paths[0]!), 'its client never gets an answer');
  const retried: number[] = [];
  for (const url of paths) retried.push((await stage.intake.app.app.inject({ method: 'POST', url })).statusCode);
  t.same(
    retried,
    paths.map((_, n) => (n === 0 && point === 'decision.after_commit' ? 409 : 200)),
    'asked again, it says what has become of it',
  );
  return victim;
}

async function takeStock({ database }: Intake): Promise<Death> {
  const held = await database.query<{ job_id: string; worker_id: string }>(
    'select job_id, worker_id from sluice.running_jobs',
  );
  const [clock] = await database.query<{ now: Date }>('select clock_timestamp() as now');
  return { held: new Map(held.map((row) => [row.job_id, row.worker_id])), deadAt: clock!.now };
}

async function judge(t: Test, point: FaultPoint, { intake, standby }: Stage, { held, deadAt }: Death): Promise<void> {
  const { leaves, again, victim } = scenarios[point];
  const keys = itemsOf(point).map((item) => item.idempotency_key);
  const batches = await intake.database.query<{ id: string }>(
    'select distinct batch_id as id from sluice.batch_items where idempotency_key = any ($1::text[])',
    [keys],
  );
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
  const log = await callsSoFar(point);
  assertOneEffectEach(t, log, keys);
  let lastBackMs = 0;
  for (const [jobId, workerId] of held) {
    const calls = log.requests.filter((request) => request.jobId === jobId);
    t.equal(new Set(calls.map(({ key }) => key)).size, 1, 'one key, however often it went out');
    const attempts = await intake.database.query<{ worker_id: string; outcome: string; after_ms: number }>(
      `select worker_id, outcome, (extract(epoch from ended_at - $2::timestamptz) * 1000)::float8 as after_ms
         from sluice.attempts where job_id = $1 order by number`,
      [jobId, deadAt],
    );
    const [lost, last] = [attempts.find((attempt) => attempt.worker_id === workerId), attempts.at(-1)];
    t.match(lost, { outcome: 'unknown' }, 'what the dead one did is told apart');
    t.match(last, { outcome: 'success', worker_id: standby.workerId }, 'the other one has done it');
    lastBackMs = Math.max(lastBackMs, lost?.after_ms ?? Number.POSITIVE_INFINITY);
  }
  t.ok(lastBackMs <= leaseSeconds * 1000 + fewSecondsMs, `eligible again ${Math.round(lastBackMs)} ms after the death`);
  const sum = log.summary();
  if (leaves === 'sent') t.ok(sum.replayed > 0, 'keys went out twice, and the upstream knew them');
  else
    t.equal(
      sum.requests,
      itemCount * (victim === 'decision' ? 2 : 1),
      'what had not left, or was written, was sent once',
    );
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
