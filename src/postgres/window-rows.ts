/**
 * The rows of windows, cooldowns and leases as a claim takes hold of them: locked, written back, counted. What a window's state
 * means is rate-windows.ts.
 * Invariants: nobody is waited for, a row that another claimer holds is told as null; there is one row for a limit and a
 * partition, found by its name wherever it is. No index says so: whoever makes one holds advisory 7305006 of its name (or the
 * definitions' lock alone, steer-rate-windows.ts).
 */

export const windowRowsFunctions = {
  name: 'window_rows',
  sql: String.raw`
-- The one name of a window: what a claim is told of it by and tells of it, and what a session remembers it by. Names of limits have
-- no line feed.
create or replace function sluice.window_name(p_limit text, p_partition text) returns text language sql immutable as $$
  select case when p_partition = '' then p_limit else p_limit || chr(10) || p_partition end
$$;
-- The window's row, locked; made where there is none. null: another claimer holds it. p_at: where it was a moment ago, so that
-- not every version it had since vacuum came is stepped over; the row is known by its name, wherever it is.
create or replace function sluice.lock_window(r sluice.rate_limits, p_partition text, p_at tid default null)
returns sluice.rate_windows language plpgsql as $$
declare
  w sluice.rate_windows;
  v_at tid;
begin
  if p_at is not null then
    -- Follows the row from version to version.
    v_at := currtid2('sluice.rate_windows', p_at);
    select * into w from sluice.rate_windows x where x.ctid = v_at and x.limit_name = r.name and x.partition_key = p_partition
       for no key update skip locked;
    if found then return w; end if;
    perform 1 from sluice.rate_windows x where x.ctid = v_at and x.limit_name = r.name and x.partition_key = p_partition;
    if found then return null; end if;
  end if;
  select * into w from sluice.rate_windows x where x.limit_name = r.name and x.partition_key = p_partition
     for no key update skip locked;
  if found then return w; end if;
  if exists (select 1 from sluice.rate_windows x where x.limit_name = r.name and x.partition_key = p_partition) then return null; end if;
  -- No index keeps a second row out. Whoever makes one holds this until it is committed; the look comes after, and sees it.
  if not pg_try_advisory_xact_lock(7305006, hashtext(r.name || chr(10) || p_partition)) then return null; end if;
  if exists (select 1 from sluice.rate_windows x where x.limit_name = r.name and x.partition_key = p_partition) then return null; end if;
  insert into sluice.rate_windows select (sluice.rate_window_empty(r, p_partition, sluice.clock_us())).*;
  select * into w from sluice.rate_windows x where x.limit_name = r.name and x.partition_key = p_partition
     for no key update skip locked;
  if found then return w; end if;
  return null;
end $$;

-- Writes a row that is locked, and gives where it is now. p_at: as above.
create or replace function sluice.store_window(w sluice.rate_windows, p_at tid default null) returns tid language plpgsql as $$
declare
  v_at tid;
begin
  if p_at is not null then
    v_at := currtid2('sluice.rate_windows', p_at);
    update sluice.rate_windows x
       set algorithm = w.algorithm, width_us = w.width_us, horizon_us = w.horizon_us, ring = w.ring, head = w.head,
           tail = w.tail, used = w.used, anchor_at = w.anchor_at, level = w.level
     where x.ctid = v_at and x.limit_name = w.limit_name and x.partition_key = w.partition_key
    returning x.ctid into v_at;
    if found then return v_at; end if;
  end if;
  update sluice.rate_windows x
     set algorithm = w.algorithm, width_us = w.width_us, horizon_us = w.horizon_us, ring = w.ring, head = w.head,
         tail = w.tail, used = w.used, anchor_at = w.anchor_at, level = w.level
   where x.limit_name = w.limit_name and x.partition_key = w.partition_key
  returning x.ctid into v_at;
  return v_at;
end $$;

-- Where this session left a window's row, for a while after a look by its name that was dear: it has stepped over every version
-- the row had since vacuum came. A look by name clears these away where that can be done, so there is one now and then.
create or replace function sluice.window_seen_at(p_limit text, p_partition text) returns tid language sql volatile as $$
  select case when split_part(x.seen, ' ', 2)::float8 > extract(epoch from clock_timestamp()) then split_part(x.seen, ' ', 1)::tid end
    from (select nullif(current_setting('sluice.window_' || md5(sluice.window_name(p_limit, p_partition)), true), '') as seen) x
$$;
-- p_by_name: it was looked up so, and that took p_took (perhaps with a wait for the row): such looks may take a five-hundredth of
-- the session's time, and come each second to each ten. Else it was where it was known to be, and is known for no longer than it was.
create or replace function sluice.window_seen(p_limit text, p_partition text, p_at tid, p_by_name boolean, p_took interval)
returns void language plpgsql as $$
declare
  v_name text := 'sluice.window_' || md5(sluice.window_name(p_limit, p_partition));
begin
  if not p_by_name then
    perform set_config(v_name, p_at || ' ' || split_part(current_setting(v_name), ' ', 2), false);
  elsif p_took > interval '1 millisecond' then
    perform set_config(v_name, p_at || ' ' || extract(epoch from clock_timestamp() + least(greatest(500 * p_took, interval '1 second'),
                                                                                           interval '10 seconds')), false);
  end if;
end $$;

-- What a lease says of the windows that its job was charged to (running_jobs.charged). null: no window covers it.
create or replace function sluice.charged_to(p_shared text[], p_shared_us bigint, p_partition text[], p_partition_us bigint) returns text
language sql immutable as $$
  select nullif(concat_ws(',', (select string_agg('s:' || p_shared_us || ':' || x, ',') from unnest(p_shared) x),
                               (select string_agg('p:' || p_partition_us || ':' || x, ',') from unnest(p_partition) x)), '')
$$;

-- Leases that a fleet-wide limit counts.
create or replace function sluice.in_flight(p_limit text, p_partition text) returns bigint language sql stable as $$
  select count(*) from sluice.lane_groups g join sluice.running_jobs j on j.counted and j.group_id = g.id
    left join sluice.lanes l on p_partition is not null and l.id = any (array[j.lane_id])
   where (p_partition is null and p_limit = any (g.shared_limits))
      or (p_partition is not null and p_limit = any (g.partition_limits) and l.partition_key = p_partition)
$$;

-- How many may start under a cooldown row that is over but still ramping: its ramp less the calls admitted since it opened.
create or replace function sluice.ramp_room(d sluice.cooldowns) returns bigint language sql stable as $$
  select d.ramp - count(*) from sluice.lane_groups g
    join sluice.running_jobs j on j.counted and j.group_id = g.id and j.admitted_at >= d.until
    left join sluice.lanes l on d.partition_key <> '' and l.id = any (array[j.lane_id])
   where case when d.kind = 'upstream' then g.upstream = d.name
              else d.name = any (g.shared_limits) or d.name = any (g.partition_limits) end
     and (d.partition_key = '' or l.partition_key = d.partition_key)
$$;`,
} as const;
