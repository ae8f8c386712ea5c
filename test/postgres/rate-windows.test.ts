/**
 * The stored functions of rate windows do what `domain/rate-window.ts` says, on the same histories, to the microsecond.
 */
import fc from 'fast-check';
import t from 'tap';
import {
  chargeWindow,
  emptyWindow,
  permitLeftMs,
  rollWindow,
  unlimitedRoom,
  type WindowRule,
  type WindowState,
  windowOpensAtUs,
  windowRoom,
} from '../../src/domain/rate-window.ts';
import { createTestDatabase } from '../support/database.ts';

const start = 1_790_000_000_000_000;

const rules = fc.record({
  limit: fc.option(fc.integer({ min: 0, max: 12 }), { freq: 20 }),
  per: fc.constantFrom(1, 2, 61),
  algorithm: fc.constantFrom('sliding_window', 'fixed_window', 'token_bucket'),
  burst: fc.integer({ min: 0, max: 20 }),
  slack_ms: fc.constantFrom(0, 25, 700),
}) satisfies fc.Arbitrary<WindowRule>;

const histories = fc.record({
  before: rules,
  after: rules,
  steps: fc.array(fc.record({ pause: fc.integer({ min: 0, max: 900 }), cost: fc.integer({ min: 1, max: 3 }) }), {
    minLength: 1,
    maxLength: 20,
  }),
});

/** Runs one history in SQL and gives, per step, what the window said. */
const playInSql = `
create function pg_temp.play(p_limits int[], p_per int[], p_algorithm text[], p_burst int[], p_slack int[], p_at bigint[], p_cost bigint[])
returns table (room bigint, opens bigint, permit float8) language plpgsql as $$
declare
  r sluice.rate_limits;
  w sluice.rate_windows;
begin
  for i in 1 .. array_length(p_at, 1) loop
    r.name := 'x'; r."limit" := p_limits[i]; r.per_seconds := p_per[i]; r.algorithm := p_algorithm[i];
    r.burst := p_burst[i]; r.slack_ms := p_slack[i];
    if i = 1 then w := sluice.rate_window_empty(r, '', p_at[1]); end if;
    w := sluice.rate_window_roll(w, r, p_at[i]);
    if sluice.rate_window_room(w, r) >= p_cost[i] then w := sluice.rate_window_charge(w, r, p_at[i], p_cost[i]); end if;
    room := sluice.rate_window_room(w, r);
    opens := sluice.rate_window_opens_us(w, r, p_at[i], p_cost[i]);
    permit := sluice.rate_window_permit_ms(w, r, p_at[i]);
    return next;
  end loop;
end $$`;

t.test('SQL and the model agree on every step of every history, redefinitions included', async (t) => {
  const { database } = await createTestDatabase(t, { max: 1 });
  await database.query(playInSql);
  await fc.assert(
    fc.asyncProperty(histories, async ({ before, after, steps }) => {
      let now = start;
      const lines = steps.map(({ pause, cost }, i) => {
        const rule = i < steps.length / 2 ? before : after;
        now += Math.floor((pause * rule.per * 1_000_000) / 1000);
        return { rule, at: now, cost };
      });
      let state: WindowState = emptyWindow(lines[0]!.rule, lines[0]!.at);
      const expected = lines.map(({ rule, at, cost }) => {
        state = rollWindow(state, rule, at);
        if (windowRoom(state, rule) >= cost) state = chargeWindow(state, rule, at, cost);
        return {
          room: windowRoom(state, rule),
          opens: windowOpensAtUs(state, rule, at, cost),
          permit: permitLeftMs(state, rule, at),
        };
      });
      const column = <T>(pick: (line: (typeof lines)[number]) => T) => lines.map(pick);
      const actual = await database.query<{ room: number; opens: number | null; permit: number }>(
        'select * from pg_temp.play($1::int[], $2::int[], $3::text[], $4::int[], $5::int[], $6::bigint[], $7::bigint[])',
        [
          column(({ rule }) => rule.limit),
          column(({ rule }) => rule.per),
          column(({ rule }) => rule.algorithm),
          column(({ rule }) => rule.burst),
          column(({ rule }) => rule.slack_ms),
          column(({ at }) => at),
          column(({ cost }) => cost),
        ],
      );
      if (JSON.stringify(actual) !== JSON.stringify(expected)) {
        throw new Error(`SQL ${JSON.stringify(actual)} model ${JSON.stringify(expected)}`);
      }
    }),
    { numRuns: 300 },
  );
  t.equal(unlimitedRoom, 2_147_483_647);
});
