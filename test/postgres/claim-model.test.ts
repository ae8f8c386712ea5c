/**
 * The claim against the model of a window, over several real connections: a random history of claims by a fleet of workers,
 * each on its own connection, the time given by the test, admits exactly what the model admits, to the job.
 */
import fc from 'fast-check';
import t from 'tap';
import {
  chargeWindow,
  emptyWindow,
  horizonUs,
  rollWindow,
  type WindowRule,
  windowOpensAtUs,
  windowRoom,
} from '../../src/domain/rate-window.ts';
import { claimJobs } from '../../src/postgres/claim-jobs.ts';
import { openDatabase } from '../../src/postgres/database.ts';
import { createLogger } from '../../src/system/logger.ts';
import { coverAllBy, newWorker, useClaims } from '../support/claims.ts';

const workersCount = 4;
/** More than all histories can take together. */
const jobsCount = 30_000;

const rules = fc.record({
  limit: fc.integer({ min: 1, max: 30 }),
  per: fc.constantFrom(1, 3),
  algorithm: fc.constantFrom('sliding_window', 'fixed_window', 'token_bucket'),
  burst: fc.integer({ min: 0, max: 40 }),
  slack_ms: fc.constantFrom(0, 25),
}) satisfies fc.Arbitrary<WindowRule>;

const histories = fc.array(
  fc.record({
    worker: fc.nat(workersCount - 1),
    /** In thousandths of the period. */
    pause: fc.oneof(fc.constant(0), fc.integer({ min: 1, max: 60 }), fc.integer({ min: 1, max: 1200 })),
    slots: fc.integer({ min: 1, max: 12 }),
  }),
  { minLength: 5, maxLength: 40 },
);

t.test('every claim of every history admits what the model admits, and no more', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.addJobs({ count: jobsCount });
  const workers = await Promise.all(
    Array.from({ length: workersCount }, async () => {
      const database = openDatabase({
        connectionString: store.connectionString,
        max: 1,
        logger: createLogger('silent'),
      });
      t.teardown(() => database.close());
      return { database, workerId: await newWorker(database) };
    }),
  );
  // Each history begins well after the one before, so that nothing of it counts any more.
  let now = (await store.clockUs()) + 3_600_000_000;
  let round = 0;

  await fc.assert(
    fc.asyncProperty(rules, histories, async (rule, history) => {
      round += 1;
      now += 100_000_000;
      const name = `limit-${round}`;
      await coverAllBy(store, name, rule);
      await store.database.query('update sluice.lanes set next_at = to_timestamp(0), closed_by = null');
      let state = emptyWindow(rule, now);
      // What is closed is not looked at before the time that was told for it.
      let closedUntil = Number.NEGATIVE_INFINITY;
      const log: number[] = [];
      for (const { worker, pause, slots } of history) {
        now += Math.floor((pause * rule.per * 1_000_000) / 1000);
        const { database, workerId } = workers[worker]!;
        await database.query(`select set_config('sluice.now_us', $1, false)`, [String(now)]);
        const claim = await claimJobs(database, workerId, slots);
        state = rollWindow(state, rule, now);
        const early = windowRoom(state, rule) >= 1 ? closedUntil - now : 0;
        // A bucket's time is told up to two microseconds late: its level is a double, rounded up, plus one (rate-windows.ts).
        if (early > 2) throw new Error(`it is closed for ${early} µs more than the model needs`);
        const expected = early > 0 ? 0 : Math.min(slots, windowRoom(state, rule));
        if (claim.jobs.length !== expected) {
          throw new Error(
            `at +${pause} with ${slots} slots: ${claim.jobs.length} admitted, the model admits ${expected}`,
          );
        }
        if (expected > 0) state = chargeWindow(state, rule, now, expected);
        for (let i = 0; i < expected; i += 1) log.push(now);
        const opens = windowOpensAtUs(state, rule, now, 1);
        closedUntil = opens ?? Number.POSITIVE_INFINITY;
        if (expected < slots && opens !== null) {
          const told = claim.nextInMs ?? Number.NaN;
          if (!(Math.abs(told - Math.max(0, opens - now) / 1000) < 0.01)) {
            throw new Error(`told to come back in ${told} ms, the window opens in ${(opens - now) / 1000} ms`);
          }
        }
      }
      if (rule.algorithm !== 'sliding_window') return;
      for (const at of log) {
        const within = log.filter((each) => each <= at && each >= at - horizonUs(rule)).length;
        if (within > rule.limit) throw new Error(`${within} admitted within one horizon of a limit of ${rule.limit}`);
      }
    }),
    { numRuns: 60 },
  );
  const [left] = await store.database.query<{ n: number }>('select count(*)::int as n from sluice.ready_jobs');
  t.ok(left!.n > 0, 'there was always work, so that only the window decided');
});
