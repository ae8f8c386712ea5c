/**
 * The claim: which jobs a worker may start now. One round trip, one transaction; the count in every rate window and the
 * lease commit together, so there is no start that was not counted.
 *
 * Invariants: an admission reads the clock after it holds its windows' rows (a claimer with an older time would not count
 * what another has already let go); a job is admitted by all windows that cover it or none is charged; nothing is admitted
 * under a cooldown that has committed (a writer of a cooldown holds `7305002, upstream` alone, a claim holds it shared).
 * Waits for nobody: lanes, windows and rows that another claimer holds are skipped and reported as `busy`.
 * Cost: one look at the groups, then only open lanes by (group_id, next_at) and their heads by (lane_id, rank, seq); what
 * waits in closed lanes is never read. A lane without a limit touches no window.
 * Lock order: advisory 7305001 (definitions, shared), 7305002 (cooldowns, shared, tried), lanes, rate_windows (a row is made under
 * 7305006, tried), cooldowns, job rows; everything but the first with SKIP LOCKED.
 * Only index nested loops are allowed (the function's SET clauses): statistics say that these tables are empty, and a plan that believes them reads every dead row. Nor may a loop be turned
 * round: `x.id = any (array[p.id])` can only be looked up in the index of x for each p, where `x.id = p.id` also lets all of
 * x be walked in the order of its index, with the few of p gone through at each row. What is only read is looked up in
 * a lateral with `offset 0`, to the same end.
 */
import { v7 as newId } from 'uuid';
import type { ClaimedJob } from '../domain/job.ts';
import { type Database, queryRows, withClient } from './database.ts';

export const claimJobsFunction = {
  name: 'claim_jobs',
  sql: String.raw`
create or replace function sluice.close_group(p_group int, p_until timestamptz, p_by text, p_name text) returns void
language sql as $$
  update sluice.lane_groups set next_at = p_until, closed_by = p_by, closed_name = p_name
   where id = (select g.id from sluice.lane_groups g where g.id = p_group for no key update skip locked)
$$;
-- All groups under these shared limits, but for those that are closed for longer and those that somebody holds; gives them.
create or replace function sluice.close_groups_under(p_limits text[], p_until timestamptz, p_name text) returns int[]
language sql as $$
  with shut as (
    update sluice.lane_groups set next_at = p_until, closed_by = 'window', closed_name = p_name
     where id in (select g.id from sluice.lane_groups g where g.shared_limits && p_limits and g.next_at < p_until
                   order by g.id for no key update skip locked)
    returning id)
  select coalesce(array_agg(id), '{}') from shut
$$;
-- The next one's part of so many jobs, where so many have a part in them. What is left over goes to chance: were it always for the
-- first, they would have to change places each time. Where there are fewer jobs than takers, the first have one each.
create or replace function sluice.part_of(p_jobs bigint, p_among bigint) returns bigint language sql volatile as $$
  select case when p_jobs < p_among then least(p_jobs, 1) else p_jobs / p_among + (random() * p_among < p_jobs % p_among)::int end
$$;
create or replace function sluice.close_lane(p_lane bigint, p_until timestamptz, p_by text, p_name text) returns void
language sql as $$
  update sluice.lanes set next_at = p_until, closed_by = p_by, closed_name = p_name
   where id = (select l.id from sluice.lanes l where l.id = p_lane for no key update skip locked)
$$;

-- p_slots: calls that may start at once; p_ahead: jobs that may be had beside, to start within milliseconds. p_from_*: by lane, the
-- place from which on to look: what is before it was taken or was not there a moment ago, and its rows may be dead but not gone.
-- p_behind_*: jobs that are known to be ready before those places. p_turn_*: by group, where its turn
-- begins: no lane that is open has an earlier place in it.
-- p_window_*: by window (window_name), where its row was a moment ago. p_claim: known by this name until its jobs ahead may be started.
create or replace function sluice.claim_jobs(p_worker uuid, p_slots int, p_ahead int default 0, p_from_lane bigint[] default '{}',
                                             p_from_rank int[] default '{}', p_from_seq bigint[] default '{}',
                                             p_window_name text[] default '{}', p_window_at tid[] default '{}',
                                             p_claim uuid default null, p_behind_lane bigint[] default '{}',
                                             p_behind_rank int[] default '{}', p_behind_seq bigint[] default '{}',
                                             p_turn_group int[] default '{}', p_turn_us bigint[] default '{}')
-- A row for each job, in whose columns null is what is usual (toClaimedJob), and at the end one with nothing but a summary.
returns table (
  job_id uuid, epoch int, calls int, attempts_used int, throttles int, first_sent_age_ms float8, outcome_unknown boolean,
  reconcile_failures int,
  permit_ms float8, slot_wait_ms float8, batch_id uuid, tenant text, queue text, upstream text, partition_key text,
  idempotency_key text, key_source text, method text, path text, headers text, body text, body_is_text boolean,
  payload_version text, max_attempts int, cost int, fresh_keys int, summary json)
language plpgsql
set plan_cache_mode = force_generic_plan set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
declare
  k_most_rounds constant int := 8;
  -- How soon a lane that waits for a running call is looked at again should the call's end not have told it.
  k_recheck constant interval := interval '100 milliseconds';
  -- Lanes that a window closes until the same moment (one partition of several tenants, or queues) open within so much of it, in an
  -- order that is chance's, those that were served as much later: always in the same order, the last would have nothing.
  k_spread constant interval := interval '0.3 milliseconds';
  v_now timestamptz;
  v_us bigint;
  v_version bigint;
  v_left int := p_slots + p_ahead;
  -- What is left of it is the part of v_left that only groups may have whose calls nobody counts.
  v_ahead int := p_ahead;
  v_busy boolean := false;
  v_more boolean := false;
  v_round int := 0;
  v_want int;
  v_lock text;
  v_alive boolean;
  v_due boolean;
  v_promoted int := 0;
  v_late boolean;
  v_lanes_left int;
  -- Who is served goes behind the others: only where not all can be.
  v_turning boolean;
  v_visited int;
  v_seen bigint[] := '{}';
  v_shut int[] := '{}';
  v_fused boolean;
  v_at_lane bigint[] := '{}';
  v_at_rank int[] := '{}';
  v_at_seq bigint[] := '{}';
  v_window_name text[] := p_window_name;
  v_window_at tid[] := p_window_at;
  v_place int;
  v_name text;
  v_given int := 0;
  -- For how long lanes, windows and heads of lanes were looked for, nobody waited for meanwhile.
  v_look interval := '0';
  v_since timestamptz;
  -- The index of the turn holds an entry for every turn that a lane had since vacuum came: where in it the next claim may begin.
  v_turn_group int[] := '{}';
  v_turn_us bigint[] := '{}';
  -- Found empty from their place on: they stay open, so that a busy lane is not closed and woken many times a second.
  v_lingering bigint[] := '{}';
  c record;
  d sluice.cooldowns;
  r sluice.rate_limits;
  w sluice.rate_windows;
  j record;
  -- of the group
  g_ok boolean;
  g_r sluice.rate_limits[];
  g_w sluice.rate_windows[];
  g_windowed boolean;
  g_counted boolean;
  g_room bigint;
  g_cap bigint;
  g_jobs bigint;
  g_share bigint;
  g_permit float8;
  -- Not all of its lanes that were looked at had their part.
  g_cut boolean;
  g_opens bigint;
  g_spent bigint;
  g_at timestamptz;
  g_closes timestamptz;
  g_closed_by text;
  g_closed_name text;
  g_short text[];
  -- of the lane
  l_id bigint;
  l_key text;
  l_r sluice.rate_limits[];
  l_w sluice.rate_windows[];
  l_room bigint;
  l_cap bigint;
  l_jobs bigint;
  -- Under limits that count its partition's calls: no more than so many, by the closest of them.
  l_places bigint;
  l_placed_by text;
  l_free bigint;
  l_us bigint;
  l_permit float8;
  l_taken int;
  l_cost bigint;
  l_blocked bigint;
  l_charged text;
  l_closes timestamptz;
  l_closed_by text;
  l_closed_name text;
  l_opens bigint;
  -- Some of its heads are behind a blown fuse.
  l_fused boolean;
  l_rows tid[];
  l_ranks int[];
  l_seqs bigint[];
  l_costs int[];
  l_dearest int;
  l_found int;
  l_last int;
  l_from int;
  l_from_rank int;
  l_from_seq bigint;
  l_behind_ranks int[];
  l_behind_seqs bigint[];
  -- picked in the group
  p_lane bigint[];
  p_row tid[];
  p_permit float8[];
  p_charged text[];
  p_fail_lane bigint[];
  p_fail_rank int[];
  p_fail_seq bigint[];
  p_served bigint[];
  p_drained bigint[];
begin
  -- Simple expressions, and few questions: to begin a statement costs more here than most of them.
  v_lock := pg_advisory_xact_lock_shared(7305001);
  v_us := sluice.clock_us();
  v_now := sluice.at_us(v_us);
  -- What is due or late is rare, and to move it costs most of its time even where there is nothing to move.
  select v.version, exists (select 1 from sluice.workers x where x.id = p_worker and x.lease_expires_at > v_now),
         exists (select 1 from sluice.parked_jobs x where x.due_at <= v_now),
         exists (select 1 from sluice.ready_jobs x where x.expires_at <= v_now)
         or exists (select 1 from sluice.parked_jobs x where x.expires_at <= v_now and x.state = 'scheduled')
    into v_version, v_alive, v_due, v_late from sluice.definition_version v;
  if not v_alive then
    summary := json_build_object('definitionsVersion', v_version, 'leaseLost', true);
    return next;
    return;
  end if;
  if v_due then v_promoted := sluice.promote_due_jobs(v_now, 500); end if;
  if v_promoted = 500 then v_more := true; end if;
  if v_late and sluice.expire_jobs(v_now, 500) >= 500 then v_more := true; end if;

  while v_left > 0 and v_round < k_most_rounds loop
    v_round := v_round + 1;
    v_visited := 0;
    -- Lanes that turn out to be closed cost a look each: few at first, more where they are many.
    v_want := least(greatest(v_left, 4 * 2 ^ v_round)::int, 64);
    v_since := clock_timestamp();
    for c in
      select x.group_id, x.queue, x.upstream, x.fifo, x.shared_limits, x.partition_limits, x.counted,
             array_agg(x.lane_id order by x.next_at, x.lane_id) as lane_ids,
             array_agg(x.partition_key order by x.next_at, x.lane_id) as keys,
             sum(count(*)) over () as n_lanes, bool_or(x.counted or x.fifo) over () as any_counted, min(x.next_at) as first_at
        from (select g.id as group_id, g.queue, g.upstream, g.fifo, g.shared_limits, g.partition_limits, g.counted,
                     l.id as lane_id, l.partition_key, l.next_at
                from sluice.lane_groups g
               cross join lateral (select o.id, o.partition_key, o.next_at from sluice.lanes o
                                    where o.group_id = g.id and o.next_at <= v_now and o.id <> all (v_seen)
                                      and o.next_at >= coalesce(sluice.at_us(p_turn_us[array_position(p_turn_group, g.id)]), '-infinity')
                                    order by o.next_at limit v_want) l
               where g.next_at <= v_now and g.id <> all (v_shut)
               order by l.next_at limit v_want) x
       group by x.group_id, x.queue, x.upstream, x.fifo, x.shared_limits, x.partition_limits, x.counted
       order by min(x.next_at)
    loop
      if v_visited = 0 then
        v_look := v_look + (clock_timestamp() - v_since);
        v_lanes_left := c.n_lanes;
        -- Where somebody counts calls in flight, what nobody calls yet must not take places.
        if c.any_counted then
          v_left := greatest(0, v_left - v_ahead);
          v_ahead := 0;
        end if;
        v_turning := v_round > 1 or c.n_lanes >= v_want or v_left < c.n_lanes;
      end if;
      v_visited := v_visited + 1;
      if c.group_id <> all (v_turn_group) then
        v_turn_group := v_turn_group || c.group_id;
        v_turn_us := v_turn_us || sluice.us_of(c.first_at);
      end if;
      v_seen := v_seen || c.lane_ids;
      continue when c.group_id = any (v_shut);
      if v_left <= 0 then v_more := true; continue; end if;
      g_share := case when v_turning then ceil(v_left::float8 * array_length(c.lane_ids, 1) / v_lanes_left)
                      else sluice.part_of(v_left::bigint * array_length(c.lane_ids, 1), v_lanes_left) end;
      v_lanes_left := v_lanes_left - array_length(c.lane_ids, 1);

      -- ------------------------------------------------------------ gates of the group
      if not pg_try_advisory_xact_lock_shared(7305002, hashtext(c.upstream)) then
        v_busy := true;
        v_shut := v_shut || c.group_id;
        continue;
      end if;
      g_ok := true;
      g_closes := null; g_closed_by := null; g_closed_name := null;
      g_r := '{}'; g_w := '{}';
      g_room := 2147483647; g_cap := 2147483647; g_jobs := g_share;
      g_permit := null; g_spent := 0;
      g_counted := c.counted or c.fifo;
      g_windowed := c.shared_limits <> '{}' or c.partition_limits <> '{}';

      v_since := clock_timestamp();
      for i in 1 .. coalesce(array_length(c.shared_limits, 1), 0) loop
        select * into r from sluice.rate_limits x where x.name = c.shared_limits[i];
        if not pg_try_advisory_xact_lock_shared(7305003, hashtext(r.name)) then g_ok := false; exit; end if;
        w := sluice.lock_window(r, '', v_window_at[array_position(v_window_name, r.name)]);
        if w.limit_name is null then g_ok := false; exit; end if;
        g_r := array_append(g_r, r);
        g_w := array_append(g_w, w);
      end loop;
      v_look := v_look + (clock_timestamp() - v_since);
      -- Before any cooldown is read, or one that commits after the look would be missed.
      for i in 1 .. coalesce(array_length(c.partition_limits, 1), 0) loop
        exit when not g_ok;
        g_ok := pg_try_advisory_xact_lock_shared(7305003, hashtext(c.partition_limits[i]));
      end loop;
      if not g_ok then v_busy := true; v_shut := v_shut || c.group_id; continue; end if;

      -- Read after the locks: no admission may carry an older time than one that another claimer has counted.
      v_us := sluice.clock_us();
      v_now := greatest(v_now, sluice.at_us(v_us));
      -- Likewise: of a batch whose fuse has blown nothing is admitted. Once its jobs are out of the way no claim looks (fuses.ts).
      v_fused := exists (select 1 from sluice.blown_fuses x where x.state = 'holding');

      for d in
        select * from sluice.cooldowns x
         where x.partition_key = '' and ((x.kind = 'upstream' and x.name = c.upstream)
                                      or (x.kind = 'limit' and (x.name = any (c.shared_limits) or x.name = any (c.partition_limits))))
      loop
        if d.until > v_now then
          if g_closes is null or d.until > g_closes then
            g_closes := d.until; g_closed_by := 'cooldown'; g_closed_name := d.name;
          end if;
        elsif d.ramp is not null then
          -- One claimer at a time may count what is in flight under a ramp.
          perform 1 from sluice.cooldowns x where x.kind = d.kind and x.name = d.name and x.partition_key = ''
             for no key update skip locked;
          if not found then g_ok := false; exit; end if;
          g_counted := true;
          select least(g_jobs, sluice.ramp_room(x)) into g_jobs from sluice.cooldowns x
           where x.kind = d.kind and x.name = d.name and x.partition_key = '';
          if g_jobs < 1 and g_closes is null then
            g_closes := v_now + k_recheck; g_closed_by := 'probing'; g_closed_name := d.name;
          end if;
        end if;
      end loop;
      if not g_ok then v_busy := true; v_shut := v_shut || c.group_id; continue; end if;

      for i in 1 .. coalesce(array_length(g_r, 1), 0) loop
        r := g_r[i];
        w := sluice.rate_window_roll(g_w[i], r, v_us);
        g_w[i] := w;
        if r."limit" is not null then
          g_permit := least(coalesce(g_permit, 40), sluice.rate_window_permit_ms(w, r, v_us));
          g_cap := least(g_cap, case when r."limit" = 0 then 2147483647 when r.algorithm = 'token_bucket'
                                     then sluice.rate_window_bucket(r) else r."limit" end);
        end if;
        g_room := least(g_room, sluice.rate_window_room(w, r));
        if w.paused then
          g_closes := 'infinity'; g_closed_by := 'window'; g_closed_name := r.name;
        elsif sluice.rate_window_room(w, r) < 1 then
          g_opens := sluice.rate_window_opens_us(w, r, v_us, 1);
          if g_closes is null or g_opens is null or sluice.at_us(g_opens) > g_closes then
            g_closes := coalesce(sluice.at_us(g_opens), 'infinity'); g_closed_by := 'window'; g_closed_name := r.name;
          end if;
        end if;
        if r.max_in_flight is not null then
          g_jobs := least(g_jobs, r.max_in_flight - sluice.in_flight(r.name, null));
          if g_jobs < 1 and g_closes is null then
            g_closes := v_now + k_recheck; g_closed_by := 'in_flight'; g_closed_name := r.name;
          end if;
        end if;
      end loop;
      if g_closes is not null then
        perform sluice.close_group(c.group_id, g_closes, g_closed_by, g_closed_name);
        v_shut := v_shut || c.group_id;
        continue;
      end if;

      -- ------------------------------------------------------------ its lanes, by their places in the turn
      p_lane := '{}'; p_row := '{}'; p_permit := '{}'; p_charged := '{}';
      p_fail_lane := '{}'; p_fail_rank := '{}'; p_fail_seq := '{}'; p_served := '{}'; p_drained := '{}';
      g_cut := false;
      for i in 1 .. array_length(c.lane_ids, 1) loop
        l_jobs := sluice.part_of(least(g_jobs, g_room, v_left), array_length(c.lane_ids, 1) - i + 1);
        g_cut := l_jobs < 1 or g_cut;
        if l_jobs < 1 then
          v_more := v_more or g_room > 0;
          exit;
        end if;
        l_id := c.lane_ids[i]; l_key := c.keys[i];
        l_r := '{}'; l_w := '{}';
        l_room := g_room; l_cap := g_cap; l_permit := g_permit; l_us := v_us;
        l_closes := null; l_closed_by := null; l_closed_name := null;
        l_taken := 0; l_cost := 0; l_blocked := null; l_fused := false; l_places := null;
        l_from := case when not c.fifo then array_position(p_from_lane, l_id) end;
        l_from_rank := coalesce(p_from_rank[l_from], -2147483648); l_from_seq := coalesce(p_from_seq[l_from], -1);
        l_behind_ranks := null; l_behind_seqs := null;
        if l_from is not null and p_behind_lane <> '{}' then
          select array_agg(y.rank), array_agg(y.seq) into l_behind_ranks, l_behind_seqs
            from unnest(p_behind_lane, p_behind_rank, p_behind_seq) y(lane_id, rank, seq)
           where y.lane_id = l_id and (y.rank, y.seq) <= (l_from_rank, l_from_seq);
        end if;
        g_ok := true;

        if c.fifo then
          -- One unfinished job at a time: its running head, or an older one that is parked, holds the lane.
          perform 1 from sluice.lanes x where x.id = l_id for no key update skip locked;
          if not found then v_busy := true; continue; end if;
          l_jobs := 1;
          if exists (select 1 from sluice.running_jobs x where x.counted and x.group_id = c.group_id and x.lane_id = l_id) then
            l_closes := v_now + k_recheck; l_closed_by := 'fifo';
          else
            select p.due_at, p.state into j from sluice.parked_jobs p
             where p.lane_id = l_id and p.seq < (select min(x.seq) from sluice.ready_jobs x where x.lane_id = l_id)
             order by p.seq limit 1;
            if found then
              l_closes := greatest(coalesce(j.due_at, v_now + interval '30 seconds'), v_now + k_recheck); l_closed_by := 'fifo';
            end if;
          end if;
        end if;

        if l_key <> '' then
          for d in
            select * from sluice.cooldowns x
             where x.partition_key = l_key and ((x.kind = 'upstream' and x.name = c.upstream)
                                             or (x.kind = 'limit' and x.name = any (c.partition_limits)))
          loop
            if d.until > v_now then
              if l_closes is null or d.until > l_closes then
                l_closes := d.until; l_closed_by := 'cooldown'; l_closed_name := d.name;
              end if;
            elsif d.ramp is not null then
              perform 1 from sluice.cooldowns x where x.kind = d.kind and x.name = d.name and x.partition_key = l_key
                 for no key update skip locked;
              if not found then g_ok := false; exit; end if;
              g_counted := true;
              -- Less what was picked from lanes of the same partition (other tenants' have it too) and is not leased yet.
              select least(l_jobs, sluice.ramp_room(x)
                                   - (select count(*) from unnest(p_lane) y join sluice.lanes z on z.id = any (array[y]) and z.partition_key = l_key))
                into l_jobs from sluice.cooldowns x
               where x.kind = d.kind and x.name = d.name and x.partition_key = l_key;
              if l_jobs < 1 and l_closes is null then
                l_closes := v_now + k_recheck; l_closed_by := 'probing'; l_closed_name := d.name;
              end if;
            end if;
          end loop;
        end if;

        if g_ok and l_closes is null and c.partition_limits <> '{}' then
          v_since := clock_timestamp();
          for k in 1 .. coalesce(array_length(c.partition_limits, 1), 0) loop
            select * into r from sluice.rate_limits x where x.name = c.partition_limits[k];
            w := sluice.lock_window(r, l_key, v_window_at[array_position(v_window_name, sluice.window_name(r.name, l_key))]);
            if w.limit_name is null then g_ok := false; exit; end if;
            l_r := array_append(l_r, r);
            l_w := array_append(l_w, w);
          end loop;
          -- Less what windows take whose rows are where they belong: there may be many.
          v_look := v_look + greatest(interval '0', clock_timestamp() - v_since - cardinality(l_w) * interval '200 microseconds');
        end if;
        if not g_ok then v_busy := true; continue; end if;

        if l_r <> '{}' then
          l_us := sluice.clock_us();
          for k in 1 .. array_length(l_r, 1) loop
            r := l_r[k];
            w := sluice.rate_window_roll(l_w[k], r, l_us);
            l_w[k] := w;
            if r."limit" is not null then
              l_permit := least(coalesce(l_permit, 40), sluice.rate_window_permit_ms(w, r, l_us));
              l_cap := least(l_cap, case when r."limit" = 0 then 2147483647 when r.algorithm = 'token_bucket'
                                         then sluice.rate_window_bucket(r) else r."limit" end);
            end if;
            l_room := least(l_room, sluice.rate_window_room(w, r));
            if w.paused then
              l_closes := 'infinity'; l_closed_by := 'window'; l_closed_name := r.name;
            elsif sluice.rate_window_room(w, r) < 1 then
              l_opens := sluice.rate_window_opens_us(w, r, l_us, 1);
              if l_closes is null or l_opens is null or sluice.at_us(l_opens) > l_closes then
                l_closes := coalesce(sluice.at_us(l_opens), 'infinity'); l_closed_by := 'window'; l_closed_name := r.name;
              end if;
            end if;
            if r.max_in_flight is not null then
              l_free := r.max_in_flight - sluice.in_flight(r.name, l_key)
                        - (select count(*) from unnest(p_lane) y join sluice.lanes z on z.id = any (array[y]) and z.partition_key = l_key);
              l_jobs := least(l_jobs, l_free);
              if l_places is null or l_free < l_places then l_places := l_free; l_placed_by := r.name; end if;
              if l_jobs < 1 and l_closes is null then
                l_closes := v_now + k_recheck; l_closed_by := 'in_flight'; l_closed_name := r.name;
              end if;
            end if;
          end loop;
        end if;
        if l_closes is not null then
          perform sluice.close_lane(l_id, l_closes + case when l_closed_by = 'window' then random() * k_spread else '0' end,
                                    l_closed_by, l_closed_name);
          continue;
        end if;

        v_since := clock_timestamp();
        -- One after the other as they are asked for, so that no more are locked than are had; both are in the order of the lane.
        select array_agg(s.ctid), array_agg(s.rank), array_agg(s.seq), array_agg(s.cost), count(*), coalesce(sum(s.cost), 0), max(s.cost)
          into l_rows, l_ranks, l_seqs, l_costs, l_taken, l_cost, l_dearest
          from (select x.ctid, x.rank, x.seq, x.cost from unnest(l_behind_ranks, l_behind_seqs) y(rank, seq)
                 cross join lateral (
                   select z.ctid, z.rank, z.seq, z.cost from sluice.ready_jobs z
                    where z.lane_id = l_id and z.rank = y.rank and z.seq = y.seq and (z.expires_at is null or z.expires_at > v_now)
                   offset 0 for update skip locked) x
                union all
                select * from (
                  select x.ctid, x.rank, x.seq, x.cost from sluice.ready_jobs x
                   where x.lane_id = l_id and (x.rank, x.seq) > (l_from_rank, l_from_seq)
                     and (x.expires_at is null or x.expires_at > v_now)
                   order by x.rank, x.seq limit l_jobs for update skip locked) ahead
                limit l_jobs) s;
        l_found := l_taken;
        if v_fused or g_windowed and (l_cost > l_room or l_dearest > l_cap) then
          -- Not all of them may be had: they are gone through one by one.
          l_taken := 0;
          l_cost := 0;
          for k in 1 .. l_found loop
            if v_fused and sluice.place_behind_fuse(l_id, l_ranks[k], l_seqs[k]) then
              l_fused := true;
            elsif g_windowed and l_costs[k] > l_cap then
              p_fail_lane := p_fail_lane || l_id; p_fail_rank := p_fail_rank || l_ranks[k]; p_fail_seq := p_fail_seq || l_seqs[k];
            elsif g_windowed and l_cost + l_costs[k] > l_room then
              l_blocked := l_costs[k];
              exit;
            else
              l_taken := l_taken + 1;
              l_cost := l_cost + l_costs[k];
              p_row := p_row || l_rows[k];
              l_last := k;
            end if;
          end loop;
        elsif l_taken > 0 then
          p_row := p_row || l_rows;
          l_last := l_found;
        end if;
        v_look := v_look + (clock_timestamp() - v_since);
        if l_taken > 0 then
          p_lane := p_lane || array_fill(l_id, array[l_taken]);
          p_permit := p_permit || array_fill(l_permit, array[l_taken]);
          l_charged := null;
          if g_windowed then
            l_charged := sluice.charged_to(c.shared_limits, v_us, c.partition_limits, l_us);
          end if;
          p_charged := p_charged || array_fill(l_charged, array[l_taken]);
          g_jobs := g_jobs - l_taken;
          v_left := v_left - l_taken;
          v_ahead := least(v_ahead, v_left);
          v_at_lane := v_at_lane || l_id;
          -- Those from behind its place do not move it back.
          if (l_ranks[l_last], l_seqs[l_last]) > (l_from_rank, l_from_seq) then
            v_at_rank := v_at_rank || l_ranks[l_last];
            v_at_seq := v_at_seq || l_seqs[l_last];
          else
            v_at_rank := v_at_rank || l_from_rank;
            v_at_seq := v_at_seq || l_from_seq;
          end if;
          g_room := g_room - case when g_room = 2147483647 then 0 else l_cost end;
          g_spent := g_spent + l_cost;
        end if;

        for k in 1 .. coalesce(array_length(l_r, 1), 0) loop
          r := l_r[k];
          w := l_w[k];
          if l_cost > 0 then
            w := sluice.rate_window_charge(w, r, l_us, l_cost);
            v_name := sluice.window_name(r.name, l_key);
            v_place := coalesce(array_position(v_window_name, v_name), cardinality(v_window_name) + 1);
            v_window_name[v_place] := v_name;
            v_window_at[v_place] := sluice.store_window(w, v_window_at[v_place]);
          end if;
          l_opens := sluice.rate_window_opens_us(w, r, l_us, coalesce(l_blocked, 1));
          if l_opens is distinct from l_us and (l_closes is null or l_opens is null or sluice.at_us(l_opens) > l_closes) then
            l_closes := coalesce(sluice.at_us(l_opens), 'infinity'); l_closed_by := 'window'; l_closed_name := r.name;
          end if;
        end loop;

        if l_taken > 0 and l_taken = l_places and l_closes is null then
          -- It has the last of the places: closed as those who find none, so that it is opened with them and not before. A place that
          -- is given back while this is not committed yet opens it no sooner than it opens by itself.
          l_closes := v_now + k_recheck; l_closed_by := 'in_flight'; l_closed_name := l_placed_by;
        end if;
        if l_fused then
          -- They are being moved out of the way, by whoever keeps the store.
          perform sluice.close_lane(l_id, v_now + k_recheck, 'fuse', null);
        elsif l_taken = 0 and l_blocked is null and not exists (
             select 1 from unnest(p_fail_lane) y where y = l_id) or l_taken > 0 and l_taken < l_jobs and l_blocked is null then
          -- Closed and woken for each job, one lane alone would cost more than a look that finds nothing, some time later.
          if l_from is null and not (l_taken > 0 and c.n_lanes = 1) then
            p_drained := p_drained || l_id;
          else
            v_lingering := v_lingering || l_id;
            if l_taken > 0 and c.n_lanes > 1 then p_served := p_served || l_id; end if;
          end if;
        elsif l_closes is not null then
          perform sluice.close_lane(l_id, l_closes + (random() + (l_taken > 0)::int) * k_spread,
                                    l_closed_by, l_closed_name);
        elsif l_blocked is not null and l_taken = 0 then
          -- Its head wants more than the shared windows have: they save up for it, or cheaper lanes would starve it.
          g_room := 0;
          g_short := '{}';
          for k in 1 .. coalesce(array_length(g_r, 1), 0) loop
            w := g_w[k];
            if g_spent > 0 then w := sluice.rate_window_charge(w, g_r[k], v_us, g_spent); end if;
            g_opens := sluice.rate_window_opens_us(w, g_r[k], v_us, l_blocked);
            if g_opens is distinct from v_us then g_short := array_append(g_short, g_r[k].name); end if;
            if g_closes is null or g_opens is null or sluice.at_us(g_opens) > g_closes then
              g_closes := coalesce(sluice.at_us(g_opens), 'infinity'); g_closed_by := 'window'; g_closed_name := g_r[k].name;
            end if;
          end loop;
          v_shut := v_shut || sluice.close_groups_under(g_short, g_closes, g_closed_name);
          g_cut := true;
          exit;
        else
          p_served := p_served || l_id;
        end if;
      end loop;

      -- ------------------------------------------------------------ charge, move, hand over
      for i in 1 .. coalesce(array_length(g_r, 1), 0) loop
        r := g_r[i];
        w := g_w[i];
        if g_spent > 0 then
          w := sluice.rate_window_charge(w, r, v_us, g_spent);
          v_place := coalesce(array_position(v_window_name, r.name), cardinality(v_window_name) + 1);
          v_window_name[v_place] := r.name;
          v_window_at[v_place] := sluice.store_window(w, v_window_at[v_place]);
        end if;
        g_opens := sluice.rate_window_opens_us(w, r, v_us, 1);
        if g_opens is distinct from v_us and (g_closes is null or g_opens is null or sluice.at_us(g_opens) > g_closes) then
          g_closes := coalesce(sluice.at_us(g_opens), 'infinity'); g_closed_by := 'window'; g_closed_name := r.name;
        end if;
      end loop;

      if p_lane <> '{}' then
        g_at := sluice.at_us(v_us);
        return query
        with p as materialized (
          select * from unnest(p_row, p_permit, p_charged) with ordinality as p(at, permit, charged, ord)),
        -- They are locked, so they are where they were found.
        gone as (
          delete from sluice.ready_jobs x using p where x.ctid = p.at
          returning x.lane_id, x.rank, x.seq, x.job_id, x.cost, x.expires_at, x.eligible_at, x.epoch, x.calls, x.attempts_used,
                    x.throttles, x.first_sent_at, x.outcome_unknown, x.reconcile_failures, p.permit, p.charged, p.ord),
        leased as (
          insert into sluice.running_jobs (job_id, lane_id, group_id, rank, seq, cost, expires_at, eligible_at, worker_id,
                                           admitted_at, charged, counted, claim_ahead, epoch, calls, attempts_used, throttles, first_sent_at,
                                           outcome_unknown, reconcile_failures)
          select x.job_id, x.lane_id, c.group_id, x.rank, x.seq, x.cost, x.expires_at, x.eligible_at, p_worker,
                 g_at, x.charged, g_counted, case when v_given + x.ord > p_slots then p_claim end, x.epoch + 1, x.calls, x.attempts_used, x.throttles, x.first_sent_at, x.outcome_unknown,
                 x.reconcile_failures
            from gone x)
        select x.job_id, x.epoch + 1, nullif(x.calls, 0), nullif(x.attempts_used, 0), nullif(x.throttles, 0),
               case when x.first_sent_at is not null
                    then extract(epoch from g_at - sluice.key_age_start(x.first_sent_at, b.key_age_from))::float8 * 1000 end,
               nullif(x.outcome_unknown, false), nullif(x.reconcile_failures, 0),
               x.permit, greatest(0, round(date_part('epoch', g_at - x.eligible_at) * 1000)), b.batch_id, b.tenant, b.queue, b.upstream,
               nullif(b.partition_key, ''), b.idempotency_key, b.key_source, b.method, b.path, b.headers, b.body, nullif(b.body_is_text, false),
               b.payload_version, b.max_attempts, nullif(b.cost, 1), nullif(b.fresh_keys, 0), null::json
          from gone x join sluice.jobs b on b.id = any (array[x.job_id]) order by x.ord;
        v_given := v_given + array_length(p_lane, 1);
      end if;

      if p_fail_lane <> '{}' then
        with p as materialized (select * from unnest(p_fail_lane, p_fail_rank, p_fail_seq) as p(lane_id, rank, seq)),
        gone as (
          delete from sluice.ready_jobs x using p where x.lane_id = any (array[p.lane_id]) and x.rank = p.rank and x.seq = p.seq returning x.*)
        insert into sluice.done_jobs (job_id, state, reason, ended_at, epoch, calls, attempts_used, throttles, first_sent_at, outcome_unknown)
        select x.job_id, 'failed', 'cost_exceeds_limit', v_now, x.epoch + 1, x.calls, x.attempts_used, x.throttles, x.first_sent_at,
               x.outcome_unknown from gone x;
      end if;

      if g_closes is not null then
        perform sluice.close_group(c.group_id, g_closes, g_closed_by, g_closed_name);
      elsif p_served <> '{}' then
        v_more := true;
      end if;
      if g_closes is not null or g_jobs < 1 then v_shut := v_shut || c.group_id; end if;
      -- A lane's next_at is also its place in the turn: who was served goes behind the others, in the same order. Where each had its
      -- part, or there is but one, the rows stay as they are: each change leaves an entry in every index, which all who look for
      -- the lane step over until vacuum comes. Who has a window, or places, together with lanes that are not of this group, or
      -- that are of the same partition, may have left nothing for them.
      if p_served <> '{}' and c.n_lanes > 1
         and (v_turning or g_cut or g_counted or g_windowed and c.n_lanes > array_length(c.lane_ids, 1)
              or c.partition_limits <> '{}' and exists (select 1 from unnest(c.keys) x group by x having count(*) > 1)) then
        l_us := sluice.clock_us() - cardinality(p_served);
        update sluice.lanes x set next_at = sluice.at_us(l_us + array_position(p_served, x.id)), closed_by = null, closed_name = null
         where x.id = any (array(select o.id from sluice.lanes o where o.id = any (p_served) order by o.id for no key update skip locked));
      end if;
      for i in 1 .. coalesce(array_length(p_drained, 1), 0) loop
        l_id := p_drained[i];
        -- FOR UPDATE conflicts with the KEY SHARE of whoever is adding jobs: then the lane stays open.
        perform 1 from sluice.lanes x where x.id = l_id for update skip locked;
        if not found then
          v_busy := true;
        elsif exists (select 1 from sluice.ready_jobs x where x.lane_id = l_id) then
          v_busy := true;
        else
          update sluice.lanes x set next_at = 'infinity', closed_by = 'empty', closed_name = null, emptied_at = v_now where x.id = l_id;
        end if;
      end loop;
    end loop;
    -- None, or all there were.
    exit when v_visited = 0 or c.n_lanes < v_want;
  end loop;
  if v_left <= 0 or v_round >= k_most_rounds then v_more := true; end if;
  -- Others may have slots for what has fallen due, and nobody has told them of it.
  if v_more and v_promoted > v_given then perform pg_notify('sluice_work', ''); end if;
  if v_given > p_slots and p_claim is not null then insert into sluice.claims_ahead (id, worker_id) values (p_claim, p_worker); end if;

  v_us := sluice.clock_us();
  select min(t.at) into v_now from (
    select greatest(g.next_at, l.next_at) as at from sluice.lane_groups g
     cross join lateral (select o.next_at from sluice.lanes o where o.group_id = g.id and o.id <> all (v_lingering)
                            and o.next_at >= coalesce(sluice.at_us(p_turn_us[array_position(p_turn_group, g.id)]), '-infinity')
                          order by o.next_at limit 1) l
     where g.next_at < 'infinity' and l.next_at < 'infinity'
    union all
    select (select p.due_at from sluice.parked_jobs p where p.due_at is not null order by p.due_at limit 1)) t;
  job_id := null;
  summary := json_build_object(
    'definitionsVersion', v_version, 'busy', v_busy, 'more', v_more,
    'nextInMs', case when v_now is not null then greatest(0, sluice.us_of(v_now) - v_us) / 1000.0 end,
    'lingers', v_lingering <> '{}', 'lookMs', extract(epoch from v_look) * 1000,
    'atLane', v_at_lane, 'atRank', v_at_rank, 'atSeq', v_at_seq, 'windowName', v_window_name, 'windowAt', v_window_at::text[],
    'turnGroup', v_turn_group, 'turnUs', v_turn_us);
  return next;
end $$;`,
} as const;

/** What a claim gives: the jobs, and when another claim can give more. */
export interface Claim {
  readonly jobs: ClaimedJob[];
  /** The definitions that the claim was decided under. */
  readonly definitionsVersion: number;
  /** Until the next lane opens or job falls due; null: nothing is known to be waiting for a time. */
  readonly nextInMs: number | null;
  /** Another claimer held what this one wanted: come back after a moment, not after a poll. */
  readonly busy: boolean;
  /** There is more to be had at once. */
  readonly more: boolean;
  /** The worker's lease has run out: nothing was claimed, and what it runs may be another's by now. */
  readonly leaseLost: boolean;
  /** How far it came in each lane that it took from. */
  readonly places: readonly LanePlace[];
  /** As it was asked for. */
  readonly slots: number;
  /** Names this claim where it brought jobs ahead: those after the first `slots`. They may be called once a settle has let them go. */
  readonly aheadId: string | null;
  /** How long it looked for lanes, windows and the heads of lanes, in milliseconds: dead rows that it had to step over make it long. */
  readonly lookMs: number;
  /** Where the rows of windows are that it charged. */
  readonly windows: readonly WindowPlace[];
  /** Of the groups that it looked into. */
  readonly turns: readonly TurnPlace[];
  /** A lane had nothing behind the place that was given for it, and was left open: it is to be looked at from its start soon. */
  readonly lingers: boolean;
}

/** A place in the order of a lane's jobs: that of the last one taken. */
export interface LanePlace {
  readonly laneId: number;
  readonly rank: number;
  readonly seq: number;
}

/** Where the turn of a group begins: no lane of it that is open has an earlier place, in microseconds of the epoch. */
export interface TurnPlace {
  readonly groupId: number;
  readonly us: number;
}

/** Where the row of a window is: PostgreSQL's `ctid`, which moves with each change of the row. */
export interface WindowPlace {
  /** The limit, and behind a line feed the partition, if it has windows by partition. */
  readonly window: string;
  readonly at: string;
}

export interface ClaimOptions {
  /** How many more jobs than `slots` may be had, for calls that start within milliseconds; 0 by default. */
  readonly ahead?: number;
  /** Where to go on in lanes that were claimed from a moment ago; elsewhere it looks from the start. */
  readonly from?: readonly LanePlace[];
  /** Ready before the places of their lanes, in the order of the lane: to be had first. */
  readonly behind?: readonly LanePlace[];
  /** Where to begin in the turns of groups; elsewhere it looks at all that are open. */
  readonly turns?: readonly TurnPlace[];
  /** Where rows of windows were a moment ago; others are looked up by name. */
  readonly windows?: readonly WindowPlace[];
  /** How long an answer is waited for, in milliseconds (default: the connection's time limit); the claim may yet be made. */
  readonly withinMs?: number;
}

/** Of the last row. Everything but the version is missing where the lease is lost. */
interface Summary {
  readonly definitionsVersion: number;
  readonly nextInMs?: number | null;
  readonly busy?: boolean;
  readonly more?: boolean;
  readonly leaseLost?: true;
  readonly lingers?: boolean;
  readonly lookMs?: number;
  readonly atLane?: readonly number[];
  readonly atRank?: readonly number[];
  readonly atSeq?: readonly number[];
  readonly windowName?: readonly string[];
  readonly windowAt?: readonly string[];
  readonly turnGroup?: readonly number[];
  readonly turnUs?: readonly number[];
}

/** The columns in their order: a row with names costs the driver three times as much. */
type ClaimRow = [
  jobId: string | null,
  epoch: number,
  calls: number | null,
  attemptsUsed: number | null,
  throttles: number | null,
  firstSentAgeMs: number | null,
  outcomeUnknown: true | null,
  reconcileFailures: number | null,
  permitMs: number | null,
  slotWaitMs: number,
  batchId: string,
  tenant: string,
  queue: string,
  upstream: string,
  partitionKey: string | null,
  idempotencyKey: string,
  keySource: ClaimedJob['keySource'],
  method: ClaimedJob['method'],
  path: string,
  headers: string | null,
  body: string | null,
  bodyIsText: true | null,
  payloadVersion: string | null,
  maxAttempts: number | null,
  cost: number | null,
  freshKeys: number | null,
  summary: Summary | null,
];

/** Claims jobs for `slots` calls that can start at once, for a worker that holds a live lease (`leases.ts`). */
export async function claimJobs(
  database: Database,
  workerId: string,
  slots: number,
  { ahead = 0, from = [], behind = [], turns = [], windows = [], withinMs }: ClaimOptions = {},
): Promise<Claim> {
  const claimId = ahead > 0 ? newId() : null;
  const rows = await withClient(database, async (client) => {
    const text = `select * from sluice.claim_jobs($1::uuid, $2::int, $3::int, $4::bigint[], $5::int[], $6::bigint[], $7::text[],
      $8::tid[], $9::uuid, $10::bigint[], $11::int[], $12::bigint[], $13::int[], $14::bigint[])`;
    const values = [
      workerId,
      slots,
      ahead,
      from.map(({ laneId }) => laneId),
      from.map(({ rank }) => rank),
      from.map(({ seq }) => seq),
      windows.map(({ window }) => window),
      windows.map(({ at }) => at),
      claimId,
      behind.map(({ laneId }) => laneId),
      behind.map(({ rank }) => rank),
      behind.map(({ seq }) => seq),
      turns.map(({ groupId }) => groupId),
      turns.map(({ us }) => us),
    ];
    const claimed = await queryRows<ClaimRow>(client, text, values, 'claim_jobs', { withinMs, rowMode: 'array' });
    // Claims that find nothing come at any time, and change nothing.
    if (claimed.length > 1) await database.faultPoints.pass('claim.after');
    return claimed;
  });
  const summary = rows.pop()?.[26];
  if (!summary) throw new Error('claim_jobs gave no summary row');
  const { atLane = [], atRank = [], atSeq = [], windowName = [], windowAt = [], turnGroup = [], turnUs = [] } = summary;
  return {
    jobs: rows.map(toClaimedJob),
    slots,
    aheadId: rows.length > slots ? claimId : null,
    definitionsVersion: summary.definitionsVersion,
    nextInMs: summary.nextInMs ?? null,
    busy: summary.busy ?? false,
    more: summary.more ?? false,
    leaseLost: summary.leaseLost ?? false,
    places: atLane.map((laneId, i) => ({ laneId, rank: atRank[i]!, seq: atSeq[i]! })),
    windows: windowName.map((window, i) => ({ window, at: windowAt[i]! })),
    turns: turnGroup.map((groupId, i) => ({ groupId, us: turnUs[i]! })),
    lingers: summary.lingers ?? false,
    lookMs: summary.lookMs ?? 0,
  };
}

export const noHeaders: ClaimedJob['headers'] = Object.freeze({});

/** The text to send. @param body JSON text, as it is stored */
export function bodyToSend(body: string | null, bodyIsText: boolean): string | null {
  return body !== null && bodyIsText ? (JSON.parse(body) as string) : body;
}

function toClaimedJob(row: ClaimRow): ClaimedJob {
  const [headers, body, bodyIsText] = [row[19], row[20], row[21] ?? false];
  return {
    jobId: row[0]!,
    batchId: row[10],
    tenant: row[11],
    queue: row[12],
    upstream: row[13],
    partitionKey: row[14],
    idempotencyKey: row[15],
    keySource: row[16],
    method: row[17],
    path: row[18],
    headers: headers === null ? noHeaders : (JSON.parse(headers) as Record<string, string>),
    body: bodyToSend(body, bodyIsText),
    bodyIsText,
    payloadVersion: row[22],
    maxAttempts: row[23],
    cost: row[24] ?? 1,
    freshKeys: row[25] ?? 0,
    permitMs: row[8],
    slotWaitMs: row[9],
    epoch: row[1],
    calls: row[2] ?? 0,
    attemptsUsed: row[3] ?? 0,
    throttles: row[4] ?? 0,
    firstSentAgeMs: row[5],
    outcomeUnknown: row[6] ?? false,
    reconcileFailures: row[7] ?? 0,
  };
}
