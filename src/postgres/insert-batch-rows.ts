/**
 * The rows of a batch: jobs, their state rows, and every item with its verdict, by one statement whatever their number. An
 * accepted item of a JSON batch has no row: its job tells all of it (the view `batch_items`).
 * What is to run later, on the database's clock, is parked; the rest is ready, its lanes are woken and the workers told (at
 * most one NOTIFY a commit; a hint only). `job_seq` gives a number to each accepted item, in their order, and to no other.
 * The caller holds the lanes FOR KEY SHARE.
 */

import type { Fault } from '../domain/errors.ts';
import { firstLedger, type KeySource, type Verdict } from '../domain/job.ts';
import type { RequestedJob, RequestKey, SubmittedItem } from '../domain/submission.ts';
import { arrayLiteral, repeatedArrayLiteral, sparseArrayLiteral } from './array-literal.ts';
import type { StoredState } from './job-state.ts';
import type { TransactionClient } from './transaction.ts';
import { intakePayload } from './wake-ups.ts';

export interface BatchToInsert {
  readonly tenant: string;
  readonly correlationId: string | null;
  readonly requestKey: RequestKey | null;
  /** The definitions that the items were checked against: under others nothing is stored. null: whatever is in force. */
  readonly definitionsVersion: number | null;
  /** In order. An item without a job, or with faults, cannot be accepted; with a job it may still be a duplicate. */
  readonly items: readonly SubmittedItem[];
}

/** Whose job an item stands for. */
export type JobBehind =
  /** It was there before this batch; its state, or null: its rows are gone. */
  | { readonly kind: 'stored'; readonly state: StoredState }
  /** This batch makes it: for this item, or for one before it with the same key. */
  | { readonly kind: 'new'; readonly job: RequestedJob };

/** An item as it goes into the tables. */
export interface BatchRow {
  readonly key: string | null;
  readonly keySource: KeySource | null;
  readonly verdict: Verdict;
  readonly jobId: string | null;
  readonly behind: JobBehind | null;
  /** Where a new job goes; null unless accepted. */
  readonly laneId: number | null;
  readonly faults: readonly Fault[];
}

/** The batch whose row the transaction has written, and where in it the rows go. */
export interface RowsPlace {
  readonly batchId: string;
  readonly tenant: string;
  readonly correlationId: string | null;
  /** Index of the first one. */
  readonly first: number;
  /** Hex SHA-256 of the lines they came as; null: they are a batch of their own, made at the time of its row. */
  readonly lines: readonly string[] | null;
}

/** How a new job begins where it does not wait to be claimed. */
export type NewJobState = 'scheduled' | 'held';

/** The jobs of a batch as the statement takes them; most of what it is sent. */
export interface WrittenJobs {
  /** How many jobs they are. */
  readonly count: number;
  /** The parameters from `rank` to `expires_at`. */
  readonly parameters: readonly string[];
}

/** An element for each item; null where it brings no job. Needs no verdicts, so that it can be done while they are decided. */
export function writeJobs(jobs: ReadonlyArray<RequestedJob | null>): WrittenJobs {
  type Value = string | number | boolean | null;
  const repeated = (value: (job: RequestedJob) => Value) => repeatedArrayLiteral(jobs, value);
  const sparse = (value: (job: RequestedJob) => Value) => sparseArrayLiteral(jobs, value);
  return {
    count: countJobs(jobs),
    parameters: [
      repeated((job) => -job.priority),
      repeated((job) => job.queue),
      repeated((job) => job.upstream),
      repeated((job) => job.partitionKey ?? ''),
      repeated((job) => job.method),
      repeated((job) => job.path),
      sparse((job) => (job.headers === null ? null : JSON.stringify(job.headers))),
      sparse((job) => job.body),
      repeated((job) => job.bodyIsText),
      repeated((job) => job.cost),
      sparse((job) => job.maxAttempts),
      sparse((job) => job.payloadVersion),
      sparse((job) => job.expiresAt),
    ],
  };
}

function countJobs(jobs: ReadonlyArray<RequestedJob | null>): number {
  return jobs.reduce((count, job) => (job === null ? count : count + 1), 0);
}

/**
 * Inserts them in this order, by the last statement before the COMMIT.
 * @param acceptable the jobs of all items that could be accepted; those that were not do not go in
 * @param held a fuse holds the batch, and so what comes in
 * @param workerId to claim them for (claim-at-intake.ts): all are accepted, ready and in one lane
 */
export async function insertBatchRows(
  client: TransactionClient,
  batch: RowsPlace,
  rows: readonly BatchRow[],
  acceptable: WrittenJobs,
  held: boolean,
  workerId: string | null,
): Promise<InsertedRows> {
  const accepted = rows.map(({ verdict, behind }) =>
    verdict === 'accepted' && behind?.kind === 'new' ? behind.job : null,
  );
  const { parameters } = countJobs(accepted) === acceptable.count ? acceptable : writeJobs(accepted);
  const values = [
    batch.batchId,
    batch.tenant,
    batch.correlationId,
    arrayLiteral(rows.map(({ key }) => key)),
    sparseArrayLiteral(rows, ({ keySource }) => keySource),
    repeatedArrayLiteral(rows, ({ verdict }) => verdict),
    sparseArrayLiteral(rows, ({ jobId }) => jobId),
    sparseArrayLiteral(rows, ({ behind }) => (behind?.kind === 'stored' ? (behind.state ?? gone) : null)),
    sparseArrayLiteral(rows, ({ faults }) => (faults.length === 0 ? null : JSON.stringify(faults))),
    sparseArrayLiteral(rows, ({ behind }) => (behind?.kind === 'new' ? behind.job.runAt : null)),
    repeatedArrayLiteral(rows, ({ laneId }) => laneId),
    ...parameters,
    batch.first,
    batch.lines === null ? '{}' : arrayLiteral(batch.lines),
    batch.lines !== null,
    held,
  ];
  const [result] = await (workerId === null
    ? client.last<InsertedRow>(insertText, values, 'insert-batch-rows')
    : client.last<InsertedRow>(insertAndClaimText, [...values, workerId], 'insert-and-claim-batch-rows'));
  return {
    parked: new Map((result!.parked ?? []).map((id) => [id, held ? 'held' : 'scheduled'])),
    admitted: result!.admitted ?? null,
  };
}

/** How a claim let jobs in: as in ClaimedJob. */
export interface Admission {
  readonly permitMs: number | null;
  readonly slotWaitMs: number;
}

export interface InsertedRows {
  /** The new jobs that are not ready. */
  readonly parked: ReadonlyMap<string, NewJobState>;
  /** How the claim admitted all of them; null: none was tried, or it admitted nothing. */
  readonly admitted: Admission | null;
}

interface InsertedRow {
  readonly parked: string[] | null;
  readonly admitted?: Admission | null;
}

/** Stands, on its way to the statement, for the state of a job whose rows are gone: null is that of a new job. */
const gone = 'gone';

/**
 * The batch's creation is the one "now" of all its rows; of a batch that grows each part has its own. `unnest` gives rows in the order of the arrays, so `job_seq` follows
 * the order of the items.
 */
const insertTextWith = ({ claims }: { claims: boolean }) => `
  with batch as materialized (
    select case when $27::boolean then clock_timestamp() else b.created_at end as now
      from sluice.batches b where b.id = $1),
  item as materialized (
    select u.place, u.key, u.key_source, coalesce(u.verdict, ($6::text[])[1]) as verdict, u.job_id, u.job_state, u.errors,
           u.run_at, coalesce(u.lane_id, ($11::bigint[])[1]) as lane_id, coalesce(u.rank, ($12::int[])[1]) as rank,
           coalesce(u.queue, ($13::text[])[1]) as queue, coalesce(u.upstream, ($14::text[])[1]) as upstream,
           coalesce(u.partition_key, ($15::text[])[1]) as partition_key, coalesce(u.method, ($16::text[])[1]) as method,
           coalesce(u.path, ($17::text[])[1]) as path, u.headers, u.body,
           coalesce(u.body_is_text, ($20::boolean[])[1]) as body_is_text, coalesce(u.cost, ($21::int[])[1]) as cost,
           u.max_attempts, u.payload_version, u.expires_at, u.line
      from unnest($4::text[], $5::text[], $6::text[], $7::uuid[], $8::text[], $9::text[], $10::timestamptz[], $11::bigint[],
                  $12::int[], $13::text[], $14::text[], $15::text[], $16::text[], $17::text[], $18::text[], $19::text[],
                  $20::boolean[], $21::int[], $22::int[], $23::text[], $24::timestamptz[], $26::text[])
           with ordinality u (key, key_source, verdict, job_id, job_state, errors, run_at, lane_id, rank, queue, upstream,
                              partition_key, method, path, headers, body, body_is_text, cost, max_attempts,
                              payload_version, expires_at, line, place)),
  job as (
    insert into sluice.jobs (id, tenant, batch_id, lane_id, rank, seq, queue, upstream, partition_key, idempotency_key,
                             key_source, method, path, headers, body, body_is_text, cost, max_attempts, payload_version,
                             correlation_id, run_at, expires_at, created_at, item_index)
    select i.job_id, $2, $1, i.lane_id, i.rank, nextval('sluice.job_seq'), i.queue, i.upstream, i.partition_key, i.key,
           i.key_source, i.method, i.path, i.headers, i.body, i.body_is_text, i.cost, i.max_attempts, i.payload_version,
           $3, i.run_at, i.expires_at, b.now, case when $27 then -1 else $25::int + i.place - 1 end
      from item i cross join batch b
     where i.verdict = 'accepted'
    returning id, lane_id, rank, seq, cost, run_at, expires_at, created_at),
  ${claims ? `${claimText},` : ''}
  ready as (
    insert into sluice.ready_jobs (lane_id, rank, seq, job_id, cost, expires_at, eligible_at)
    select j.lane_id, j.rank, j.seq, j.id, j.cost, j.expires_at, j.created_at
      from job j where not $28::boolean and (j.run_at is null or j.run_at <= j.created_at)${claims ? ' and not exists (select 1 from claim)' : ''}
    returning lane_id),
  parked as (
    insert into sluice.parked_jobs (job_id, lane_id, rank, seq, state, reason, due_at, resume_at, cost, expires_at)
    select j.id, j.lane_id, j.rank, j.seq, case when $28 then 'held' else 'scheduled' end, case when $28 then 'fuse' end,
           case when not $28 then j.run_at end, case when $28 then j.run_at end, j.cost, case when not $28 then j.expires_at end
      from job j where $28 or j.run_at > j.created_at
    returning job_id),
  stored_item as (
    insert into sluice.stored_items (batch_id, index, idempotency_key, key_source, verdict, job_id, job_state, errors, line)
    select $1, $25::int + i.place - 1, i.key, i.key_source, i.verdict, i.job_id,
           case when i.job_id is null or i.verdict = 'conflict' then null
                else nullif(coalesce(i.job_state, case when $28 then 'held' when i.run_at > b.now then 'scheduled' else 'ready' end),
                            '${gone}') end,
           i.errors, decode(i.line, 'hex')
      from item i cross join batch b
     where $27 or i.verdict <> 'accepted'),
  woken as materialized (
    select array_agg(r.lane_id) as lanes from (select distinct lane_id from ready) r)
  select (select array_agg(p.job_id) from parked p) as parked,${claims ? admittedColumn : ''}
         case when w.lanes is not null then sluice.wake_lanes(w.lanes, clock_timestamp()) end,
         case when w.lanes is not null then pg_notify('sluice_work', '${intakePayload}') end
    from woken w`;

/** Materialized, so that the function runs once. */
const claimText = `claim as materialized (
    select a.* from batch b
     cross join (select min(i.lane_id) as lane_id, sum(i.cost) as cost, min(i.expires_at) as expires_at from item i) all_of
     cross join lateral sluice.claim_at_intake($29::uuid, all_of.lane_id, all_of.cost, all_of.expires_at, b.now, b.now) a),
  running as (
    insert into sluice.running_jobs (job_id, lane_id, group_id, rank, seq, cost, expires_at, eligible_at, worker_id, admitted_at, charged, epoch)
    select j.id, j.lane_id, c.group_id, j.rank, j.seq, j.cost, j.expires_at, j.created_at, $29, c.admitted_at, c.charged, ${firstLedger.epoch}
      from job j cross join claim c)`;
const admittedColumn = `
         (select json_build_object('permitMs', c.permit_ms, 'slotWaitMs', c.slot_wait_ms) from claim c) as admitted,`;

const insertText = insertTextWith({ claims: false });
const insertAndClaimText = insertTextWith({ claims: true });
