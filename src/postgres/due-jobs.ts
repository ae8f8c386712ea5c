/**
 * What falls due with time, and the waking of lanes: scheduled jobs become ready, jobs past `expires_at` end. Run by each claim,
 * a bounded number of rows each time.
 * Lock order: lanes, lane_groups, job rows, all with SKIP LOCKED or in the order of their ids (claim-jobs.ts).
 */

/** Due scheduled jobs become ready, and jobs past `expires_at` end; a bounded number each, then the claim goes on. */
export const dueJobsFunctions = {
  name: 'due_jobs',
  sql: String.raw`
-- From when the age of a job's key counts: its first send, or a person's later decision to send it again. null: not sent yet.
create or replace function sluice.key_age_start(p_first_sent timestamptz, p_decided timestamptz) returns timestamptz
language sql immutable parallel safe as $$
  select case when p_first_sent is not null then greatest(p_first_sent, p_decided) end
$$;

-- p_windows: what their windows closed is opened too, since a permit came back.
create or replace function sluice.wake_lanes(p_lanes bigint[], p_now timestamptz, p_windows boolean default false) returns void
language plpgsql as $$
begin
  -- A claim marks a lane empty only under FOR UPDATE: with KEY SHARE held until our commit it cannot overlook our rows.
  perform 1 from sluice.lanes l where l.id = any (p_lanes) order by l.id for key share;
  update sluice.lanes l set next_at = p_now, closed_by = null, closed_name = null
   where l.id = any (array(select o.id from sluice.lanes o
                            where o.id = any (p_lanes)
                              and (o.closed_by in ('empty', 'fifo') or p_windows and o.closed_by = 'window')
                            order by o.id for no key update));
end $$;

-- Jobs that waited have left these lanes in another way than by a claim: nobody waits behind them in an order any longer, nor
-- (dear ones) for what their windows saved up for them.
create or replace function sluice.open_behind(p_lanes bigint[], p_dear boolean, p_now timestamptz) returns void language plpgsql as $$
begin
  update sluice.lanes l set next_at = p_now, closed_by = null, closed_name = null
   where l.id = any (array(select o.id from sluice.lanes o
                            where o.id = any (p_lanes) and o.closed_by in ('fifo', 'window') order by o.id for no key update));
  if p_dear then
    update sluice.lane_groups g set next_at = p_now, closed_by = null, closed_name = null
     where g.id in (select o.id from sluice.lane_groups o
                     where o.closed_by = 'window' and exists (
                       select 1 from sluice.lanes l join sluice.lane_groups s on s.id = l.group_id
                        where l.id = any (p_lanes) and s.shared_limits && o.shared_limits)
                     order by o.id for no key update);
  end if;
end $$;

create or replace function sluice.promote_due_jobs(p_now timestamptz, p_most int) returns int language plpgsql
set plan_cache_mode = force_generic_plan set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
  v_lanes bigint[];
  v_count int;
begin
  with due as materialized (
    select d.job_id from sluice.parked_jobs d where d.due_at <= p_now order by d.due_at limit p_most for update skip locked),
  gone as (
    delete from sluice.parked_jobs p using due where p.job_id = any (array[due.job_id]) returning p.*),
  put as (
    insert into sluice.ready_jobs (lane_id, rank, seq, job_id, cost, expires_at, eligible_at, epoch, calls, attempts_used,
                                   throttles, first_sent_at, outcome_unknown, reconcile_failures)
    select g.lane_id, g.rank, g.seq, g.job_id, g.cost, g.expires_at, g.due_at, g.epoch, g.calls, g.attempts_used,
           g.throttles, g.first_sent_at, g.outcome_unknown, g.reconcile_failures
      from gone g returning lane_id)
  select array_agg(distinct put.lane_id), count(*) into v_lanes, v_count from put;
  if v_lanes is not null then perform sluice.wake_lanes(v_lanes, p_now); end if;
  return v_count;
end $$;

-- A job whose outcome is unknown may have had its effect: it is held, never 'expired'.
create or replace function sluice.expire_jobs(p_now timestamptz, p_most int) returns int language plpgsql
set plan_cache_mode = force_generic_plan set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
  v_ready int;
  v_parked int;
  v_lanes bigint[];
  v_more bigint[];
  v_dear boolean;
begin
  with late as materialized (
    select r.lane_id, r.rank, r.seq from sluice.ready_jobs r where r.expires_at <= p_now limit p_most for update skip locked),
  gone as (
    delete from sluice.ready_jobs r using late l where r.lane_id = any (array[l.lane_id]) and r.rank = l.rank and r.seq = l.seq returning r.*),
  ended as (
    insert into sluice.done_jobs (job_id, state, reason, ended_at, epoch, calls, attempts_used, throttles, first_sent_at, outcome_unknown)
    select g.job_id, 'expired', 'expired', p_now, g.epoch + 1, g.calls, g.attempts_used, g.throttles, g.first_sent_at, false
      from gone g where not g.outcome_unknown),
  kept as (
    insert into sluice.parked_jobs (job_id, lane_id, rank, seq, state, reason, due_at, cost, expires_at, epoch, calls, attempts_used,
                                    throttles, first_sent_at, outcome_unknown)
    select g.job_id, g.lane_id, g.rank, g.seq, 'held', 'outcome_unknown', null, g.cost, null, g.epoch + 1, g.calls, g.attempts_used,
           g.throttles, g.first_sent_at, true
      from gone g where g.outcome_unknown)
  select count(*), array_agg(distinct g.lane_id), bool_or(g.cost > 1) into v_ready, v_lanes, v_dear from gone g;
  with late as materialized (
    select p.job_id from sluice.parked_jobs p where p.expires_at <= p_now and p.state = 'scheduled' limit p_most for update skip locked),
  gone as (
    delete from sluice.parked_jobs p using late l where p.job_id = any (array[l.job_id]) and not p.outcome_unknown returning p.*),
  ended as (
    insert into sluice.done_jobs (job_id, state, reason, ended_at, epoch, calls, attempts_used, throttles, first_sent_at, outcome_unknown)
    select g.job_id, 'expired', 'expired', p_now, g.epoch + 1, g.calls, g.attempts_used, g.throttles, g.first_sent_at, false from gone g),
  kept as (
    update sluice.parked_jobs p set state = 'held', reason = 'outcome_unknown', due_at = null, expires_at = null, epoch = p.epoch + 1
      from late l where p.job_id = any (array[l.job_id]) and p.outcome_unknown)
  select (select count(*) from late), (select array_agg(distinct g.lane_id) from gone g) into v_parked, v_more;
  v_lanes := coalesce(v_lanes, '{}') || coalesce(v_more, '{}');
  if v_lanes <> '{}' then perform sluice.open_behind(v_lanes, v_dear, p_now); end if;
  return v_ready + v_parked;
end $$;`,
} as const;
