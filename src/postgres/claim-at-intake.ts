/**
 * The claim of new jobs by the intake that stores them: where a worker of the process has slots to spare and all that covers the
 * jobs is open, they are leased in the commit that makes them durable, and their calls leave as soon as it is told. They are
 * never seen waiting, so no other claim is needed, nobody is notified and no row of theirs is moved.
 *
 * Invariants: those of the claim (claim-jobs.ts), whose gates stand here for one lane and all or none of its jobs. Whatever is
 * not plain is left to the claim: an order, calls that are counted, a cooldown or its ramp, a window that is closed, paused or
 * has not room for all, a row that somebody holds. Nothing is charged then. What waits already is not overtaken: only a worker
 * asks whose last claim found nothing more to be had.
 * Lock order: as the claim's, behind the lanes of the intake; waits for nobody.
 * It is planned under its caller's settings: those of the intake's transaction (lane-groups.ts), or of `insert_single`.
 */

export const claimAtIntakeFunction = {
  name: 'claim_at_intake',
  sql: String.raw`
-- For jobs that are ready since p_eligible, cost p_cost together, and of which the first expires at p_expires (null: none does).
-- p_began: when the intake began; where it has waited for another's commit it is late. No row: they are not admitted.
create or replace function sluice.claim_at_intake(p_worker uuid, p_lane bigint, p_cost bigint, p_expires timestamptz,
                                                  p_eligible timestamptz, p_began timestamptz)
returns table (group_id int, admitted_at timestamptz, charged text, permit_ms float8, slot_wait_ms float8) language plpgsql as $$
#variable_conflict use_column
declare
  -- Half of a permit; without one, what the times of an attempt may be wrong by, since they count from when the intake began.
  k_longest_wait_us constant bigint := 20000;
  k_longest_wait_free_us constant bigint := 500000;
  c record;
  r sluice.rate_limits;
  w sluice.rate_windows;
  v_limits text[];
  v_name text;
  v_key text;
  v_us bigint;
  v_now timestamptz := sluice.at_us(sluice.clock_us());
  v_began timestamptz;
  l_r sluice.rate_limits[] := '{}';
  l_w sluice.rate_windows[] := '{}';
  l_at tid[] := '{}';
  l_took interval[] := '{}';
begin
  select g.id, g.upstream, g.shared_limits, g.partition_limits, l.partition_key into c
    from sluice.lanes l join sluice.lane_groups g on g.id = l.group_id
   where l.id = p_lane and not g.fifo and not g.counted and g.next_at <= v_now and (l.next_at <= v_now or l.closed_by = 'empty')
     and exists (select 1 from sluice.workers x where x.id = p_worker and x.lease_expires_at > v_now)
     -- They are older, and a claim puts them where they belong.
     and not exists (select 1 from sluice.parked_jobs x where x.due_at <= v_now);
  if not found or not pg_try_advisory_xact_lock_shared(7305002, hashtext(c.upstream)) then return; end if;

  v_limits := c.shared_limits || c.partition_limits;
  if sluice.clock_us() - sluice.us_of(p_began) > (case when v_limits = '{}' then k_longest_wait_free_us else k_longest_wait_us end) then
    return;
  end if;
  for i in 1 .. cardinality(v_limits) loop
    v_name := v_limits[i];
    if not pg_try_advisory_xact_lock_shared(7305003, hashtext(v_name)) then return; end if;
    v_key := case when i > cardinality(c.shared_limits) then c.partition_key else '' end;
    select * into r from sluice.rate_limits x where x.name = v_name;
    l_at[i] := sluice.window_seen_at(v_name, v_key);
    v_began := clock_timestamp();
    w := sluice.lock_window(r, v_key, l_at[i]);
    if w.limit_name is null then return; end if;
    l_took[i] := clock_timestamp() - v_began;
    l_r[i] := r;
    l_w[i] := w;
  end loop;

  -- Read after the locks, as are the cooldowns: see the claim.
  v_us := sluice.clock_us();
  v_now := greatest(v_now, sluice.at_us(v_us));
  if p_expires <= v_now or exists (
    select 1 from sluice.cooldowns x
     where x.partition_key in ('', c.partition_key) and (x.until > v_now or x.ramp is not null)
       and ((x.kind = 'upstream' and x.name = c.upstream) or (x.kind = 'limit' and x.name = any (v_limits)))) then return; end if;

  for i in 1 .. cardinality(v_limits) loop
    w := sluice.rate_window_roll(l_w[i], l_r[i], v_us);
    if w.paused or sluice.rate_window_room(w, l_r[i]) < p_cost then return; end if;
    l_w[i] := w;
    if l_r[i]."limit" is not null then
      permit_ms := least(coalesce(permit_ms, 40), sluice.rate_window_permit_ms(w, l_r[i], v_us));
    end if;
  end loop;
  for i in 1 .. cardinality(v_limits) loop
    w := l_w[i];
    perform sluice.window_seen(w.limit_name, w.partition_key,
                               sluice.store_window(sluice.rate_window_charge(w, l_r[i], v_us, p_cost), l_at[i]),
                               l_at[i] is null, l_took[i]);
  end loop;
  group_id := c.id;
  admitted_at := sluice.at_us(v_us);
  slot_wait_ms := greatest(0, round(date_part('epoch', admitted_at - p_eligible) * 1000));
  charged := sluice.charged_to(c.shared_limits, v_us, c.partition_limits, v_us);
  return next;
end $$;`,
} as const;
