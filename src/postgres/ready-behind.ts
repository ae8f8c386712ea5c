/**
 * What is ready in a lane before the place where claims go on: a retry, a higher priority, a batch that committed late. Read
 * apart from the claims, which must not be kept waiting by it: the look steps over every row that was taken since vacuum came,
 * and where a transaction is left open somewhere that is all of them.
 */
import type { LanePlace, TurnPlace } from './claim-jobs.ts';
import type { Database } from './database.ts';

export const readyBehindFunction = {
  name: 'ready_behind',
  sql: String.raw`
-- p_lane, p_rank, p_seq: the places. Gives the ready jobs up to there, at most so many a lane, and in rows without a lane where the
-- turn of each group begins.
create or replace function sluice.ready_behind(p_lane bigint[], p_rank int[], p_seq bigint[], p_most int)
returns table (lane_id bigint, rank int, seq bigint, group_id int, turn_us bigint) language sql stable
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
  select p.lane_id, x.rank, x.seq, null::int, null::bigint
    from unnest(p_lane, p_rank, p_seq) as p(lane_id, rank, seq)
   cross join lateral (select y.rank, y.seq from sluice.ready_jobs y
                        where y.lane_id = p.lane_id and (y.rank, y.seq) <= (p.rank, p.seq)
                        order by y.rank, y.seq limit p_most) x
  union all
  select null, null, null, g.id, sluice.us_of(l.next_at)
    from sluice.lane_groups g
   cross join lateral (select o.next_at from sluice.lanes o where o.group_id = g.id order by o.next_at limit 1) l
   where l.next_at < 'infinity'
$$;`,
} as const;

export interface Behind {
  readonly jobs: readonly LanePlace[];
  readonly turns: readonly TurnPlace[];
}

interface BehindRow {
  lane_id: number | null;
  rank: number;
  seq: number;
  group_id: number;
  turn_us: number;
}

/** @param most jobs of each lane, at most */
export async function readReadyBehind(database: Database, places: readonly LanePlace[], most: number): Promise<Behind> {
  const rows = await database.query<BehindRow>(
    'select * from sluice.ready_behind($1::bigint[], $2::int[], $3::bigint[], $4::int)',
    [places.map(({ laneId }) => laneId), places.map(({ rank }) => rank), places.map(({ seq }) => seq), most],
    'ready-behind',
  );
  const jobs: LanePlace[] = [];
  const turns: TurnPlace[] = [];
  for (const { lane_id, rank, seq, group_id, turn_us } of rows) {
    if (lane_id === null) turns.push({ groupId: group_id, us: turn_us });
    else jobs.push({ laneId: lane_id, rank, seq });
  }
  return { jobs, turns };
}
