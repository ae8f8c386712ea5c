/**
 * The intake of a batch of one item whose key is new, into a lane that is there: one statement, which leaves together with the
 * BEGIN before it and the COMMIT behind it, and has what such an intake needs of the steps in insert-batch.ts. Whatever else it finds (a key that is known, a lane to make,
 * other definitions) is left to these, and then it has stored nothing.
 * Lock order: advisory 7305001 (shared), the lane FOR KEY SHARE, the key, the batch's row, then as in claim-at-intake.ts. The lane comes
 * before the key here: that makes no ring, since FOR UPDATE of a lane, which alone would wait for it, is taken with SKIP LOCKED only.
 */
import { v7 as newId } from 'uuid';
import { firstLedger } from '../domain/job.ts';
import type { BatchVerdict } from '../domain/submission.ts';
import { ascendingIds } from './ascending-ids.ts';
import type { Database } from './database.ts';
import type { BatchToInsert } from './insert-batch-rows.ts';
import type { IntakeReservation } from './intake-reservation.ts';
import { definitionsLock, intakePoints } from './lane-groups.ts';
import { inTransaction } from './transaction.ts';
import { intakePayload } from './wake-ups.ts';

export const insertSingleFunction = {
  name: 'insert_single',
  sql: String.raw`
-- p_worker: to claim the job for (claim_at_intake); null: for none. No row: it is not for this way, and nothing is stored.
create or replace function sluice.insert_single(
  p_version bigint, p_tenant text, p_batch uuid, p_correlation text, p_request_key text, p_request_fingerprint bytea, p_worker uuid,
  p_job uuid, p_key text, p_key_source text, p_fingerprint bytea, p_queue text, p_upstream text, p_partition text, p_rank int,
  p_method text, p_path text, p_headers text, p_body text, p_body_is_text boolean, p_cost int, p_max_attempts int,
  p_payload_version text, p_expires timestamptz)
returns table (created_at timestamptz, admitted boolean, permit_ms float8, slot_wait_ms float8) language plpgsql
set plan_cache_mode = force_generic_plan set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_lane bigint;
  v_seq bigint;
  a record;
begin
  perform pg_advisory_xact_lock_shared(${definitionsLock});
  -- KEY SHARE, so that no claim marks the lane empty before this commits.
  select l.id into v_lane
    from sluice.definition_version v join sluice.lane_groups g on g.queue = p_queue and g.upstream = p_upstream
    join sluice.lanes l on l.group_id = g.id and l.partition_key = p_partition and l.tenant = p_tenant
   where v.version = p_version for key share of l;
  if not found then return; end if;
  insert into sluice.idempotency_keys (tenant, key, fingerprint, job_id) values (p_tenant, p_key, p_fingerprint, p_job)
      on conflict (tenant, key) do nothing;
  if not found then return; end if;
  insert into sluice.batches (id, tenant, correlation_id, request_key, request_fingerprint, total, accepted, duplicate, conflict, rejected)
  values (p_batch, p_tenant, p_correlation, p_request_key, p_request_fingerprint, 1, 1, 0, 0, 0) returning created_at into created_at;
  insert into sluice.jobs (id, tenant, batch_id, lane_id, rank, seq, queue, upstream, partition_key, idempotency_key, key_source,
                           method, path, headers, body, body_is_text, cost, max_attempts, payload_version, correlation_id,
                           expires_at, created_at, item_index)
  values (p_job, p_tenant, p_batch, v_lane, p_rank, nextval('sluice.job_seq'), p_queue, p_upstream, p_partition, p_key, p_key_source,
          p_method, p_path, p_headers, p_body, p_body_is_text, p_cost, p_max_attempts, p_payload_version, p_correlation,
          p_expires, created_at, 0) returning seq into v_seq;

  admitted := false;
  if p_worker is not null then
    select * into a from sluice.claim_at_intake(p_worker, v_lane, p_cost, p_expires, created_at, statement_timestamp());
    admitted := found;
  end if;
  if admitted then
    insert into sluice.running_jobs (job_id, lane_id, group_id, rank, seq, cost, expires_at, eligible_at, worker_id, admitted_at, charged, epoch)
    values (p_job, v_lane, a.group_id, p_rank, v_seq, p_cost, p_expires, created_at, p_worker, a.admitted_at, a.charged, ${firstLedger.epoch});
    permit_ms := a.permit_ms;
    slot_wait_ms := a.slot_wait_ms;
  else
    insert into sluice.ready_jobs (lane_id, rank, seq, job_id, cost, expires_at, eligible_at)
    values (v_lane, p_rank, v_seq, p_job, p_cost, p_expires, created_at);
    perform sluice.wake_lanes(array[v_lane], clock_timestamp()), pg_notify('sluice_work', '${intakePayload}');
  end if;
  return next;
end $$;`,
} as const;

/**
 * null: it is not for this way, and nothing is stored. A request key that another request has just taken is an error of
 * PostgreSQL (`batches_request_key`).
 * @param reservation what becomes of it is the caller's to say, unless nothing is stored
 */
export async function insertSingle(
  database: Database,
  { tenant, correlationId, requestKey, definitionsVersion, items }: BatchToInsert,
  reservation: IntakeReservation,
): Promise<BatchVerdict | null> {
  const [item, ...others] = items;
  if (item === undefined || others.length > 0 || definitionsVersion === null) return null;
  const { job, key, keySource, faults } = item;
  if (job === null || job.runAt !== null || faults.length > 0) return null;
  const batchId = newId();
  const jobId = ascendingIds(1)[0]!;
  const jobs = [{ jobId, laneId: null, job }];
  // Asked for with a connection in hand: no slot is kept, and no permit runs, while one is waited for.
  const values = () => [
    definitionsVersion,
    tenant,
    batchId,
    correlationId,
    requestKey?.key ?? null,
    requestKey && Buffer.from(requestKey.fingerprint, 'hex'),
    reservation.reserve(jobs, definitionsVersion),
    jobId,
    job.key,
    job.keySource,
    Buffer.from(job.fingerprint, 'hex'),
    job.queue,
    job.upstream,
    job.partitionKey ?? '',
    -job.priority,
    job.method,
    job.path,
    job.headers && JSON.stringify(job.headers),
    job.body,
    job.bodyIsText,
    job.cost,
    job.maxAttempts,
    job.payloadVersion,
    job.expiresAt,
  ];
  const [inserted] = await inTransaction(
    database,
    async (client) => {
      // A run before this one was rolled back, or it would not be repeated.
      reservation.undone();
      const inserting = client.last<InsertedRow>(text, values(), 'insert-single');
      const [rows] = await Promise.all([inserting, client.begun]);
      return rows;
    },
    { ...intakePoints, atOnce: true, isDone: (rows) => rows.length > 0 },
  );
  if (inserted === undefined) {
    reservation.undone();
    return null;
  }
  const { created_at: createdAt, admitted, permit_ms: permitMs, slot_wait_ms: slotWaitMs } = inserted;
  if (admitted) reservation.admit({ batchId, tenant }, jobs, { permitMs, slotWaitMs: slotWaitMs ?? 0 });
  // Also where it was claimed: it was ready, and is told as that again.
  const verdict = { index: 0, key, keySource, verdict: 'accepted', jobId, jobState: 'ready', faults } as const;
  return { batchId, createdAt, correlationId, items: [verdict] };
}

interface InsertedRow {
  readonly created_at: Date;
  readonly admitted: boolean;
  readonly permit_ms: number | null;
  readonly slot_wait_ms: number | null;
}

const text = `select * from sluice.insert_single(${Array.from({ length: 24 }, (_, i) => `$${i + 1}`).join(', ')})`;
