/**
 * The rows of rate windows: their arithmetic in SQL, as the claim needs it in its own transaction.
 *
 * The functions are `domain/rate-window.ts` word for word (that file has the reasons); a property test runs both on the
 * same histories. A window's row is locked by whoever admits through it, so the count and the claim commit together.
 */

/** The database's clock in microseconds. `sluice.now_us` lets a test session give the time; nothing else sets it. */
export const clockFunctions = {
  name: 'clock',
  sql: String.raw`
create or replace function sluice.clock_us() returns bigint language sql volatile parallel safe as $$
  select coalesce(nullif(current_setting('sluice.now_us', true), '')::bigint,
                  (extract(epoch from clock_timestamp()) * 1000000)::bigint)
$$;
create or replace function sluice.at_us(us bigint) returns timestamptz language sql immutable parallel safe as $$
  select to_timestamp((us / 1000000.0)::float8)
$$;
create or replace function sluice.us_of(t timestamptz) returns bigint language sql immutable parallel safe as $$
  select (extract(epoch from t) * 1000000)::bigint
$$;`,
} as const;

export const rateWindowFunctions = {
  name: 'rate_window',
  sql: String.raw`
create or replace function sluice.rate_window_bucket(r sluice.rate_limits) returns bigint language sql immutable as $$
  select case when r.burst > 0 then r.burst::bigint
              else (coalesce(r."limit", 0)::bigint + r.per_seconds - 1) / r.per_seconds end
$$;

create or replace function sluice.rate_window_empty(r sluice.rate_limits, p_partition text, now_us bigint)
returns sluice.rate_windows language plpgsql immutable as $$
declare
  w sluice.rate_windows;
begin
  w.limit_name := r.name;
  w.partition_key := p_partition;
  w.algorithm := r.algorithm;
  w.width_us := r.per_seconds::bigint * 10000;
  w.horizon_us := r.per_seconds::bigint * 1000000 + (40 + r.slack_ms)::bigint * 1000;
  w.used := 0;
  w.level := 0;
  w.head := 0;
  w.tail := 0;
  w.paused := false;
  if r.algorithm = 'sliding_window' then
    w.ring := array_fill(0, array[(w.horizon_us / w.width_us + 3)::int]);
    w.head := now_us / w.width_us;
    w.tail := (now_us - w.horizon_us) / w.width_us;
  elsif r.algorithm = 'token_bucket' then
    w.anchor_at := sluice.at_us(now_us);
    w.level := sluice.rate_window_bucket(r);
  end if;
  return w;
end $$;

-- A state written under another rule: an interval that spans a redefinition is bounded by the old limit plus the new one.
create or replace function sluice.rate_window_carry_over(w sluice.rate_windows, r sluice.rate_limits, now_us bigint)
returns sluice.rate_windows language plpgsql immutable as $$
declare
  f sluice.rate_windows := sluice.rate_window_empty(r, w.partition_key, now_us);
  m int := coalesce(array_length(w.ring, 1), 0);
  fm int := coalesce(array_length(f.ring, 1), 0);
  c int;
  moved bigint;
  i int;
  carried bigint;
begin
  f.paused := w.paused;
  if r.algorithm = 'sliding_window' and w.algorithm = 'sliding_window' then
    for k in 0 .. (w.head - w.tail)::int loop
      c := w.ring[((w.tail + k) % m)::int + 1];
      moved := least(((w.tail + k + 1) * w.width_us - 1) / f.width_us, f.head);
      continue when c = 0 or moved < f.tail;
      i := (moved % fm)::int + 1;
      f.ring[i] := f.ring[i] + c;
      f.used := f.used + c;
    end loop;
    return f;
  end if;
  carried := case when w.algorithm = 'token_bucket' then 0 else w.used end;
  if r.algorithm = 'sliding_window' then
    f.ring[(f.head % fm)::int + 1] := carried;
    f.used := carried;
  elsif r.algorithm = 'fixed_window' then
    f.used := carried;
    if carried > 0 then f.anchor_at := sluice.at_us(now_us); end if;
  else
    f.level := greatest(0, f.level - carried);
  end if;
  return f;
end $$;

create or replace function sluice.rate_window_roll(w sluice.rate_windows, r sluice.rate_limits, now_us bigint)
returns sluice.rate_windows language plpgsql immutable as $$
declare
  m int;
  new_tail bigint;
  i int;
  anchor bigint;
begin
  if w.algorithm <> r.algorithm
     or (r.algorithm = 'sliding_window'
         and (w.width_us <> r.per_seconds::bigint * 10000
              or w.horizon_us <> r.per_seconds::bigint * 1000000 + (40 + r.slack_ms)::bigint * 1000)) then
    w := sluice.rate_window_carry_over(w, r, now_us);
  end if;
  if r.algorithm = 'sliding_window' then
    new_tail := greatest(w.tail, (now_us - w.horizon_us) / w.width_us);
    if w.used > 0 then
      m := array_length(w.ring, 1);
      for k in 0 .. (least(new_tail - 1, w.head) - w.tail)::int loop
        i := ((w.tail + k) % m)::int + 1;
        if w.ring[i] <> 0 then
          w.used := w.used - w.ring[i];
          w.ring[i] := 0;
        end if;
      end loop;
    end if;
    w.tail := new_tail;
    w.head := greatest(w.head, now_us / w.width_us);
  elsif r.algorithm = 'fixed_window' then
    if w.anchor_at is not null and now_us >= sluice.us_of(w.anchor_at) + r.per_seconds::bigint * 1000000 then
      w.anchor_at := null;
      w.used := 0;
    end if;
  else
    anchor := coalesce(sluice.us_of(w.anchor_at), now_us);
    w.level := least(sluice.rate_window_bucket(r)::float8,
                     w.level + greatest(0, now_us - anchor)::float8 * coalesce(r."limit", 0)::float8
                               / (r.per_seconds::float8 * 1000000::float8));
    w.anchor_at := sluice.at_us(greatest(anchor, now_us));
  end if;
  return w;
end $$;

create or replace function sluice.rate_window_room(w sluice.rate_windows, r sluice.rate_limits)
returns bigint language sql immutable as $$
  select case when r."limit" is null then 2147483647
              when r."limit" = 0 then 0
              when r.algorithm = 'token_bucket' then greatest(0, floor(w.level)::bigint)
              else greatest(0, r."limit" - w.used) end
$$;

create or replace function sluice.rate_window_charge(w sluice.rate_windows, r sluice.rate_limits, now_us bigint, cost bigint)
returns sluice.rate_windows language plpgsql immutable as $$
declare
  i int;
begin
  if r."limit" is null then return w; end if;
  if r.algorithm = 'sliding_window' then
    i := (w.head % array_length(w.ring, 1))::int + 1;
    w.ring[i] := w.ring[i] + cost;
    w.used := w.used + cost;
  elsif r.algorithm = 'fixed_window' then
    w.anchor_at := coalesce(w.anchor_at, sluice.at_us(now_us));
    w.used := w.used + cost;
  else
    w.level := w.level - cost;
  end if;
  return w;
end $$;

-- null: never.
create or replace function sluice.rate_window_opens_us(w sluice.rate_windows, r sluice.rate_limits, now_us bigint, need bigint)
returns bigint language plpgsql immutable as $$
declare
  m int;
  left_used bigint;
begin
  if r."limit" is null then return now_us; end if;
  if r."limit" = 0 then return null; end if;
  if r.algorithm = 'sliding_window' then
    if need > r."limit" then return null; end if;
    left_used := w.used;
    if left_used + need <= r."limit" then return now_us; end if;
    m := array_length(w.ring, 1);
    for k in 0 .. (w.head - w.tail)::int loop
      left_used := left_used - w.ring[((w.tail + k) % m)::int + 1];
      if left_used + need <= r."limit" then return (w.tail + k + 1) * w.width_us + w.horizon_us; end if;
    end loop;
    return null;
  elsif r.algorithm = 'fixed_window' then
    if need > r."limit" then return null; end if;
    if w.anchor_at is null or w.used + need <= r."limit" then return now_us; end if;
    return sluice.us_of(w.anchor_at) + r.per_seconds::bigint * 1000000;
  else
    if need > sluice.rate_window_bucket(r) then return null; end if;
    if w.level >= need then return now_us; end if;
    return now_us + ceil((need - w.level) * r.per_seconds::float8 * 1000000 / r."limit"::float8)::bigint + 1;
  end if;
end $$;

-- How long an admission at now_us may be used, in milliseconds.
create or replace function sluice.rate_window_permit_ms(w sluice.rate_windows, r sluice.rate_limits, now_us bigint)
returns float8 language sql immutable as $$
  select case when r.algorithm <> 'fixed_window' or w.anchor_at is null then 40
              else least(40, (sluice.us_of(w.anchor_at) + r.per_seconds::bigint * 1000000 - now_us) / 1000.0) end::float8
$$;`,
} as const;
