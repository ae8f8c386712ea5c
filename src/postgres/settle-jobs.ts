/**
 * The settle: outcomes of ended calls, many in one statement, each fenced by (job, worker, epoch).
 *
 * Invariants: a row leaves `running_jobs` only where job, worker and epoch match, and appears in exactly one other state
 * table in the same statement; a job that went back keeps its place (lane, rank, seq); a cooldown only ever extends, and once
 * it has committed nothing is admitted under it: its writer holds `7305002, upstream` alone, which waits for claims in progress.
 * A result whose lease was lost changes nothing but the evidence on the attempt that was given up as unknown.
 * A call that asked what became of an earlier one is no attempt: it is told in `reconciliations`, and has a verdict.
 * What would go back to wait is cancelled where its batch was (cancel-jobs.ts), or held where its batch is (fuses.ts).
 * Joins are written so that no plan can turn them round (claim-jobs.ts), as wherever a table of jobs is joined.
 * Lock order: advisory 7305002 (sorted), 7305003 (sorted), worker (reaper only), 7305001 (shared), 7305005 (shared),
 * blown_fuses, running_jobs by primary key, lanes, lane_groups, cooldowns.
 */
import type { ClaimedJob } from '../domain/job.ts';
import type { Charge, OutcomeClass } from '../domain/outcome.ts';
import type { Next, ReconcileVerdict, Throttle } from '../domain/settle.ts';
import { arrayLiteral } from './array-literal.ts';
import type { Database } from './database.ts';

/** SQL, in a settle: columns in which all rows may agree, which are then sent as one element, become as long as the others. */
const repeated = [
  ...['upstream', 'next', 'state', 'reason', 'evidence', 'delay_ms', 'outcome', 'charged', 'status', 'sent_after_ms'],
  ...['ended_after_ms', 'retry_after_ms', 'capped', 'excerpt', 'truncated', 'sha256', 'error', 'effect', 'unknown'],
  ...['answered', 'throttle_ms', 'throttle_header', 'unused', 'verdict'],
]
  .map((column) => `p_${column} := sluice.each_of(p_${column}, v_rows);`)
  .join('\n  ');

/** SQL, in a settle: attempts of the calls in `gone` (g). */
const insertAttempts = `insert into sluice.attempts (job_id, number, epoch, worker_id, outcome, charged, status, started_at, sent_at, ended_at,
                                   slot_wait_ms, retry_after_ms, retry_after_capped, excerpt, truncated, sha256, error)
      select g.job_id, g.calls, g.epoch, p_worker, g.outcome, g.charged, g.status, g.admitted_at,
             g.admitted_at + make_interval(secs => g.sent_after_ms / 1000.0),
             coalesce(g.admitted_at + make_interval(secs => g.ended_after_ms / 1000.0), v_now),
             sluice.wait_ms(g.eligible_at, g.admitted_at), g.retry_after_ms::bigint, coalesce(g.capped, false),
             g.excerpt, coalesce(g.truncated, false), g.sha256, g.error
        from gone g`;

export const settleJobsFunction = {
  name: 'settle_jobs',
  sql: String.raw`
-- Closes an upstream or a limit, or one partition of it, until a time; never opens anything earlier.
create or replace function sluice.extend_cooldown(p_kind text, p_name text, p_partition text, p_delay_ms float8, p_admitted timestamptz,
  p_reason text, p_status int, p_header text, p_job uuid) returns timestamptz language plpgsql as $$
declare
  v_now timestamptz := sluice.at_us(sluice.clock_us());
  v_old sluice.cooldowns;
  v_row int;
  v_until timestamptz;
begin
  select * into v_old from sluice.cooldowns x where x.kind = p_kind and x.name = p_name and x.partition_key = p_partition for update;
  -- Calls that were under way when it closed say nothing new: only one that was let through afterwards lengthens the streak.
  v_row := coalesce(v_old.in_row, 0) + case when v_old.name is null or v_old.in_row = 0 or p_admitted >= v_old.until then 1 else 0 end;
  -- Without a time of its own: 250 ms, doubled by each throttle in a row up to 60 s, jittered upwards by at most a half.
  v_until := v_now + make_interval(secs => coalesce(p_delay_ms,
    least(60000, 250 * 2 ^ least(v_row - 1, 20)) * (1 + random() / 2)) / 1000.0);
  insert into sluice.cooldowns as x (kind, name, partition_key, until, ramp, in_row, reason, status, header, job_id, at)
  values (p_kind, p_name, p_partition, v_until, 1, v_row, p_reason, p_status, p_header, p_job, v_now)
  on conflict (kind, name, partition_key) do update
     set until = greatest(x.until, excluded.until), ramp = 1, in_row = excluded.in_row,
         reason = case when excluded.until > x.until then excluded.reason else x.reason end,
         status = case when excluded.until > x.until then excluded.status else x.status end,
         header = case when excluded.until > x.until then excluded.header else x.header end,
         job_id = case when excluded.until > x.until then excluded.job_id else x.job_id end,
         at = case when excluded.until > x.until then excluded.at else x.at end
  returning x.until into v_until;
  if p_partition = '' then
    update sluice.lane_groups g set next_at = v_until, closed_by = 'cooldown', closed_name = p_name
     where g.next_at < v_until and g.id in (
       select o.id from sluice.lane_groups o
        where case when p_kind = 'upstream' then o.upstream = p_name else p_name = any (o.shared_limits || o.partition_limits) end
        order by o.id for no key update);
  else
    update sluice.lanes l set next_at = v_until, closed_by = 'cooldown', closed_name = p_name
     where l.id = any (array(
       select o.id from sluice.lane_groups g join sluice.lanes o on o.group_id = any (array[g.id]) and o.partition_key = p_partition
        where case when p_kind = 'upstream' then g.upstream = p_name else p_name = any (g.partition_limits) end
          and o.next_at < v_until
        order by o.id for no key update of o));
  end if;
  return v_until;
end $$;

-- A permit that was surely not used is given back, to the sub-window or the window that it was taken from; where that is over,
-- there is nothing to give back. A state that was carried over to another rule has moved counts later, never earlier, so what
-- is taken off here counts no less than it should.
create or replace function sluice.give_back_permit(p_limit text, p_partition text, p_us bigint, p_cost bigint)
returns void language plpgsql as $$
declare
  w sluice.rate_windows;
  n bigint;
  i int;
  v_at tid := sluice.window_seen_at(p_limit, p_partition);
  v_by_name boolean := true;
  v_began timestamptz;
  v_took interval;
begin
  -- A claim that has the row moves it on, so it is followed some times.
  for tries in 1 .. 5 loop
    exit when v_at is null;
    v_at := currtid2('sluice.rate_windows', v_at);
    select * into w from sluice.rate_windows x
     where x.ctid = v_at and x.limit_name = p_limit and x.partition_key = p_partition for no key update;
    v_by_name := not found;
    exit when found;
  end loop;
  if v_by_name then
    v_began := clock_timestamp();
    select x.ctid into v_at from sluice.rate_windows x where x.limit_name = p_limit and x.partition_key = p_partition for no key update;
    if not found then return; end if;
    v_took := clock_timestamp() - v_began;
    select * into w from sluice.rate_windows x where x.ctid = v_at;
  end if;
  if w.algorithm = 'sliding_window' then
    n := p_us / w.width_us;
    if n < w.tail or n > w.head then return; end if;
    i := (n % array_length(w.ring, 1))::int + 1;
    if w.ring[i] < p_cost then return; end if;
    w.ring[i] := w.ring[i] - p_cost;
    w.used := w.used - p_cost;
  elsif w.algorithm = 'fixed_window' then
    if w.anchor_at is null or sluice.us_of(w.anchor_at) > p_us or w.used < p_cost then return; end if;
    w.used := w.used - p_cost;
  else
    -- A bucket that had not been charged might have overflowed since: what has flowed in meanwhile is not given back as well.
    select least(sluice.rate_window_bucket(r)::float8,
                 w.level + greatest(0, p_cost - greatest(0, sluice.clock_us() - p_us)::float8 * coalesce(r."limit", 0)
                                               / (r.per_seconds::float8 * 1000000)))
      into w.level from sluice.rate_limits r where r.name = p_limit;
  end if;
  perform sluice.window_seen(p_limit, p_partition, sluice.store_window(w, v_at), v_by_name, v_took);
end $$;

-- Places that became free under an order, a max_in_flight or a ramp open what waited for them.
create or replace function sluice.free_places(p_groups int[], p_lanes bigint[], p_now timestamptz) returns void language plpgsql as $$
begin
  update sluice.lanes l set next_at = p_now, closed_by = null, closed_name = null
   where l.id = any (array(select o.id from sluice.lanes o where o.id = any (p_lanes) and o.closed_by = 'fifo'
                            order by o.id for no key update));
  -- Several tenants, queues or upstreams may have one partition, and the place in the turn decides who has what is free: it is chance's,
  -- also for those who were served and closed with it. Those that opened by themselves, and were not looked at since, are among them.
  -- Found by their partition: the turn of these groups may have any number of other lanes.
  update sluice.lanes l set next_at = p_now - random() * interval '0.3 milliseconds', closed_by = null, closed_name = null
   where l.id = any (array(select o.id from sluice.lanes o
                            where o.group_id = any (array(select b.id from sluice.lane_groups b
                                                           where exists (select 1 from sluice.lane_groups a
                                                                          where a.id = any (p_groups)
                                                                            and (b.upstream = a.upstream or b.partition_limits && a.partition_limits))))
                              and o.partition_key = any (array(select z.partition_key from sluice.lanes z where z.id = any (p_lanes)))
                              and coalesce(o.next_at, p_now) between p_now - interval '1 second' and p_now + interval '1 second'
                              and o.closed_by in ('in_flight', 'probing')
                            order by o.id for no key update));
  update sluice.lane_groups g set next_at = p_now, closed_by = null, closed_name = null
   where g.id in (select o.id from sluice.lane_groups o where o.closed_by in ('in_flight', 'probing') order by o.id for no key update);
end $$;

-- In milliseconds. Who waited behind a pause or a period of 31 days has waited for longer than an int can tell.
create or replace function sluice.wait_ms(p_since timestamptz, p_until timestamptz) returns int language sql immutable as $$
  select least(2147483647, greatest(0, date_part('epoch', p_until - p_since) * 1000))::int
$$;

-- When the call of a settled lease was admitted.
create or replace function sluice.admission_of(p_job uuid, p_epoch int) returns timestamptz language sql stable as $$
  select coalesce((select max(a.started_at) from sluice.attempts a where a.job_id = p_job and a.epoch = p_epoch),
                  (select q.started_at from sluice.reconciliations q where q.job_id = p_job and q.epoch = p_epoch))
$$;

-- A column of rows that are all equal in it is sent as one element.
create or replace function sluice.each_of(p_column anyarray, p_rows int) returns anyarray language sql immutable as $$
  select case when cardinality(p_column) = 1 and p_rows > 1 then array_fill(p_column[1], array[p_rows]) else p_column end
$$;

create or replace function sluice.settle_jobs(
  p_worker uuid, p_only_expired boolean,
  p_job uuid[], p_epoch int[], p_upstream text[], p_next text[], p_state text[], p_reason text[], p_evidence text[], p_delay_ms float8[],
  p_outcome text[], p_charged text[], p_status int[], p_sent_after_ms float8[], p_ended_after_ms float8[],
  p_retry_after_ms float8[], p_capped boolean[], p_excerpt text[], p_truncated boolean[], p_sha256 bytea[], p_error text[],
  p_effect boolean[], p_unknown boolean[], p_answered boolean[], p_throttle_ms float8[], p_throttle_header text[],
  p_unused boolean[], p_verdict text[])
returns table (job_id uuid)
language plpgsql
set plan_cache_mode = force_generic_plan set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_now timestamptz;
  v_jobs uuid[];
  v_written uuid[];
  v_returned uuid[];
  v_old_news uuid[];
  v_oldest timestamptz;
  v_back bigint[];
  v_counted_groups int[];
  v_counted_lanes bigint[];
  v_upstreams text[];
  v_throttled boolean[];
  v_ramping boolean;
  -- Calls of which each has ended its job, and that have closed, stopped or given back nothing: nearly all, so they take a short way.
  v_plain boolean := 'done' = all (p_next) and p_throttle_ms = '{}' and p_verdict = '{}' and array_position(p_reason, 'fuse') is null
                     and array_position(p_unused, true) is null and p_outcome <> '{}' and array_position(p_outcome, null) is null;
  v_rows int := cardinality(p_job);
  t record;
  u record;
  v_wake boolean := false;
  v_unused_limits text[];
  v_unused jsonb;
begin
  ${repeated}
  -- Whoever writes cooldowns takes the locks for all of them first, shared where it only lets more through: the rows of lanes
  -- and groups that are changed on the way would else be waited for in a ring.
  v_ramping := exists (select 1 from sluice.cooldowns y where y.ramp is not null or y.in_row > 0);
  if v_ramping or not v_plain then
    select array_agg(x.upstream order by x.upstream), array_agg(x.throttled order by x.upstream) into v_upstreams, v_throttled
      from (select s.upstream, bool_or(s.throttle_ms is not null or s.reason = 'fuse') as throttled
              from unnest(p_upstream, p_throttle_ms, p_answered, p_reason) as s(upstream, throttle_ms, answered, reason)
             where s.throttle_ms is not null or s.reason = 'fuse' or (s.answered and v_ramping) group by s.upstream) x;
  end if;
  for i in 1 .. coalesce(array_length(v_upstreams, 1), 0) loop
    if v_throttled[i] then perform pg_advisory_xact_lock(7305002, hashtext(v_upstreams[i]));
    else perform pg_advisory_xact_lock_shared(7305002, hashtext(v_upstreams[i])); end if;
  end loop;
  if v_upstreams is not null then
    for t in
      select x.name, bool_or(s.throttled) as throttled
        from unnest(v_upstreams, v_throttled) as s(upstream, throttled)
        join sluice.lane_groups g on g.upstream = s.upstream
        join sluice.rate_limits x on x.shares_cooldown and (x.name = any (g.shared_limits) or x.name = any (g.partition_limits))
       group by x.name order by x.name
    loop
      if t.throttled then perform pg_advisory_xact_lock(7305003, hashtext(t.name));
      else perform pg_advisory_xact_lock_shared(7305003, hashtext(t.name)); end if;
    end loop;
  end if;
  if p_only_expired then
    -- Locked before it is judged: a renewal waits, and then finds its jobs gone.
    perform 1 from sluice.workers x where x.id = p_worker for update;
    perform 1 from sluice.workers x where x.id = p_worker and x.lease_expires_at > sluice.at_us(sluice.clock_us());
    if found then return; end if;
  end if;
  -- A job that may have had its effect at an upstream that has been moved since is held: a change of definitions is waited for.
  if not v_plain and (
       exists (select 1 from unnest(p_next, p_effect, p_verdict) as x(next, effect, verdict)
                where x.next in ('ready', 'scheduled') and (x.effect or x.verdict is not null))
       or 'fuse' = any (p_reason)) then
    perform pg_advisory_xact_lock_shared(7305001);
  end if;
  -- Who marks a batch as cancelled waits for this settle, or it sees the mark (cancel-jobs.ts).
  perform pg_advisory_xact_lock_shared(7305005);
  v_now := sluice.at_us(sluice.clock_us());
  if 'fuse' = any (p_reason) then v_old_news := sluice.blow_fuses(p_worker, p_job, p_epoch, p_reason, p_status, v_now); end if;

  if v_plain then
    with gone as (
      delete from sluice.running_jobs r
       using unnest(p_job, p_epoch, p_state, p_reason, p_evidence, p_outcome, p_charged, p_status, p_sent_after_ms, p_ended_after_ms,
                    p_retry_after_ms, p_capped, p_excerpt, p_truncated, p_sha256, p_error, p_effect, p_unknown)
          as s(job_id, epoch, state, reason, evidence, outcome, charged, status, sent_after_ms, ended_after_ms,
               retry_after_ms, capped, excerpt, truncated, sha256, error, effect, unknown)
       where r.job_id = any (array[s.job_id]) and r.epoch = s.epoch and r.worker_id = p_worker
      returning r.job_id, r.lane_id, r.group_id, r.admitted_at, r.eligible_at, r.counted, r.epoch, r.calls + 1 as calls,
                r.attempts_used + case when s.charged = 'attempt' then 1 else 0 end as attempts_used,
                r.throttles + case when s.charged = 'throttle' then 1 else 0 end as throttles,
                coalesce(r.first_sent_at, case when s.effect then r.admitted_at + make_interval(secs => coalesce(s.sent_after_ms, 0) / 1000.0) end)
                  as first_sent_at,
                s.state, s.reason, s.evidence, s.outcome, s.charged, s.status, s.sent_after_ms, s.ended_after_ms,
                s.retry_after_ms, s.capped, s.excerpt, s.truncated, s.sha256, s.error, s.unknown),
    ended as (
      insert into sluice.done_jobs (job_id, state, reason, evidence, status, ended_at, epoch, calls, attempts_used, throttles,
                                    first_sent_at, outcome_unknown)
      select g.job_id, g.state, g.reason, g.evidence, g.status, v_now, g.epoch, g.calls, g.attempts_used, g.throttles, g.first_sent_at,
             g.unknown
        from gone g),
    told as (
      ${insertAttempts})
    select coalesce(array_agg(g.job_id), '{}'), array_agg(distinct g.group_id) filter (where g.counted),
           array_agg(distinct g.lane_id) filter (where g.counted)
      into v_jobs, v_counted_groups, v_counted_lanes
      from gone g;
  else
    with s as materialized (
      select * from unnest(p_job, p_epoch, p_upstream, p_next, p_state, p_reason, p_evidence, p_delay_ms, p_outcome, p_charged, p_status,
                           p_sent_after_ms, p_ended_after_ms, p_retry_after_ms, p_capped, p_excerpt, p_truncated, p_sha256, p_error,
                           p_effect, p_unknown, p_unused, p_verdict)
        as s(job_id, epoch, upstream, next, state, reason, evidence, delay_ms, outcome, charged, status, sent_after_ms, ended_after_ms,
             retry_after_ms, capped, excerpt, truncated, sha256, error, effect, unknown, unused, verdict)),
    gone as (
      delete from sluice.running_jobs r using s
       where r.job_id = any (array[s.job_id]) and r.epoch = s.epoch and r.worker_id = p_worker
      returning r.job_id, r.lane_id, r.group_id, r.rank, r.seq, r.cost, r.expires_at, r.admitted_at, r.eligible_at, r.counted, r.epoch,
                case when s.unused then r.charged end as give_back,
                r.calls + case when s.outcome is null then 0 else 1 end as calls,
                r.attempts_used + case when s.charged = 'attempt' then 1 else 0 end as attempts_used,
                r.throttles + case when s.charged = 'throttle' then 1 else 0 end as throttles,
                -- Of an effect that the upstream says is absent nothing is left to remember; but one that was moved may never have heard of it.
                case when s.verdict = 'absent' and not exists (select 1 from sluice.upstreams u where u.name = s.upstream and u.target_changed_at > r.admitted_at)
                     then null
                     else coalesce(r.first_sent_at, case when s.effect then r.admitted_at + make_interval(secs => coalesce(s.sent_after_ms, 0) / 1000.0) end)
                end as first_sent_at,
                case when (s.next in ('ready', 'scheduled') or s.reason = 'fuse') and (s.effect or r.first_sent_at is not null)
                      and exists (select 1 from sluice.upstreams u where u.name = s.upstream and u.target_changed_at > r.admitted_at)
                     then 'upstream_changed' else s.next end as next,
                s.state, s.reason, s.evidence, s.delay_ms, s.outcome, s.charged, s.status, s.sent_after_ms, s.ended_after_ms,
                s.retry_after_ms, s.capped, s.excerpt, s.truncated, s.sha256, s.error,
                case when s.verdict = 'absent' and exists (select 1 from sluice.upstreams u where u.name = s.upstream and u.target_changed_at > r.admitted_at)
                     then r.outcome_unknown
                     when s.outcome is null and s.verdict is null then r.outcome_unknown else s.unknown end as unknown,
                case when s.verdict in ('throttled', 'unclear') then r.reconcile_failures + 1
                     when s.verdict is null then r.reconcile_failures else 0 end as reconcile_failures, s.verdict),
    ended as (
      insert into sluice.done_jobs (job_id, state, reason, evidence, status, ended_at, epoch, calls, attempts_used, throttles,
                                    first_sent_at, outcome_unknown)
      select g.job_id, g.state, g.reason, g.evidence, case when g.verdict is null then g.status end, v_now, g.epoch, g.calls, g.attempts_used, g.throttles, g.first_sent_at,
             g.unknown
        from gone g where g.next = 'done'),
    back as (
      insert into sluice.ready_jobs (lane_id, rank, seq, job_id, cost, expires_at, eligible_at, epoch, calls, attempts_used, throttles,
                                     first_sent_at, outcome_unknown, reconcile_failures)
      select g.lane_id, g.rank, g.seq, g.job_id, g.cost, g.expires_at,
             case when g.outcome is null and g.verdict is null then g.eligible_at else v_now end,
             g.epoch, g.calls, g.attempts_used, g.throttles, g.first_sent_at, g.unknown, g.reconcile_failures
        from gone g where g.next = 'ready'),
    parked as (
      insert into sluice.parked_jobs (job_id, lane_id, rank, seq, state, reason, due_at, cost, expires_at, epoch, calls, attempts_used,
                                      throttles, first_sent_at, outcome_unknown, reconcile_failures)
      select g.job_id, g.lane_id, g.rank, g.seq, case g.next when 'upstream_changed' then 'held' else g.next end,
             case g.next when 'upstream_changed' then 'upstream_changed' else g.reason end,
             case when g.next = 'scheduled' then v_now + make_interval(secs => g.delay_ms / 1000.0) end, g.cost, g.expires_at, g.epoch,
             g.calls, g.attempts_used, g.throttles, g.first_sent_at, g.unknown,
             case when g.next = 'scheduled' then g.reconcile_failures else 0 end
        from gone g where g.next in ('scheduled', 'held', 'upstream_changed')),
    asked as (
      insert into sluice.reconciliations (job_id, epoch, started_at, sent_at, at, status, verdict, error)
      select g.job_id, g.epoch, g.admitted_at, g.admitted_at + make_interval(secs => g.sent_after_ms / 1000.0),
             coalesce(g.admitted_at + make_interval(secs => g.ended_after_ms / 1000.0), v_now), g.status, g.verdict, g.error
        from gone g where g.verdict is not null),
    told as (
      ${insertAttempts} where g.outcome is not null)
    select array_agg(g.job_id), array_agg(distinct g.job_id) filter (where g.next in ('ready', 'scheduled') or g.reason = 'fuse'),
           array_agg(distinct g.lane_id) filter (where g.next = 'ready'),
           array_agg(distinct g.group_id) filter (where g.counted), array_agg(distinct g.lane_id) filter (where g.counted),
           array_agg(distinct split_part(x.charge, ':', 3)) filter (where x.charge is not null), jsonb_agg(jsonb_build_object(
             'limit', split_part(x.charge, ':', 3), 'partition', case when x.charge like 'p:%' then l.partition_key else '' end,
             'us', split_part(x.charge, ':', 2)::bigint, 'cost', g.cost)) filter (where x.charge is not null), min(g.admitted_at)
      into v_jobs, v_returned, v_back, v_counted_groups, v_counted_lanes, v_unused_limits, v_unused, v_oldest
      from gone g
      left join lateral string_to_table(g.give_back, ',') x(charge) on true
      left join lateral (select * from sluice.lanes y where x.charge is not null and y.id = g.lane_id offset 0) l on true;
    v_jobs := array(select distinct unnest(v_jobs));
  end if;

  if coalesce(array_length(v_jobs, 1), 0) < array_length(p_job, 1) then
    update sluice.attempts a
       set late_outcome = s.outcome, late_status = s.status, late_at = v_now,
           -- When it was sent and what was answered nobody knew; what it did to the job stays as it was decided.
           sent_at = coalesce(a.sent_at, a.started_at + make_interval(secs => s.sent_after_ms / 1000.0)),
           excerpt = s.excerpt, truncated = coalesce(s.truncated, false), sha256 = s.sha256
      from unnest(p_job, p_epoch, p_outcome, p_status, p_sent_after_ms, p_excerpt, p_truncated, p_sha256)
        as s(job_id, epoch, outcome, status, sent_after_ms, excerpt, truncated, sha256)
     where a.job_id = any (array[s.job_id]) and a.epoch = s.epoch and a.outcome = 'unknown' and a.worker_id = p_worker
       and s.outcome is not null and (s.outcome <> 'unknown' or a.sent_at is null) and a.late_at is null
       and s.job_id <> all (coalesce(v_jobs, '{}'));
    -- A write whose answer was lost comes again: what it wrote is there.
    v_written := array(
      select a.job_id from unnest(p_job, p_epoch, p_outcome) as s(job_id, epoch, outcome)
        join sluice.attempts a on a.job_id = any (array[s.job_id]) and a.epoch = s.epoch and a.worker_id = p_worker and a.outcome = s.outcome
       where s.job_id <> all (coalesce(v_jobs, '{}')));
  end if;

  if v_unused is not null then
    perform sluice.give_back_permit(x."limit", x.partition, x.us, x.cost)
       from (select y."limit", y.partition, y.us, sum(y.cost)::bigint as cost
               from jsonb_to_recordset(v_unused) as y("limit" text, partition text, us bigint, cost bigint)
              group by y."limit", y.partition, y.us order by y."limit", y.partition, y.us) x;
  end if;

  if v_back is not null then perform sluice.wake_lanes(v_back, v_now, v_unused is not null); v_wake := true; end if;
  if v_unused is not null then
    update sluice.lane_groups g set next_at = v_now, closed_by = null, closed_name = null
     where g.id in (select o.id from sluice.lane_groups o where o.closed_by = 'window' and o.shared_limits && v_unused_limits
                     order by o.id for no key update);
  end if;
  if v_old_news is not null then
    perform sluice.resume_from_fuses(v_old_news, v_now);
    v_returned := v_returned || v_old_news;
  end if;
  if v_returned is not null then
    perform sluice.cancel_returned(v_returned, v_oldest, v_now);
    perform sluice.hold_behind_fuses(v_returned, v_now);
  end if;

  if v_counted_groups is not null then
    perform sluice.free_places(v_counted_groups, v_counted_lanes, v_now);
    v_wake := true;
  end if;

  -- Each answer that is no throttle to a call admitted since it opened doubles a ramp; any such answer ends the streak.
  if v_ramping then
    for u in
      select g.upstream, l.partition_key, g.shared_limits || g.partition_limits as limits, x.admitted_at
        from (select s.job_id, sluice.admission_of(s.job_id, s.epoch) as admitted_at
                from unnest(p_job, p_epoch, p_answered) as s(job_id, epoch, answered)
               where s.answered and s.job_id = any (coalesce(v_jobs, '{}'))) x
        cross join lateral (select * from sluice.jobs y where y.id = x.job_id offset 0) b
        cross join lateral (select * from sluice.lanes y where y.id = b.lane_id offset 0) l
        join sluice.lane_groups g on g.id = l.group_id
    loop
      update sluice.cooldowns y
         set in_row = 0,
             -- 256 in flight is more than one process's slots: from there on it is full rate.
             ramp = case when y.ramp is null or u.admitted_at < y.until then y.ramp when y.ramp >= 128 then null else y.ramp * 2 end
       where (y.ramp is not null or y.in_row > 0)
         and (y.partition_key = '' or y.partition_key = u.partition_key)
         and ((y.kind = 'upstream' and y.name = u.upstream) or (y.kind = 'limit' and y.name = any (u.limits)));
      if found then v_wake := true; end if;
    end loop;
  end if;

  if p_throttle_ms <> '{}' then
    for t in
      select s.job_id, s.throttle_ms, s.header, s.status, g.upstream, l.partition_key, g.partition_limits,
             sluice.admission_of(s.job_id, s.epoch) as started_at,
             (select array_agg(x.name order by x.name) from sluice.rate_limits x
               where x.shares_cooldown and (x.name = any (g.shared_limits) or x.name = any (g.partition_limits))) as sharing
        from unnest(p_job, p_epoch, p_throttle_ms, p_throttle_header, p_status) as s(job_id, epoch, throttle_ms, header, status)
        cross join lateral (select * from sluice.jobs y where y.id = s.job_id offset 0) b
        cross join lateral (select * from sluice.lanes y where y.id = b.lane_id offset 0) l
        join sluice.lane_groups g on g.id = l.group_id
       where s.throttle_ms is not null and s.job_id = any (coalesce(v_jobs, '{}'))
       order by s.throttle_ms desc
    loop
      perform sluice.extend_cooldown('upstream', t.upstream, case when t.partition_limits <> '{}' then t.partition_key else '' end,
        nullif(t.throttle_ms, -1), t.started_at, 'throttled', t.status, t.header, t.job_id);
      for i in 1 .. coalesce(array_length(t.sharing, 1), 0) loop
        perform pg_advisory_xact_lock(7305003, hashtext(t.sharing[i]));
        perform sluice.extend_cooldown('limit', t.sharing[i],
          case when t.sharing[i] = any (t.partition_limits) then t.partition_key else '' end,
          nullif(t.throttle_ms, -1), t.started_at, 'throttled', t.status, t.header, t.job_id);
      end loop;
      v_wake := true;
    end loop;
  end if;

  if v_wake then perform pg_notify('sluice_work', ''); end if;
  return query select unnest(v_jobs || v_written);
end $$;`,
} as const;

/** One ended call, decided. Durations are measured from before the claim query left. */
export interface SettleRow {
  readonly jobId: string;
  readonly epoch: number;
  readonly upstream: string;
  readonly next: Next;
  /** null: no attempt is recorded. */
  readonly outcome: OutcomeClass | null;
  readonly charge: Charge;
  /** Of the answer, also of one to a question about an earlier call. */
  readonly status: number | null;
  readonly sentAfterMs: number | null;
  readonly endedAfterMs: number | null;
  readonly retryAfterMs: number | null;
  readonly retryAfterCapped: boolean;
  readonly excerpt: string | null;
  readonly truncated: boolean;
  /** In hex. */
  readonly sha256: string | null;
  readonly error: string | null;
  readonly mayHaveHadEffect: boolean;
  readonly outcomeUnknown: boolean;
  readonly answeredWithoutThrottle: boolean;
  readonly throttle: Throttle | null;
  /** The call surely never left: the permit goes back to its windows. */
  readonly permitUnused: boolean;
  /** What was learnt where the call asked what became of an earlier one; null: it did not ask. */
  readonly reconciliation: ReconcileVerdict | null;
}

/** A job that goes back to its place as if it had not been claimed. */
export function untouched(job: Pick<ClaimedJob, 'jobId' | 'epoch' | 'upstream' | 'outcomeUnknown'>): SettleRow {
  return {
    jobId: job.jobId,
    epoch: job.epoch,
    upstream: job.upstream,
    next: { kind: 'ready' },
    outcome: null,
    charge: 'none',
    status: null,
    sentAfterMs: null,
    endedAfterMs: null,
    retryAfterMs: null,
    retryAfterCapped: false,
    excerpt: null,
    truncated: false,
    sha256: null,
    error: null,
    mayHaveHadEffect: false,
    outcomeUnknown: job.outcomeUnknown,
    answeredWithoutThrottle: false,
    throttle: null,
    permitUnused: true,
    reconciliation: null,
  };
}

export interface SettleOptions {
  /** The reaper's: write only while the worker's lease is over. */
  readonly onlyExpired?: boolean;
  /** How long an answer is waited for; without one the rows may be written yet, and writing them again is harmless. */
  readonly withinMs?: number;
}

/**
 * Writes ended calls and gives the ids of those that were still this worker's, or that it has written already. A job that is
 * missing from the answer was taken over: its result is kept as evidence on the attempt, and nothing else may be done with it.
 */
export async function settleJobs(
  database: Database,
  workerId: string,
  rows: readonly SettleRow[],
  { onlyExpired = false, withinMs }: SettleOptions = {},
): Promise<Set<string>> {
  // Most rows are equal in most columns: one element then, or none where nothing has a value, and the function has the rest.
  const column = (pick: (row: SettleRow) => string | number | boolean | null) => {
    const values = rows.map(pick);
    const [first = null] = values;
    if (values.some((value) => value !== first)) return arrayLiteral(values);
    return first === null ? '{}' : arrayLiteral([first]);
  };
  const settled = await database.query<{ job_id: string }>(
    `select job_id from sluice.settle_jobs($1::uuid, $2::boolean, $3::uuid[], $4::int[], $5::text[], $6::text[], $7::text[],
       $8::text[], $9::text[], $10::float8[], $11::text[], $12::text[], $13::int[], $14::float8[], $15::float8[], $16::float8[],
       $17::boolean[], $18::text[], $19::boolean[], $20::bytea[], $21::text[], $22::boolean[], $23::boolean[], $24::boolean[],
       $25::float8[], $26::text[], $27::boolean[], $28::text[])`,
    [
      workerId,
      onlyExpired,
      arrayLiteral(rows.map((row) => row.jobId)),
      arrayLiteral(rows.map((row) => row.epoch)),
      column((row) => row.upstream),
      column((row) => row.next.kind),
      column((row) => (row.next.kind === 'done' ? row.next.state : null)),
      column((row) => (row.next.kind === 'ready' ? null : row.next.reason)),
      column((row) => (row.next.kind === 'done' ? row.next.evidence : null)),
      column((row) => (row.next.kind === 'scheduled' ? row.next.delayMs : null)),
      column((row) => row.outcome),
      column((row) => row.charge),
      column((row) => row.status),
      column((row) => inMicroseconds(row.sentAfterMs)),
      column((row) => inMicroseconds(row.endedAfterMs)),
      column((row) => row.retryAfterMs),
      column((row) => row.retryAfterCapped),
      column((row) => row.excerpt),
      column((row) => row.truncated),
      column((row) => (row.sha256 === null ? null : `\\x${row.sha256}`)),
      column((row) => row.error),
      column((row) => row.mayHaveHadEffect),
      column((row) => row.outcomeUnknown),
      column((row) => row.answeredWithoutThrottle),
      column((row) => (row.throttle === null ? null : (row.throttle.delayMs ?? -1))),
      column((row) => row.throttle?.header ?? null),
      column((row) => row.permitUnused),
      column((row) => row.reconciliation),
    ],
    'settle_jobs',
    {
      ...(onlyExpired
        ? { before: 'reaper.before_settle', after: 'reaper.after_settle' }
        : {
            before: 'settle.before',
            after: rows.some((row) => row.throttle !== null) ? 'cooldown.after' : 'settle.after',
          }),
      ...(withinMs === undefined ? {} : { withinMs }),
    },
  );
  return new Set(settled.map((row) => row.job_id));
}

/** Milliseconds without what PostgreSQL's instants do not hold, which a text would be long by. */
function inMicroseconds(ms: number | null): number | null {
  return ms === null ? null : Math.round(ms * 1000) / 1000;
}
