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

t.test(
  'a permit goes back to its window by where this session left the row, wherever others have moved it since',
  async (t) => {
    const store = await useClaims(t, { max: 1 });
    await store.putUpstream('api');
    await store.putLimit('quota', { limit: 1_000, per: 3_600, upstreams: ['api'] });
    await store.addJobs({ count: 500 });
    const used = async () =>
      (await store.database.query<{ used: number }>('select used from sluice.rate_windows'))[0]!.used;
    /** As after a look by name that took this long. */
    const look = (took: string) =>
      store.database.query(
        `select sluice.window_seen('quota', '', x.ctid, true, $1::interval) from sluice.rate_windows x where x.limit_name = 'quota'`,
        [took],
      );
    const seenAt = async () =>
      (await store.database.query<{ at: string | null }>(`select sluice.window_seen_at('quota', '')::text as at`))[0]!
        .at;
    const first = await store.claim(10);
    await look('1 microsecond');
    t.equal(await seenAt(), null, 'a look by name that was quick is as good the next time');
    await look('1 second');
    const left = await seenAt();
    t.ok(left);
    for (let claims = 0; claims < 30; claims += 1) await store.claim(2);
    await store.settle(first.jobs, neverLeft);
    t.equal(await used(), 60, 'followed through 30 versions');
    t.not(await seenAt(), left, 'and it is known where it is now');
    const second = await store.claim(5);
    await store.settle(second.jobs, neverLeft);
    t.equal(await used(), 60);
  },
);
