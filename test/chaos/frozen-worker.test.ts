/**
 * A worker that stands still in the midst of a call (SIGSTOP, as by a debugger, a suspended container, a machine without
 * memory) for longer than its lease: another one finishes the job, and what the first one finds when it goes on changes nothing.
 */
import t, { type Test } from 'tap';
import { systemClock } from '../../src/system/clock.ts';
import { numberedItems } from '../support/client.ts';
import { eventually } from '../support/eventually.ts';
import { assertOneEffectEach, startFleet, waitForLog } from '../support/fleet.ts';
import { type Service, startService } from '../support/service.ts';

t.setTimeout(90_000);

const leaseSeconds = 2;
const standsStillMs = 5_000;
const count = 4;

interface Plan {
  /** Of the first worker. */
  readonly env: Readonly<Record<string, string>>;
  /** Resolves when it stands still with its calls under way. */
  readonly stand: (first: Service) => Promise<unknown>;
}

/** The same by a fault point, right after a request is written, and from outside, at any moment of the call. */
const plans: Readonly<Record<string, Plan>> = {
  'stopped right after it has sent': {
    env: { NODE_ENV: 'test', SLUICE_FAULT_POINTS: `send.after=pass*${count - 1},stop` },
    stand: (first) => first.waitForLine((line) => line.fault_point === 'send.after' && line.level === 40),
  },
  'stopped while it waits for answers': {
    env: {},
    stand: async (first) => first.kill('SIGSTOP'),
  },
};

for (const [what, plan] of Object.entries(plans)) {
  t.test(`a worker is ${what}, for 5 s of a lease of 2 s: another one finishes, and that is the result`, (t) =>
    outlive(t, plan),
  );
}

async function outlive(t: Test, { env, stand }: Plan): Promise<void> {
  const lease = { SLUICE_LEASE_SECONDS: String(leaseSeconds) };
  const { client, services, upstream, database } = await startFleet(t, {
    env: { ...lease, SLUICE_CONCURRENCY: String(count), ...env },
    // The effects are there at once; the answers to the first calls come while their worker stands still.
    upstream: { rules: [{ times: count, answer: { gate: 'answers' } }] },
    definition: { timeout_ms: 60_000 },
  });
  const first = services[0]!;
  const items = numberedItems('order', count);
  const { batch_id, items: verdicts } = await client.submit('api', items);
  await waitForLog(upstream, (log) => log.requests.length === count);
  await stand(first);
  const stoodStillMs = systemClock.monotonicMs();
  const second = await startService(t, { databaseUrl: database.connectionString, env: lease });
  await second.client.waitForBatch(batch_id, 20_000);
  const jobsOf = () => Promise.all(verdicts.map(({ job_id }) => second.client.job(job_id as string)));
  const results = await jobsOf();
  t.comment(
    `finished by the other ${Math.round(systemClock.monotonicMs() - stoodStillMs)} ms after the standstill began`,
  );

  const restMs = standsStillMs - (systemClock.monotonicMs() - stoodStillMs);
  if (restMs > 0) await systemClock.sleep(restMs);
  await upstream.release('answers');
  first.kill('SIGCONT');
  await first.waitForLine(({ msg }) => msg === 'the lease had run out; looking which jobs are still ours');
  await first.waitForLine(({ msg }) => msg === 'results of jobs that were taken over were dropped');
  await eventually('the first one to work again', async () => {
    return (await first.client.send('GET', '/readyz')).status === 200;
  });

  const afterwards = await jobsOf();
  for (const [n, job] of afterwards.entries()) {
    t.same({ ...job, attempts: [] }, { ...results[n], attempts: [] }, 'the result has not changed');
    t.match(job, { state: 'succeeded', evidence: 'response', response: { status: 200 } });
    t.match(
      job.attempts.map(({ number, outcome, worker_id }) => ({ number, outcome, worker_id })),
      [
        { number: 1, outcome: 'unknown', worker_id: first.workerId },
        { number: 2, outcome: 'success', worker_id: second.workerId },
      ],
      'both attempts are on record',
    );
    t.ok(job.attempts[1]!.epoch > job.attempts[0]!.epoch, 'under another epoch');
  }
  const log = await upstream.log();
  assertOneEffectEach(
    t,
    log,
    items.map((item) => item.idempotency_key),
  );
  t.match(log.summary(), { requests: 2 * count, effects: count, replayed: count }, 'each key went out twice');

  // It is a worker like any other again.
  second.kill('SIGSTOP');
  const { batch_id: next } = await first.client.submit('api', numberedItems('next', 1));
  await first.client.waitForBatch(next, 20_000);
  second.kill('SIGCONT');
}
