/**
 * What every loss of the database has in common, whatever its kind: two replicas under load and with calls in flight, the
 * loss, the way back, and what must be true of all that was promised meanwhile.
 */
import pg from 'pg';
import type { Test } from 'tap';
import { systemClock } from '../../src/system/clock.ts';
import { numberedItems } from './client.ts';
import { eventually } from './eventually.ts';
import { assertOneEffectEach, waitForLog } from './fleet.ts';
import { assertInvariants } from './invariants.ts';
import { Load } from './load.ts';
import { type Service, startReplicas } from './service.ts';
import { type UpstreamProcess, useUpstreamProcess } from './upstream.ts';

/** What is promised: 503 within 5 s of a loss, ready and at work within 10 s of its end. Half a second for the test itself. */
export const lossShownWithinMs = 5_500;
export const backWithinMs = 10_500;

export interface Stage {
  readonly services: readonly Service[];
  readonly upstream: UpstreamProcess;
  /** Every key that was submitted on this stage. */
  readonly keys: string[];
}

/** Replicas and an upstream `api` that stay for several outages. The lease outlives each of them. */
export async function openStage(
  t: Test,
  databaseUrl: string,
  { replicas = 2, env = {} }: { replicas?: number; env?: Readonly<Record<string, string>> } = {},
): Promise<Stage> {
  const upstream = await useUpstreamProcess(t, {
    rules: [{ answer: { delayMs: 20 } }],
  });
  const services = await startReplicas(t, replicas, {
    databaseUrl,
    env: { SLUICE_LEASE_SECONDS: '60', ...env },
  });
  await services[0]!.client.putUpstream('api', upstream.url, { timeout_ms: 60_000 });
  return { services, upstream, keys: [] };
}

export interface Outage {
  /** Of the keys; different for each outage of a stage. */
  readonly name: string;
  /** Where the invariants are asked for, past whatever lies in between. */
  readonly databaseUrl: string;
  /** Brings the loss about; what it gives ends it. */
  readonly begin: () => Promise<() => Promise<void> | void>;
  /** Whether it is long enough for /readyz to tell it; default true. Then it lasts until that has been seen. */
  readonly shows?: boolean;
  /** The shortest time it lasts, in milliseconds. */
  readonly leastMs?: number;
}

/** Puts the stage through an outage and judges what became of everything. */
export async function survive(t: Test, { services, upstream, keys }: Stage, outage: Outage): Promise<void> {
  const { name, shows = true, leastMs = 0 } = outage;
  const clients = services.map(({ client }) => client);
  const exits: unknown[] = [];
  for (const service of services) void service.exited.then((exit) => exits.push(exit));

  // Calls that are in flight when the database goes, and whose answers come while it is away.
  const held = numberedItems(`${name}-held`, 5);
  const path = `/held/${name}`;
  await upstream.script({ path, answer: { gate: name } });
  const before = await upstream.count();
  const heldBatch = await clients[0]!.submit('api', held, {
    defaults: { upstream: 'api', path },
  });
  await waitForLog(upstream, (log) => log.requests.length >= before + held.length);
  const load = new Load({ clients, upstream: 'api', prefix: name });
  await eventually('the load to flow', async () => (await upstream.count()) >= before + held.length + 50);

  const end = await outage.begin();
  const beganMs = systemClock.monotonicMs();
  await upstream.release(name);
  if (shows) {
    for (const service of services) {
      await eventually('the loss to show', async () => (await readiness(service)) === 503, lossShownWithinMs);
    }
  }
  const restMs = leastMs - (systemClock.monotonicMs() - beganMs);
  if (restMs > 0) await systemClock.sleep(restMs);
  t.ok(
    (await Promise.all(services.map((service) => service.client.send('GET', '/livez')))).every(
      ({ status }) => status === 200,
    ),
    'all replicas are alive meanwhile',
  );
  await end();
  const endedMs = systemClock.monotonicMs();
  const called = await upstream.count();
  await Promise.all([
    ...services.map((service) =>
      eventually('it to be ready again', async () => (await readiness(service)) === 200, backWithinMs),
    ),
    eventually('work to go on', async () => (await upstream.count()) > called, backWithinMs),
    eventually(
      'all replicas to listen again',
      async () => (await countListeners(outage.databaseUrl)) >= services.length,
      backWithinMs,
    ),
  ]);
  const refused = load.answers.filter(({ status }) => status === 503).length;
  t.comment(
    `${name}: ${refused} refusals, lasted ${Math.round(endedMs - beganMs)} ms, back ${sinceMs(endedMs)} ms after its end`,
  );

  await load.stop();
  keys.push(...load.keys, ...held.map((item) => item.idempotency_key));
  for (const id of [heldBatch.batch_id, ...load.batchIds]) {
    const batch = await clients[0]!.waitForBatch(id, 30_000);
    if (batch.jobs.succeeded !== batch.counts.total) t.match(batch, { jobs: { succeeded: batch.counts.total } });
  }
  assertOneEffectEach(t, await upstream.log(), keys);
  for (const { job_id } of heldBatch.items) {
    const { state, attempts } = await clients[0]!.job(job_id as string);
    t.same(
      { state, outcomes: attempts.map(({ outcome }) => outcome) },
      { state: 'succeeded', outcomes: ['success'] },
      'an answer that came while the database was away is on record, and nothing else',
    );
  }
  t.same(
    load.answers.filter(({ status, retryAfter }) => status !== 202 && !(status === 503 && Number(retryAfter) > 0)),
    [],
    'intake answers 202, or 503 with a Retry-After',
  );
  t.same(exits, [], 'no process has ended');
  await assertInvariants(outage.databaseUrl);
}

async function countListeners(databaseUrl: string): Promise<number> {
  const client = new pg.Client({ connectionString: databaseUrl });
  client.on('error', () => undefined);
  await client.connect();
  try {
    const { rowCount } = await client.query(
      `select 1 from pg_stat_activity where datname = current_database() and application_name = 'sluice listen'`,
    );
    return rowCount ?? 0;
  } finally {
    await client.end();
  }
}

async function readiness(service: Service): Promise<number> {
  return (await service.client.send('GET', '/readyz')).status;
}

function sinceMs(startMs: number): number {
  return Math.round(systemClock.monotonicMs() - startMs);
}
