/**
 * Permits that are given back late, in any order and amount, against a log of the starts that were made: the bound of each
 * algorithm holds for what started, whatever was admitted and came back.
 */
import fc from 'fast-check';
import t from 'tap';
import type { ClaimedJob } from '../../src/domain/job.ts';
import { horizonUs, type WindowRule } from '../../src/domain/rate-window.ts';
import { coverAllBy, neverLeft, useClaims } from '../support/claims.ts';

const rules = fc.record({
  limit: fc.integer({ min: 1, max: 12 }),
  per: fc.constant(1),
  algorithm: fc.constantFrom('sliding_window', 'token_bucket'),
  burst: fc.integer({ min: 0, max: 12 }),
  slack_ms: fc.constant(25),
}) satisfies fc.Arbitrary<WindowRule>;

const histories = fc.array(
  fc.record({
    pauseMs: fc.oneof(fc.integer({ min: 0, max: 60 }), fc.integer({ min: 0, max: 1500 })),
    slots: fc.integer({ min: 1, max: 12 }),
    /** Whether the jobs of this claim start, or are given back when `held` later steps have passed. */
    starts: fc.boolean(),
    held: fc.integer({ min: 0, max: 4 }),
  }),
  { minLength: 5, maxLength: 30 },
);

t.test('what starts keeps the bound, whatever is given back and when', async (t) => {
  const store = await useClaims(t, { max: 1 });
  await store.putUpstream('api');
  await store.addJobs({ count: 3_000 });
  let now = (await store.clockUs()) + 3_600_000_000;
  let round = 0;
  let givenBack = 0;

  await fc.assert(
    fc.asyncProperty(rules, histories, async (rule, history) => {
      round += 1;
      now += 100_000_000;
      const name = `limit-${round}`;
      await coverAllBy(store, name, rule);
      const starts: number[] = [];
      let pending: { due: number; jobs: readonly ClaimedJob[] }[] = [];
      for (const [step, { pauseMs, slots, starts: start, held }] of history.entries()) {
        now += pauseMs * 1000;
        await store.setClock(now);
        const due = pending.filter((each) => each.due <= step);
        pending = pending.filter((each) => each.due > step);
        for (const { jobs } of due) {
          await store.settle(jobs, neverLeft);
          givenBack += jobs.length;
        }
        await store.database.query('update sluice.lane_groups set next_at = to_timestamp(0), closed_by = null');
        await store.database.query('update sluice.lanes set next_at = to_timestamp(0), closed_by = null');
        const { jobs } = await store.claim(slots);
        if (start) {
          for (const _ of jobs) starts.push(now);
          await store.settle(jobs);
        } else if (jobs.length > 0) pending.push({ due: step + held, jobs });
      }
      for (const { jobs } of pending) await store.settle(jobs, neverLeft);
      for (const [i, from] of starts.entries()) {
        for (let k = i; k < starts.length; k += 1) {
          const lasted = starts[k]! - from;
          const count = k - i + 1;
          const burst = rule.burst > 0 ? rule.burst : rule.limit;
          const bound =
            rule.algorithm === 'token_bucket' ? burst + (rule.limit * lasted) / 1_000_000 + 1e-6 : rule.limit;
          if (rule.algorithm === 'sliding_window' && lasted > horizonUs(rule)) break;
          if (count > bound) throw new Error(`${count} starts within ${lasted} us, of ${bound} allowed`);
        }
      }
    }),
    { numRuns: 60 },
  );
  t.ok(givenBack > 100, `${givenBack} permits were given back`);
});
