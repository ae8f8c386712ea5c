/**
 * The tables, as drizzle sees them; `npm run db:generate` turns a change here into a migration under `drizzle/`.
 *
 * A job's request is written once (`jobs`) and never updated; its state is where its narrow row is: `ready_jobs`,
 * `running_jobs`, `parked_jobs` (scheduled or held) or `done_jobs`, in exactly one of them at any time. The rows move by
 * delete and insert, and carry the job's ledger (epoch, calls, attempts, throttles) with them.
 * `ready_jobs` is keyed as the claim reads it (lane, rank, seq): what is due in a closed lane is never in the way.
 * Storage parameters that drizzle cannot express are in the migration `storage_parameters`.
 */
import { sql } from 'drizzle-orm';
import {
  bigint,
  boolean,
  customType,
  doublePrecision,
  index,
  integer,
  jsonb,
  pgSchema,
  primaryKey,
  smallint,
  text,
  timestamp,
  uniqueIndex,
  uuid,
} from 'drizzle-orm/pg-core';

export const sluice = pgSchema('sluice');

const bytea = customType<{ data: Buffer }>({ dataType: () => 'bytea' });
/** Text compared code point by code point, whatever the database's locale. */
const exactText = customType<{ data: string }>({ dataType: () => 'text COLLATE "C"' });
const instant = (name: string) => timestamp(name, { withTimezone: true, mode: 'date' });
const clock = sql`clock_timestamp()`;

/** What a job has spent and sent so far; it travels with the job's state row. */
const ledger = () => ({
  /** Grows with every claim and every takeover; a write with an older one is stale. */
  epoch: integer('epoch').notNull().default(0),
  /** Calls started for this job, of every outcome. */
  calls: integer('calls').notNull().default(0),
  attemptsUsed: integer('attempts_used').notNull().default(0),
  throttles: integer('throttles').notNull().default(0),
  /** First call that may have had an effect (sent, and not answered by a throttle); null: none yet. */
  firstSentAt: instant('first_sent_at'),
  /** A call was sent and its answer never seen, and nothing has told since what it did. */
  outcomeUnknown: boolean('outcome_unknown').notNull().default(false),
});

/** Questions to the upstream in a row that did not tell what became of an unknown call; a person's retry begins anew. */
const reconcileFailures = () => integer('reconcile_failures').notNull().default(0);

// ---------------------------------------------------------------------------------------------- definitions

export const upstreams = sluice.table('upstreams', {
  name: exactText('name').primaryKey(),
  /** The definition as the admin API shows it, every default filled in; `paused` is part of it. */
  definition: jsonb('definition').notNull(),
  revision: integer('revision').notNull().default(0),
  /** Since when calls go elsewhere or carry the key elsewhere; a call admitted before may have had its effect there. */
  targetChangedAt: instant('target_changed_at'),
  updatedAt: instant('updated_at').notNull().default(clock),
});

export const queues = sluice.table('queues', {
  name: exactText('name').primaryKey(),
  definition: jsonb('definition').notNull(),
  revision: integer('revision').notNull().default(0),
  updatedAt: instant('updated_at').notNull().default(clock),
});

/** In columns, not jsonb: the claim reads them. */
export const rateLimits = sluice.table('rate_limits', {
  name: exactText('name').primaryKey(),
  /** null: no start limit; 0: paused. */
  limit: integer('limit'),
  perSeconds: integer('per_seconds').notNull(),
  algorithm: text('algorithm', { enum: ['sliding_window', 'fixed_window', 'token_bucket'] }).notNull(),
  burst: integer('burst').notNull().default(0),
  slackMs: integer('slack_ms').notNull().default(25),
  maxInFlight: integer('max_in_flight'),
  byPartition: boolean('by_partition').notNull().default(false),
  sharesCooldown: boolean('shares_cooldown').notNull().default(false),
  upstreams: text('upstreams').array().notNull(),
  queues: text('queues').array().notNull(),
  revision: integer('revision').notNull().default(0),
  /** Set by DELETE: covers nothing any more, but its windows count until they are empty. */
  deletedAt: instant('deleted_at'),
  updatedAt: instant('updated_at').notNull().default(clock),
});

/** One row, bumped by every change of a definition; caches compare it. */
export const definitionVersion = sluice.table('definition_version', {
  onlyRow: boolean('only_row').primaryKey().default(true),
  version: bigint('version', { mode: 'number' }).notNull().default(0),
});

// ---------------------------------------------------------------------------------------------- lanes and windows

/**
 * A queue at an upstream: what all its lanes have in common. Coverage, ordering and pauses are worked out when a definition
 * changes, so that the claim reads one row. `next_at` in the future closes all lanes of the group at once.
 */
export const laneGroups = sluice.table(
  'lane_groups',
  {
    id: integer('id').primaryKey().generatedAlwaysAsIdentity(),
    queue: exactText('queue').notNull(),
    upstream: exactText('upstream').notNull(),
    fifo: boolean('fifo').notNull().default(false),
    /** Limits with one window for all, and limits with a window per partition key; by name, sorted. */
    sharedLimits: text('shared_limits').array().notNull().default(sql`'{}'`),
    partitionLimits: text('partition_limits').array().notNull().default(sql`'{}'`),
    /** A covering limit has `max_in_flight`, so leases must be countable. */
    counted: boolean('counted').notNull().default(false),
    nextAt: instant('next_at').notNull().default(clock),
    /** Why it is closed until then: a kind of `explain`, and the name of what closes it. */
    closedBy: text('closed_by'),
    closedName: text('closed_name'),
  },
  (t) => [uniqueIndex('lane_groups_queue_upstream_key').on(t.queue, t.upstream)],
);

export const lanes = sluice.table(
  'lanes',
  {
    id: bigint('id', { mode: 'number' }).primaryKey().generatedAlwaysAsIdentity(),
    groupId: integer('group_id').notNull(),
    tenant: exactText('tenant').notNull(),
    /** Empty: jobs without a partition key. */
    partitionKey: exactText('partition_key').notNull(),
    /** When it may be looked at next; lanes are served in this order, so it is also the place in the turn. infinity: empty. */
    nextAt: instant('next_at').notNull().default(clock),
    closedBy: text('closed_by'),
    closedName: text('closed_name'),
    /** Since when it has had nothing due; told by the claim that found it so. */
    emptiedAt: instant('emptied_at'),
  },
  (t) => [
    uniqueIndex('lanes_group_partition_tenant').on(t.groupId, t.partitionKey, t.tenant),
    index('lanes_turn').on(t.groupId, t.nextAt),
  ],
);

/** Live state of a fleet rate limit, one row for a limit and a partition; see domain/rate-window.ts for the arithmetic. */
export const rateWindows = sluice.table(
  'rate_windows',
  {
    limitName: exactText('limit_name').notNull(),
    partitionKey: exactText('partition_key').notNull().default(''),
    algorithm: text('algorithm').notNull(),
    /** Sub-window width and how long an admission counts, in microseconds: what `ring` was written with. */
    widthUs: bigint('width_us', { mode: 'number' }).notNull().default(0),
    horizonUs: bigint('horizon_us', { mode: 'number' }).notNull().default(0),
    ring: integer('ring').array(),
    /** Absolute numbers of the newest and the oldest sub-window that count. */
    head: bigint('head', { mode: 'number' }).notNull().default(0),
    tail: bigint('tail', { mode: 'number' }).notNull().default(0),
    used: bigint('used', { mode: 'number' }).notNull().default(0),
    /** fixed_window: when it opened; token_bucket: when `level` was true. */
    anchorAt: instant('anchor_at'),
    level: doublePrecision('level').notNull().default(0),
    paused: boolean('paused').notNull().default(false),
  },
  // Not unique: a check would step over every version of a row that vacuum has not come for, with each new page of them. Who makes
  // a row holds its advisory lock (window-rows.ts), or the definitions' lock alone (steer-rate-windows.ts).
  (t) => [index('rate_windows_name').on(t.limitName, t.partitionKey)],
);

/** An upstream (or a limit that shares cooldowns), or one partition of it, that said 429/503; with the evidence. */
export const cooldowns = sluice.table(
  'cooldowns',
  {
    kind: text('kind', { enum: ['upstream', 'limit'] }).notNull(),
    name: exactText('name').notNull(),
    partitionKey: exactText('partition_key').notNull().default(''),
    until: instant('until').notNull(),
    /** How many calls admitted since `until` may be in flight; null: full rate. */
    ramp: integer('ramp'),
    /** Throttles in a row that named no time. */
    inRow: integer('in_row').notNull().default(0),
    reason: text('reason').notNull(),
    status: integer('status'),
    header: text('header'),
    jobId: uuid('job_id'),
    at: instant('at').notNull(),
  },
  (t) => [primaryKey({ name: 'cooldowns_pkey', columns: [t.kind, t.name, t.partitionKey] })],
);

// ---------------------------------------------------------------------------------------------- batches and jobs

export const batches = sluice.table(
  'batches',
  {
    id: uuid('id').primaryKey(),
    tenant: exactText('tenant').notNull(),
    correlationId: text('correlation_id'),
    /** The request's own Idempotency-Key and the SHA-256 of its body. */
    requestKey: exactText('request_key'),
    requestFingerprint: bytea('request_fingerprint'),
    total: integer('total').notNull(),
    accepted: integer('accepted').notNull(),
    duplicate: integer('duplicate').notNull(),
    conflict: integer('conflict').notNull(),
    rejected: integer('rejected').notNull(),
    cancelledAt: instant('cancelled_at'),
    createdAt: instant('created_at').notNull().default(clock),
    /** Retention has seen that no key of its items is kept any more. */
    keysGone: boolean('keys_gone').notNull().default(false),
  },
  (t) => [
    uniqueIndex('batches_request_key').on(t.tenant, t.requestKey).where(sql`${t.requestKey} is not null`),
    // Retention's walks, the oldest first.
    index('batches_age').on(t.createdAt, t.id),
    index('batches_keys_left').on(t.createdAt, t.id).where(sql`not ${t.keysGone}`),
    index('batches_newest').on(t.tenant, t.id),
    index('batches_cancelled').on(t.cancelledAt).where(sql`${t.cancelledAt} is not null`),
  ],
);

/**
 * Batches that came as a stream and have not been ended: they are incomplete for as long as their row is here. In a table of
 * its own, so that a chunk rewrites no more than this narrow row and the counts.
 */
export const batchStreams = sluice.table('batch_streams', {
  batchId: uuid('batch_id').primaryKey(),
  /** The stream that may add to it; a chunk of any other is refused. */
  holder: uuid('holder').notNull(),
  /** Until when nobody else may take it over; in the past: since when nothing was heard of it. */
  heldUntil: instant('held_until').notNull(),
});

/**
 * Batches of which an answer has blown the fuse, with the evidence; see fuses.ts. A row stays with its batch, so that an
 * answer from before a resume is known as such.
 */
export const blownFuses = sluice.table(
  'blown_fuses',
  {
    batchId: uuid('batch_id').primaryKey(),
    /** `holding`, `resuming`: its jobs are being moved, step by step. */
    state: text('state', { enum: ['holding', 'held', 'resuming', 'resumed'] }).notNull(),
    jobId: uuid('job_id').notNull(),
    status: smallint('status').notNull(),
    at: instant('at').notNull(),
    /** When a person last said that it may go on; null: not since it blew. */
    resumedAt: instant('resumed_at'),
  },
  (t) => [index('blown_fuses_open').on(t.state).where(sql`${t.state} <> 'resumed'`)],
);

/**
 * Large batches past their retention: gone for everybody, their items and jobs still being cleared away piece by piece. In a
 * table of its own, so that no reader has to know of it and whoever runs next goes on where a killed process stopped.
 */
export const retiredBatches = sluice.table('retired_batches', {
  batchId: uuid('batch_id').primaryKey(),
  /** Items below this index are done with. */
  nextIndex: integer('next_index').notNull().default(0),
  /** When to look at it; later where a job came back to life meanwhile. */
  dueAt: instant('due_at').notNull().default(clock),
});

/**
 * Items that have a row of their own: all but the accepted ones of a JSON batch, which are told from their jobs
 * (`jobs.item_index`). Both together are the view `batch_items` (drizzle/0012_items_of_jobs.sql): whoever reads it asks for
 * an index from 0 on, since a job without an item of its own shows there as well, at -1. Only duplicates, conflicts and
 * rejected items, and what came as a stream, are to be looked for here.
 */
export const storedItems = sluice.table(
  'stored_items',
  {
    batchId: uuid('batch_id').notNull(),
    index: integer('index').notNull(),
    /** null: none was given, or it was not a legal key. */
    idempotencyKey: exactText('idempotency_key'),
    keySource: text('key_source', { enum: ['given', 'derived'] }),
    verdict: text('verdict', { enum: ['accepted', 'duplicate', 'conflict', 'rejected'] }).notNull(),
    jobId: uuid('job_id'),
    /** Of the job when the verdict was given, so that a replay is the first answer again. */
    jobState: text('job_state'),
    /** JSON text: [{pointer, code, message}]. */
    errors: text('errors'),
    /** SHA-256 of the line that brought it, in a batch that came as a stream: a stream that is resumed is held against it. */
    line: bytea('line'),
  },
  (t) => [
    primaryKey({ name: 'batch_items_pkey', columns: [t.batchId, t.index] }),
    // Which other batches a job must stay for.
    index('batch_items_duplicates').on(t.jobId).where(sql`${t.verdict} = 'duplicate'`),
  ],
);

/**
 * SQL: a number for a tenant's jobs in one queue at one upstream. An index compares it faster than three texts, and no intake
 * has to look it up. Two kinds may have the same one, so whoever finds jobs by it looks at the texts as well.
 */
export function jobsKind(tenant: string, queue: string, upstream: string): string {
  return `hashtextextended(${tenant}, hashtextextended(${queue}, hashtextextended(${upstream}, 0)))`;
}

/** The call to make. Written once; only a person's retry touches it again (retry-jobs.ts). */
export const jobs = sluice.table(
  'jobs',
  {
    id: uuid('id').primaryKey(),
    tenant: exactText('tenant').notNull(),
    batchId: uuid('batch_id').notNull(),
    laneId: bigint('lane_id', { mode: 'number' }).notNull(),
    /** -priority: with seq the place in the lane. */
    rank: integer('rank').notNull(),
    /** Order of acceptance. */
    seq: bigint('seq', { mode: 'number' }).notNull(),
    queue: exactText('queue').notNull(),
    upstream: exactText('upstream').notNull(),
    /** Empty: none. */
    partitionKey: exactText('partition_key').notNull().default(''),
    idempotencyKey: exactText('idempotency_key').notNull(),
    keySource: text('key_source', { enum: ['given', 'derived'] }).notNull(),
    method: text('method').notNull(),
    path: text('path').notNull(),
    /** JSON text of the item's own headers, names in lower case; null: none. */
    headers: text('headers'),
    /** JSON text of `body`, or of `body_text` as a JSON string (so NUL is escaped); null: no body. */
    body: text('body'),
    bodyIsText: boolean('body_is_text').notNull().default(false),
    cost: integer('cost').notNull().default(1),
    /** null: the upstream's. */
    maxAttempts: integer('max_attempts'),
    payloadVersion: text('payload_version'),
    correlationId: text('correlation_id'),
    runAt: instant('run_at'),
    expiresAt: instant('expires_at'),
    createdAt: instant('created_at').notNull().default(clock),
    /** When a person last sent it on its way again; null: never. */
    retriedAt: instant('retried_at'),
    /** Where later than the first send: from here the age of the key counts, because a person has decided that it may go out again. */
    keyAgeFrom: instant('key_age_from'),
    /** How many times a person has asked for a new outbound key. */
    freshKeys: integer('fresh_keys').notNull().default(0),
    /** Of the item that brought it, where that has no row of its own; else -1: a row has it, or the item is gone. */
    itemIndex: integer('item_index').notNull().default(-1),
  },
  (t) => [
    index('jobs_batch').on(t.batchId, t.itemIndex, t.id),
    // Ids ascend with acceptance, so these give the newest first; see list-jobs.ts for which of them leads when.
    index('jobs_newest').on(sql.raw(jobsKind('tenant', 'queue', 'upstream')), t.id),
    index('jobs_correlation').on(t.correlationId, t.id).where(sql`${t.correlationId} is not null`),
  ],
);

/** Order of acceptance; only accepted items take from it. */
export const jobSequence = sluice.sequence('job_seq', { cache: 1 });

/** Outlives the job's rows: a key is known until it expires. */
export const idempotencyKeys = sluice.table(
  'idempotency_keys',
  {
    tenant: exactText('tenant').notNull(),
    key: exactText('key').notNull(),
    fingerprint: bytea('fingerprint').notNull(),
    jobId: uuid('job_id').notNull(),
    createdAt: instant('created_at').notNull().default(clock),
  },
  (t) => [primaryKey({ name: 'idempotency_keys_pkey', columns: [t.tenant, t.key] })],
);

/**
 * Keys that have expired before their job's rows went, so that a job is found by its key as long as it is there: an index of
 * `jobs` by key would be paid for by every accepted item. A key that was used again and again has several.
 */
export const formerKeys = sluice.table(
  'former_keys',
  {
    tenant: exactText('tenant').notNull(),
    key: exactText('key').notNull(),
    jobId: uuid('job_id').notNull(),
  },
  (t) => [primaryKey({ name: 'former_keys_pkey', columns: [t.tenant, t.key, t.jobId] })],
);

/** Due now; read by the claim in key order. */
export const readyJobs = sluice.table(
  'ready_jobs',
  {
    laneId: bigint('lane_id', { mode: 'number' }).notNull(),
    rank: integer('rank').notNull(),
    seq: bigint('seq', { mode: 'number' }).notNull(),
    jobId: uuid('job_id').notNull(),
    cost: integer('cost').notNull(),
    expiresAt: instant('expires_at'),
    /** Since when it could have run: the start of its wait for a slot. */
    eligibleAt: instant('eligible_at').notNull(),
    ...ledger(),
    reconcileFailures: reconcileFailures(),
  },
  (t) => [
    primaryKey({ name: 'ready_jobs_pkey', columns: [t.laneId, t.rank, t.seq] }),
    index('ready_jobs_expiry').on(t.expiresAt).where(sql`${t.expiresAt} is not null`),
  ],
);

/** Held by a worker, under its lease. */
export const runningJobs = sluice.table(
  'running_jobs',
  {
    jobId: uuid('job_id').primaryKey(),
    laneId: bigint('lane_id', { mode: 'number' }).notNull(),
    groupId: integer('group_id').notNull(),
    rank: integer('rank').notNull(),
    seq: bigint('seq', { mode: 'number' }).notNull(),
    cost: integer('cost').notNull(),
    expiresAt: instant('expires_at'),
    eligibleAt: instant('eligible_at').notNull(),
    workerId: uuid('worker_id').notNull(),
    admittedAt: instant('admitted_at').notNull(),
    /**
     * Windows it was charged to, so that a permit that was not used can go back: `s` (shared) or `p` (of its partition key),
     * microseconds of the charge, name of the limit, as in `s:1790000000000000:stripe,p:…`; null: none.
     */
    charged: text('charged'),
    /** In an index of leases, because a limit, a ramp or an order counts them. */
    counted: boolean('counted').notNull().default(false),
    /** The claim that brought it ahead of its slot; while that has a row in `claims_ahead`, its call has not been started. */
    claimAhead: uuid('claim_ahead'),
    ...ledger(),
    reconcileFailures: reconcileFailures(),
  },
  (t) => [index('running_jobs_counted').on(t.groupId, t.laneId).where(sql`${t.counted}`)],
);

/**
 * Claims that brought jobs ahead of the slots of their worker, which may not start these before the row is gone: so jobs that a
 * worker leaves behind are known not to have been called.
 */
export const claimsAhead = sluice.table('claims_ahead', {
  id: uuid('id').primaryKey(),
  workerId: uuid('worker_id').notNull(),
});

/** Not due: scheduled (a time will wake it) or held (a person decides). */
export const parkedJobs = sluice.table(
  'parked_jobs',
  {
    jobId: uuid('job_id').primaryKey(),
    laneId: bigint('lane_id', { mode: 'number' }).notNull(),
    rank: integer('rank').notNull(),
    seq: bigint('seq', { mode: 'number' }).notNull(),
    state: text('state', { enum: ['scheduled', 'held'] }).notNull(),
    reason: text('reason'),
    /** null: held. */
    dueAt: instant('due_at'),
    /** Of one that a fuse holds: when it would have been due; null: at once. */
    resumeAt: instant('resume_at'),
    cost: integer('cost').notNull(),
    expiresAt: instant('expires_at'),
    ...ledger(),
    reconcileFailures: reconcileFailures(),
  },
  (t) => [
    index('parked_jobs_due').on(t.dueAt).where(sql`${t.dueAt} is not null`),
    index('parked_jobs_lane').on(t.laneId, t.seq),
    index('parked_jobs_expiry').on(t.expiresAt).where(sql`${t.expiresAt} is not null`),
    index('parked_jobs_held').on(t.jobId).where(sql`${t.state} = 'held'`),
  ],
);

export const doneJobs = sluice.table(
  'done_jobs',
  {
    jobId: uuid('job_id').primaryKey(),
    state: text('state', { enum: ['succeeded', 'failed', 'cancelled', 'expired'] }).notNull(),
    reason: text('reason'),
    evidence: text('evidence', { enum: ['response', 'receipt', 'reconciled'] }),
    status: smallint('status'),
    endedAt: instant('ended_at').notNull(),
    ...ledger(),
  },
  (t) => [
    index('done_jobs_ended').using('brin', t.endedAt),
    // Most jobs succeed, and pay nothing for it.
    index('done_jobs_unsuccessful').on(t.state, t.jobId).where(sql`${t.state} <> 'succeeded'`),
  ],
);

export const attempts = sluice.table(
  'attempts',
  {
    jobId: uuid('job_id').notNull(),
    number: integer('number').notNull(),
    epoch: integer('epoch').notNull(),
    workerId: uuid('worker_id').notNull(),
    outcome: text('outcome').notNull(),
    charged: text('charged', { enum: ['attempt', 'throttle', 'none'] }).notNull(),
    status: smallint('status'),
    startedAt: instant('started_at').notNull(),
    sentAt: instant('sent_at'),
    endedAt: instant('ended_at').notNull(),
    slotWaitMs: integer('slot_wait_ms'),
    retryAfterMs: bigint('retry_after_ms', { mode: 'number' }),
    retryAfterCapped: boolean('retry_after_capped').notNull().default(false),
    excerpt: text('excerpt'),
    truncated: boolean('truncated').notNull().default(false),
    sha256: bytea('sha256'),
    error: text('error'),
    /** What a call that was given up as unknown turned out to have done, told by its worker afterwards. */
    lateOutcome: text('late_outcome'),
    lateStatus: smallint('late_status'),
    lateAt: instant('late_at'),
  },
  (t) => [
    primaryKey({ name: 'attempts_pkey', columns: [t.jobId, t.number] }),
    index('attempts_started').using('brin', t.startedAt),
  ],
);

/** Calls that asked the upstream what became of an unknown call; at most one in each lease. */
export const reconciliations = sluice.table(
  'reconciliations',
  {
    jobId: uuid('job_id').notNull(),
    epoch: integer('epoch').notNull(),
    startedAt: instant('started_at').notNull(),
    /** null: it surely never left. */
    sentAt: instant('sent_at'),
    /** When its verdict was known. */
    at: instant('at').notNull(),
    /** null: no answer came. */
    status: smallint('status'),
    verdict: text('verdict', { enum: ['applied', 'absent', 'throttled', 'unclear'] }).notNull(),
    error: text('error'),
  },
  (t) => [primaryKey({ name: 'reconciliations_pkey', columns: [t.jobId, t.epoch] })],
);

/**
 * What is left of a job under its key: written when the receiver's own evidence ends it, else when retention deletes its
 * rows before the key expires. Until then a receipt is read from the job's own rows.
 */
export const receipts = sluice.table(
  'receipts',
  {
    jobId: uuid('job_id').primaryKey(),
    tenant: exactText('tenant').notNull(),
    idempotencyKey: exactText('idempotency_key').notNull(),
    state: text('state', { enum: ['succeeded', 'failed', 'cancelled', 'expired'] }).notNull(),
    reason: text('reason'),
    evidence: text('evidence', { enum: ['response', 'receipt', 'reconciled'] }),
    /** How many calls were made. */
    attempts: integer('attempts').notNull(),
    status: smallint('status'),
    excerpt: text('excerpt'),
    truncated: boolean('truncated').notNull().default(false),
    sha256: bytea('sha256'),
    /** What the receiver said with its evidence. */
    note: text('note'),
    firstSentAt: instant('first_sent_at'),
    endedAt: instant('ended_at').notNull(),
  },
  (t) => [index('receipts_ended').on(t.endedAt)],
);

// ---------------------------------------------------------------------------------------------- API keys

/** Keys that clients send; each acts for one tenant. Of the key itself only a hash is kept (application/api-keys.ts). */
export const apiKeys = sluice.table('api_keys', {
  /** Part of the key's text, so that it can be looked up without its secret part. */
  id: uuid('id').primaryKey(),
  tenant: exactText('tenant').notNull(),
  name: text('name').notNull(),
  scopes: text('scopes', { enum: ['submit', 'read', 'receipts', 'admin'] })
    .array()
    .notNull(),
  /** SHA-256 of the whole key. */
  hash: bytea('hash').notNull(),
  createdAt: instant('created_at').notNull().default(clock),
});

// ---------------------------------------------------------------------------------------------- workers

/** A worker process and the lease under which it holds all its running jobs. */
export const workers = sluice.table('workers', {
  id: uuid('id').primaryKey(),
  host: text('host').notNull(),
  pid: integer('pid').notNull(),
  concurrency: integer('concurrency').notNull(),
  leaseExpiresAt: instant('lease_expires_at').notNull(),
  startedAt: instant('started_at').notNull().default(clock),
});

/** Which text of each stored function is installed; see postgres/migrate.ts. */
export const storedFunctions = sluice.table('stored_functions', {
  name: text('name').primaryKey(),
  sha256: text('sha256').notNull(),
});
