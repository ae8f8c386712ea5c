/**
 * The receiver's own evidence that a job's effect was applied: ends the job, wherever its row is, and is kept as its receipt.
 *
 * Invariants: the row leaves exactly one state table and appears in `done_jobs` in the same statement, under a new epoch, so
 * that a worker that still runs the job can write nothing; its call is put on record as unknown, for the late answer to be
 * kept with. Whatever waited for the job's place (the order of its lane, a max_in_flight, a ramp) is opened.
 * A job that moves while it is looked for is looked for again: its row is in one table in every snapshot.
 * Only primary keys are used. Lock order, as in the settle: the job's state row, lanes, lane_groups.
 */
import type { EndedState } from '../domain/job.ts';
import type { Database } from './database.ts';
import { inTransaction } from './transaction.ts';

export const putReceiptFunction = {
  name: 'put_receipt',
  sql: `
create or replace function sluice.put_receipt(p_tenant text, p_key text, p_status int, p_excerpt text, p_truncated boolean,
  p_sha256 bytea, p_note text) returns table (job_id uuid, ended boolean, state text)
language plpgsql
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  -- A job moves a few times a second at the most; each look waits for whoever is moving it.
  k_most_looks constant int := 20;
  v_now timestamptz;
  v_job uuid;
  v_gone boolean := false;
  b record;
  g record;
begin
  select k.job_id into v_job from sluice.idempotency_keys k where k.tenant = p_tenant and k.key = p_key;
  if not found then return; end if;
  for i in 1 .. k_most_looks loop
    return query select x.job_id, false, x.state from sluice.done_jobs x where x.job_id = v_job;
    if found then return; end if;
    select j.lane_id, j.rank, j.seq, j.upstream, j.key_age_from into b from sluice.jobs j where j.id = v_job;
    if not found then
      -- Retention deletes a job only after its end.
      return query select x.job_id, false, x.state from sluice.receipts x where x.job_id = v_job;
      return;
    end if;
    with ready as (
      delete from sluice.ready_jobs x where x.lane_id = b.lane_id and x.rank = b.rank and x.seq = b.seq and x.job_id = v_job
      returning x.lane_id, null::int as group_id, x.epoch, x.calls, x.attempts_used, x.throttles, x.first_sent_at, false as counted,
                null::uuid as worker_id, null::timestamptz as admitted_at, null::timestamptz as eligible_at, x.outcome_unknown, x.cost),
    parked as (
      delete from sluice.parked_jobs x where x.job_id = v_job
      returning x.lane_id, null::int, x.epoch, x.calls, x.attempts_used, x.throttles, x.first_sent_at, false,
                null::uuid, null::timestamptz, null::timestamptz, x.outcome_unknown, x.cost),
    running as (
      delete from sluice.running_jobs x where x.job_id = v_job
      returning x.lane_id, x.group_id, x.epoch, x.calls, x.attempts_used, x.throttles, x.first_sent_at, x.counted,
                x.worker_id, x.admitted_at, x.eligible_at, x.outcome_unknown, x.cost)
    select * into g from (select * from ready union all select * from parked union all select * from running) x;
    v_gone := found;
    exit when v_gone;
  end loop;
  if not v_gone then
    raise exception 'the job % moved whenever it was looked for', v_job using errcode = 'serialization_failure';
  end if;
  v_now := sluice.at_us(sluice.clock_us());

  -- The worker may ask about an earlier call instead of making one: that is no attempt.
  if g.worker_id is not null and not exists (
       select 1 from sluice.upstreams u
        where u.name = b.upstream and jsonb_typeof(u.definition -> 'reconcile') = 'object'
          and (g.outcome_unknown
               or sluice.key_age_start(g.first_sent_at, b.key_age_from) + make_interval(secs => (u.definition ->> 'key_ttl_s')::float8) < g.admitted_at)) then
    g.calls := g.calls + 1;
    insert into sluice.attempts (job_id, number, epoch, worker_id, outcome, charged, started_at, ended_at, slot_wait_ms, error)
    values (v_job, g.calls, g.epoch, g.worker_id, 'unknown', 'none', g.admitted_at, v_now,
            sluice.wait_ms(g.eligible_at, g.admitted_at),
            'the receiver''s receipt ended the job before this call was answered');
    -- When it was sent, if at all, only its worker knows; not before it was admitted.
    g.first_sent_at := coalesce(g.first_sent_at, g.admitted_at);
  end if;
  insert into sluice.done_jobs (job_id, state, reason, evidence, status, ended_at, epoch, calls, attempts_used, throttles,
                                first_sent_at, outcome_unknown)
  values (v_job, 'succeeded', null, 'receipt', p_status, v_now, g.epoch + 1, g.calls, g.attempts_used, g.throttles,
          g.first_sent_at, false);
  insert into sluice.receipts (job_id, tenant, idempotency_key, state, evidence, attempts, status, excerpt, truncated, sha256,
                               note, first_sent_at, ended_at)
  values (v_job, p_tenant, p_key, 'succeeded', 'receipt', g.calls, p_status, p_excerpt, p_truncated, p_sha256, p_note,
          g.first_sent_at, v_now);

  if g.counted then
    perform sluice.free_places(array[g.group_id], array[g.lane_id], v_now);
  elsif g.worker_id is null then
    perform sluice.open_behind(array[g.lane_id], g.cost > 1, v_now);
  end if;
  perform pg_notify('sluice_work', '');
  return query select v_job, true, 'succeeded';
end $$;`,
} as const;

/** What the receiver says, all of it optional. */
export interface ReceiptEvidence {
  readonly status: number | null;
  readonly excerpt: string | null;
  readonly truncated: boolean;
  /** Over all of the answer, not only the excerpt. */
  readonly sha256: Buffer | null;
  readonly note: string | null;
}

export type PutReceipt =
  | { readonly kind: 'ended' }
  | { readonly kind: 'ended_before'; readonly jobId: string; readonly state: EndedState }
  | { readonly kind: 'unknown_key' };

/** Ends the unfinished job under a key as succeeded, by the receiver's evidence. */
export async function putReceipt(
  database: Database,
  tenant: string,
  key: string,
  { status, excerpt, truncated, sha256, note }: ReceiptEvidence,
): Promise<PutReceipt> {
  const [row] = await inTransaction(
    database,
    (client) =>
      client.query<{ job_id: string; ended: boolean; state: EndedState }>(
        'select * from sluice.put_receipt($1::text, $2::text, $3::int, $4::text, $5::boolean, $6::bytea, $7::text)',
        [tenant, key, status, excerpt, truncated, sha256, note],
        'put-receipt',
      ),
    { before: 'decision.before_commit', after: 'decision.after_commit' },
  );
  if (row === undefined) return { kind: 'unknown_key' };
  return row.ended ? { kind: 'ended' } : { kind: 'ended_before', jobId: row.job_id, state: row.state };
}
