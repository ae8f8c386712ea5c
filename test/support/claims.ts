/**
 * Claims and settles against a real store, without a service around them: definitions by the use case, jobs in bulk, and
 * workers that claim and settle by hand.
 */
import type { Test } from 'tap';
import { v7 as newId } from 'uuid';
import { putDefinition } from '../../src/application/manage-definitions.ts';
import { rateLimitSchema } from '../../src/domain/definitions.ts';
import type { ClaimedJob } from '../../src/domain/job.ts';
import { type Claim, claimJobs } from '../../src/postgres/claim-jobs.ts';
import type { Database } from '../../src/postgres/database.ts';
import { ensureLaneGroups } from '../../src/postgres/lane-groups.ts';
import { registerWorker } from '../../src/postgres/leases.ts';
import { type SettleRow, settleJobs } from '../../src/postgres/settle-jobs.ts';
import { inTransaction } from '../../src/postgres/transaction.ts';
import { createTestDatabase, type TestDatabaseOptions } from './database.ts';
import { definitionDependencies } from './definitions.ts';
import { eventually } from './eventually.ts';

export interface JobsToAdd {
  readonly count: number;
  readonly tenant?: string;
  readonly upstream?: string;
  readonly queue?: string;
  readonly partitionKey?: string;
  readonly cost?: number;
  readonly priority?: number;
  /** An SQL expression of an instant; absent: never. */
  readonly expiresAt?: string;
  /** An SQL expression of an instant; present: scheduled for it. */
  readonly runAt?: string;
}

export interface Claims {
  readonly database: Database;
  readonly connectionString: string;
  readonly workerId: string;
  putUpstream(name: string, definition?: object): Promise<void>;
  putLimit(name: string, definition: object): Promise<void>;
  putQueue(name: string, definition: object): Promise<void>;
  addJobs(jobs: JobsToAdd): Promise<void>;
  claim(slots: number, workerId?: string): Promise<Claim>;
  /** Claims until a claim gives nothing more at once, each with `slots`. */
  claimAll(slots: number): Promise<ClaimedJob[]>;
  /** Settles as succeeded, or with these fields instead; gives the ids that were still the worker's. */
  settle(jobs: readonly ClaimedJob[], fields?: Partial<SettleRow>, workerId?: string): Promise<Set<string>>;
  /** Moves the clock of the database, for all sessions of `database` opened by this bundle (needs `max: 1`). */
  setClock(us: number): Promise<void>;
  clockUs(): Promise<number>;
}

export async function useClaims(t: Test, options: TestDatabaseOptions = {}): Promise<Claims> {
  const { database, connectionString } = await createTestDatabase(t, { max: 4, ...options });
  const deps = definitionDependencies(database);
  const workerId = await newWorker(database);
  const claims: Claims = {
    database,
    connectionString,
    workerId,
    async putUpstream(name, definition = {}) {
      await putDefinition(deps, 'upstreams', name, { base_url: 'https://api.example.test', ...definition });
    },
    async putLimit(name, definition) {
      await putDefinition(deps, 'rate_limits', name, definition);
    },
    async putQueue(name, definition) {
      await putDefinition(deps, 'queues', name, definition);
    },
    addJobs: (jobs) => addJobs(database, jobs),
    claim: (slots, worker = workerId) => claimJobs(database, worker, slots),
    async claimAll(slots) {
      const jobs: ClaimedJob[] = [];
      for (let more = true; more; ) {
        const claim = await claimJobs(database, workerId, slots);
        jobs.push(...claim.jobs);
        more = claim.more && claim.jobs.length > 0;
      }
      return jobs;
    },
    settle: (jobs, fields, worker = workerId) =>
      settleJobs(
        database,
        worker,
        jobs.map((job) => settleRow(job, fields)),
      ),
    async setClock(us) {
      await database.query(`select set_config('sluice.now_us', $1, false)`, [us === 0 ? '' : String(us)]);
    },
    async clockUs() {
      const [row] = await database.query<{ us: number }>('select sluice.clock_us() as us');
      return row!.us;
    },
  };
  return claims;
}

/** A worker with a lease that outlives any test, whatever clock it sets. */
export async function newWorker(database: Database): Promise<string> {
  const workerId = newId();
  await registerWorker(database, { workerId, host: 'test', pid: process.pid, concurrency: 32 }, 1_000_000_000);
  return workerId;
}

async function addJobs(
  database: Database,
  {
    count,
    tenant = 'default',
    upstream = 'api',
    queue = 'default',
    partitionKey = '',
    cost = 1,
    priority = 0,
    expiresAt = 'null',
    runAt,
  }: JobsToAdd,
): Promise<void> {
  await inTransaction(database, async (client) => {
    const [groupId] = await ensureLaneGroups(client, [{ queue, upstream }]);
    if (groupId == null) throw new Error(`${queue} or ${upstream} is not defined`);
    const [lane] = await client.query<{ id: number }>(
      `insert into sluice.lanes as l (group_id, tenant, partition_key) values ($1, $3, $2)
       on conflict (group_id, partition_key, tenant) do update
          set next_at = case when l.closed_by = 'empty' then clock_timestamp() else l.next_at end,
              closed_by = case when l.closed_by = 'empty' then null else l.closed_by end
       returning id`,
      [groupId, partitionKey, tenant],
    );
    const added = `
      with batch as (
        insert into sluice.batches (id, tenant, total, accepted, duplicate, conflict, rejected)
        values ($8, $9, $7, $7, 0, 0, 0)),
      added as (
        insert into sluice.jobs (id, tenant, batch_id, lane_id, rank, seq, queue, upstream, partition_key, idempotency_key,
                                 key_source, method, path, body, cost, expires_at)
        select gen_random_uuid(), $9, $8, $1, $2, nextval('sluice.job_seq'), $3, $4, $5,
               'k' || currval('sluice.job_seq'), 'given', 'POST', '/x', '{}', $6, ${expiresAt}
          from generate_series(1, $7)
        returning id, lane_id, rank, seq, cost, expires_at, idempotency_key),
      item as (
        insert into sluice.stored_items (batch_id, index, idempotency_key, key_source, verdict, job_id)
        select $8, row_number() over (order by seq) - 1, idempotency_key, 'given', 'accepted', id from added),
      taken as (
        insert into sluice.idempotency_keys (tenant, key, fingerprint, job_id)
        select $9, idempotency_key, '\\x00', id from added)`;
    const values = [lane!.id, -priority, queue, upstream, partitionKey, cost, count, newId(), tenant];
    if (runAt === undefined) {
      await client.query(
        `${added} insert into sluice.ready_jobs (lane_id, rank, seq, job_id, cost, expires_at, eligible_at)
         select lane_id, rank, seq, id, cost, expires_at, clock_timestamp() from added`,
        values,
      );
    } else {
      await client.query(
        `${added} insert into sluice.parked_jobs (job_id, lane_id, rank, seq, state, due_at, cost, expires_at)
         select id, lane_id, rank, seq, 'scheduled', ${runAt}, cost, expires_at from added`,
        values,
      );
    }
  });
}

/** A settled success, with these fields instead. */
export function settleRow(job: ClaimedJob, fields: Partial<SettleRow> = {}): SettleRow {
  return {
    jobId: job.jobId,
    epoch: job.epoch,
    upstream: job.upstream,
    next: { kind: 'done', state: 'succeeded', reason: null, evidence: 'response' },
    outcome: 'success',
    charge: 'attempt',
    status: 200,
    sentAfterMs: 1,
    endedAfterMs: 2,
    retryAfterMs: null,
    retryAfterCapped: false,
    excerpt: 'ok',
    truncated: false,
    sha256: '00'.repeat(32),
    error: null,
    mayHaveHadEffect: true,
    outcomeUnknown: false,
    answeredWithoutThrottle: true,
    throttle: null,
    permitUnused: false,
    reconciliation: null,
    ...fields,
  };
}

/** What settles a job as throttled; `delayMs` null: the answer named no time. */
export function throttledFor(delayMs: number | null): Partial<SettleRow> {
  return {
    next: { kind: 'ready' },
    outcome: 'throttled',
    charge: 'throttle',
    status: 429,
    mayHaveHadEffect: false,
    answeredWithoutThrottle: false,
    throttle: { delayMs, capped: false, status: 429, header: delayMs === null ? null : String(delayMs / 1000) },
  };
}

/** Ids of all jobs in order of acceptance. */
export async function jobIds({ database }: Pick<Claims, 'database'>): Promise<string[]> {
  const rows = await database.query<{ id: string }>('select id from sluice.jobs order by seq');
  return rows.map(({ id }) => id);
}

/** Until another connection of this database waits for a lock. */
export async function waitsForALock({ database }: Pick<Claims, 'database'>): Promise<void> {
  await eventually('a wait for a lock', async () => {
    const rows = await database.query(
      `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
    );
    return rows.length > 0;
  });
}

/** A limit over all jobs there are, put by itself: nothing is published, and the lanes are open. */
export async function coverAllBy({ database }: Pick<Claims, 'database'>, name: string, rule: object): Promise<void> {
  const definition = rateLimitSchema.parse({ ...rule, upstreams: ['api'] });
  await putDefinition(definitionDependencies(database), 'rate_limits', name, definition);
  await database.query('update sluice.lane_groups set shared_limits = $1, next_at = to_timestamp(0)', [[name]]);
}

/** What settles a job whose call was answered 401, and blew its fuse. */
export const blewFuse = {
  next: { kind: 'held', reason: 'fuse' },
  outcome: 'rejected',
  charge: 'none',
  status: 401,
  mayHaveHadEffect: false,
} as const satisfies Partial<SettleRow>;

/** What settles a job whose outcome nobody knows, and a person has to decide. */
export const heldUnknown = {
  next: { kind: 'held', reason: 'outcome_unknown' },
  outcome: 'unknown',
  status: null,
  outcomeUnknown: true,
} as const satisfies Partial<SettleRow>;

/** What settles a job whose call surely never left: its permit goes back. */
export const neverLeft = {
  next: { kind: 'ready' },
  outcome: null,
  charge: 'none',
  permitUnused: true,
  mayHaveHadEffect: false,
} as const satisfies Partial<SettleRow>;
