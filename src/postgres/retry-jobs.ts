/**
 * Sending jobs on their way again, because a person says so: failed, cancelled, expired and held ones become ready (or
 * scheduled, before their `run_at`), with new budgets, in their old place; calls and epoch go on.
 *
 * Invariants: a job leaves `done_jobs` or `parked_jobs` only under its row's lock, which keeps retention and other retries
 * out; while it is unfinished its key is its own: one that was forgotten meanwhile is taken again, or the job stays where it
 * is; its lane is there, made anew where idleness has swept it, and is woken.
 * The age of the key counts from here, unless the job had ended and nobody knows what its calls did: then the claim's own
 * check of that age stands, and a key that may be forgotten ends in `held`, for a person to decide with open eyes.
 * Index used: primary keys. Lock order: advisory 7305001 (shared), done_jobs and parked_jobs by id, idempotency_keys, batches,
 * lane_groups, lanes by id.
 */
import { fingerprint } from '../domain/idempotency.ts';
import type { JobState, Method } from '../domain/job.ts';
import type { Database } from './database.ts';
import { definitionsLock, ensureLaneGroups } from './lane-groups.ts';
import { ensureLanes, type LaneKey, laneName } from './lanes.ts';
import { inTransaction, type TransactionClient } from './transaction.ts';

/** States that a job can be sent on its way again from. */
export type RetryableState = Extract<JobState, 'failed' | 'cancelled' | 'expired' | 'held'>;

export type RetryOutcome =
  | { readonly kind: 'retried' }
  /** It is in none of the states asked for, or not the tenant's. */
  | { readonly kind: 'elsewhere' }
  /** A new key was asked for, but what a call under the old one did is not known. */
  | { readonly kind: 'outcome_unknown' }
  /** Its queue or its upstream is not defined any more. */
  | { readonly kind: 'undefined'; readonly queue: string; readonly upstream: string }
  /** Its key was forgotten, and is another job's now. */
  | { readonly kind: 'key_taken' };

export interface RetryRequest {
  readonly tenant: string;
  readonly jobIds: readonly string[];
  readonly from: readonly RetryableState[];
  readonly freshKey: boolean;
}

/** Sends these jobs on their way again; the outcome of each, in their order. At most some hundreds at a time. */
export async function retryJobs(database: Database, request: RetryRequest): Promise<RetryOutcome[]> {
  return inTransaction(
    database,
    async (client) => {
      await client.query('select pg_advisory_xact_lock_shared($1)', [definitionsLock]);
      const jobs = await lockJobs(client, request);
      const outcomes = new Map<string, RetryOutcome>();
      const clear = jobs.filter(({ id, reason, outcomeUnknown }) => {
        const refused = request.freshKey && (outcomeUnknown || reason === 'outcome_unknown');
        if (refused) outcomes.set(id, { kind: 'outcome_unknown' });
        return !refused;
      });
      const defined = await inDefinedGroups(client, clear, outcomes);
      const going = await withTheirKeys(client, request.tenant, defined, outcomes);
      if (going.length > 0) await move(client, request, going);
      for (const { id } of going) outcomes.set(id, { kind: 'retried' });
      return request.jobIds.map((id): RetryOutcome => outcomes.get(id) ?? { kind: 'elsewhere' });
    },
    { before: 'decision.before_commit', after: 'decision.after_commit' },
  );
}

interface LockedJob {
  readonly id: string;
  readonly reason: string | null;
  readonly outcomeUnknown: boolean;
  readonly queue: string;
  readonly upstream: string;
  readonly partitionKey: string;
}

interface JobInGroup extends LockedJob {
  readonly groupId: number;
}

async function lockJobs(client: TransactionClient, { tenant, jobIds, from }: RetryRequest): Promise<LockedJob[]> {
  const lock = (table: string) =>
    client.query<LockedJob>(
      `select s.job_id as id, s.reason, s.outcome_unknown as "outcomeUnknown", j.queue, j.upstream,
              j.partition_key as "partitionKey"
         from sluice.${table} s join sluice.jobs j on j.id = s.job_id
        where s.job_id = any ($1::uuid[]) and j.tenant = $2 and s.state = any ($3::text[])
        order by s.job_id for update of s`,
      [jobIds, tenant, from],
      `lock-${table}-to-retry`,
    );
  return [...(await lock('done_jobs')), ...(await lock('parked_jobs'))];
}

async function inDefinedGroups(
  client: TransactionClient,
  jobs: readonly LockedJob[],
  outcomes: Map<string, RetryOutcome>,
): Promise<JobInGroup[]> {
  if (jobs.length === 0) return [];
  const pairs = new Map(jobs.map(({ queue, upstream }) => [`${queue}/${upstream}`, { queue, upstream }]));
  const ids = await ensureLaneGroups(client, [...pairs.values()]);
  const groups = new Map([...pairs.keys()].map((name, place) => [name, ids[place] ?? null]));
  return jobs.flatMap((job) => {
    const { queue, upstream } = job;
    const groupId = groups.get(`${queue}/${upstream}`) ?? null;
    if (groupId !== null) return [{ ...job, groupId }];
    outcomes.set(job.id, { kind: 'undefined', queue, upstream });
    return [];
  });
}

/** Those whose key is theirs, be it anew. */
async function withTheirKeys(
  client: TransactionClient,
  tenant: string,
  jobs: readonly JobInGroup[],
  outcomes: Map<string, RetryOutcome>,
): Promise<JobInGroup[]> {
  const forgotten = await client.query<RequestRow>(
    `select j.id, j.batch_id, j.idempotency_key, j.upstream, j.method, j.path, j.headers, j.body, j.body_is_text
       from sluice.jobs j
      where j.id = any ($2::uuid[])
        and not exists (select 1 from sluice.idempotency_keys k
                         where k.tenant = $1 and k.key = j.idempotency_key and k.job_id = j.id)
      order by j.idempotency_key`,
    [tenant, jobs.map(({ id }) => id)],
    'find-forgotten-keys',
  );
  for (const row of forgotten) {
    const taken = await client.query(
      `with taken as (
         insert into sluice.idempotency_keys (tenant, key, fingerprint, job_id) values ($1, $2, decode($3, 'hex'), $4)
             on conflict (tenant, key) do nothing returning job_id)
       update sluice.batches b set keys_gone = false from taken where b.id = $5 returning b.id`,
      [tenant, row.idempotency_key, fingerprintOf(row), row.id, row.batch_id],
    );
    if (taken.length === 0) outcomes.set(row.id, { kind: 'key_taken' });
  }
  return jobs.filter(({ id }) => !outcomes.has(id));
}

interface RequestRow {
  readonly id: string;
  readonly batch_id: string;
  readonly idempotency_key: string;
  readonly upstream: string;
  readonly method: Method;
  readonly path: string;
  readonly headers: string | null;
  readonly body: string | null;
  readonly body_is_text: boolean;
}

function fingerprintOf({ upstream, method, path, headers, body, body_is_text: isText }: RequestRow): string {
  const value: unknown = body === null ? null : JSON.parse(body);
  return fingerprint({
    upstream,
    method,
    path,
    headers: headers === null ? null : (JSON.parse(headers) as Record<string, string>),
    body: body === null ? null : isText ? { text: value as string } : { json: value },
  });
}

async function move(
  client: TransactionClient,
  { tenant, freshKey }: RetryRequest,
  jobs: readonly JobInGroup[],
): Promise<void> {
  const keys = new Map<string, LaneKey>(
    jobs.map(({ groupId, partitionKey }) => [laneName({ groupId, partitionKey }), { groupId, partitionKey }]),
  );
  const ids = await ensureLanes(client, tenant, [...keys.values()]);
  const lanes = new Map([...keys.keys()].map((name, place) => [name, ids[place]!]));
  await client.query(
    moveText,
    [jobs.map(({ id }) => id), jobs.map((job) => lanes.get(laneName(job))!), freshKey],
    'retry-jobs',
  );
}

/** A person's word does not make a deadline that has passed come back: it is dropped. */
const moveText = `
  with clock as materialized (select sluice.at_us(sluice.clock_us()) as now),
  asked as materialized (select * from unnest($1::uuid[], $2::bigint[]) u (job_id, lane_id)),
  ended as (
    delete from sluice.done_jobs d using asked a where d.job_id = a.job_id
    returning d.job_id, d.epoch, d.calls, d.first_sent_at, d.outcome_unknown, not d.outcome_unknown as renewed),
  held as (
    delete from sluice.parked_jobs p using asked a where p.job_id = a.job_id
    returning p.job_id, p.epoch, p.calls, p.first_sent_at, p.outcome_unknown, true as renewed),
  gone as (select * from ended union all select * from held),
  job as (
    update sluice.jobs j
       set lane_id = a.lane_id, retried_at = c.now, key_age_from = case when g.renewed then c.now else j.key_age_from end,
           fresh_keys = j.fresh_keys + case when $3 then 1 else 0 end,
           expires_at = case when j.expires_at > c.now then j.expires_at end
      from gone g join asked a on a.job_id = g.job_id cross join clock c
     where j.id = g.job_id
    returning j.id, j.lane_id, j.rank, j.seq, j.cost, j.run_at, j.expires_at, j.run_at > c.now as later),
  ready as (
    insert into sluice.ready_jobs (lane_id, rank, seq, job_id, cost, expires_at, eligible_at, epoch, calls, first_sent_at,
                                   outcome_unknown)
    select j.lane_id, j.rank, j.seq, j.id, j.cost, j.expires_at, c.now, g.epoch, g.calls,
           case when not $3 then g.first_sent_at end, g.outcome_unknown
      from job j join gone g on g.job_id = j.id cross join clock c where j.later is not true
    returning lane_id),
  scheduled as (
    insert into sluice.parked_jobs (job_id, lane_id, rank, seq, state, due_at, cost, expires_at, epoch, calls, first_sent_at,
                                    outcome_unknown)
    select j.id, j.lane_id, j.rank, j.seq, 'scheduled', j.run_at, j.cost, j.expires_at, g.epoch, g.calls,
           case when not $3 then g.first_sent_at end, g.outcome_unknown
      from job j join gone g on g.job_id = j.id where j.later
    returning lane_id)
  select sluice.wake_lanes(array_agg(w.lane_id), max(c.now)), pg_notify('sluice_work', '')
    from (select distinct r.lane_id from ready r union select s.lane_id from scheduled s) w cross join clock c`;
