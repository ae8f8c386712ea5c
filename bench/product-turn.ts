/** The product's own claim and settle, without calls: a claimed job is settled as a success at once. */
import { randomUUID } from 'node:crypto';
import { putDefinition } from '../src/application/manage-definitions.ts';
import type { ClaimedJob } from '../src/domain/job.ts';
import { claimJobs } from '../src/postgres/claim-jobs.ts';
import type { Database } from '../src/postgres/database.ts';
import { ensureLaneGroups } from '../src/postgres/lane-groups.ts';
import { registerWorker } from '../src/postgres/leases.ts';
import { type SettleRow, settleJobs } from '../src/postgres/settle-jobs.ts';
import { inTransaction } from '../src/postgres/transaction.ts';
import { systemClock as clock } from '../src/system/clock.ts';

const workerId = randomUUID();
/** Outlives any bench. */
const leaseSeconds = 86_400;

/** An upstream `api`, under these limits, and a worker. */
export async function prepareProduct(database: Database, limits: Readonly<Record<string, object>> = {}): Promise<void> {
  const deps = { database, clock, secrets: new Set<string>() };
  await putDefinition(deps, 'upstreams', 'api', { base_url: 'http://127.0.0.1:9', allow_private_addresses: true });
  for (const [name, limit] of Object.entries(limits)) {
    await putDefinition(deps, 'rate_limits', name, { ...limit, upstreams: ['api'] });
  }
  await newWorker(database, workerId);
}

export async function newWorker(database: Database, id: string = randomUUID()): Promise<string> {
  await registerWorker(database, { workerId: id, host: 'bench', pid: process.pid, concurrency: 1000 }, leaseSeconds);
  return id;
}

/** Empties the tables of jobs and puts this many into one open lane. */
export async function addProductJobs(database: Database, count: number): Promise<void> {
  await database.query(
    'truncate sluice.jobs, sluice.attempts, sluice.ready_jobs, sluice.running_jobs, sluice.parked_jobs, sluice.done_jobs, sluice.lanes',
  );
  const [groupId] = await inTransaction(database, (client) =>
    ensureLaneGroups(client, [{ queue: 'default', upstream: 'api' }]),
  );
  await database.query(
    `with lane as (
       insert into sluice.lanes (group_id, tenant, partition_key) values ($1, 'default', '') returning id),
     added as (
       insert into sluice.jobs (id, tenant, batch_id, lane_id, rank, seq, queue, upstream, idempotency_key, key_source, method, path, body)
       select gen_random_uuid(), 'default', '00000000-0000-7000-8000-000000000000', lane.id, 0, nextval('sluice.job_seq'), 'default', 'api',
              'k-' || n, 'given', 'POST', '/charges', '{"amount":' || n || ',"currency":"eur","note":"a note of some length"}'
         from lane cross join generate_series(1, $2::int) n
       returning id, lane_id, seq)
     insert into sluice.ready_jobs (lane_id, rank, seq, job_id, cost, eligible_at)
     select lane_id, 0, seq, id, 1, clock_timestamp() from added`,
    [groupId, count],
  );
}

/** One claim and the settle of what it gave; gives how many. */
export async function productTurn(database: Database, size: number): Promise<number> {
  const { jobs } = await claimJobs(database, workerId, size);
  if (jobs.length > 0) await settleAll(database, workerId, jobs);
  return jobs.length;
}

/** Settles all as successes of this worker. */
export async function settleAll(database: Database, worker: string, jobs: readonly ClaimedJob[]): Promise<void> {
  await settleJobs(database, worker, jobs.map(success));
}

const sha256 = '07'.repeat(32);

function success({ jobId, epoch, upstream }: ClaimedJob): SettleRow {
  return {
    jobId,
    epoch,
    upstream,
    next: { kind: 'done', state: 'succeeded', reason: null, evidence: 'response' },
    outcome: 'success',
    charge: 'attempt',
    status: 200,
    sentAfterMs: 1.25,
    endedAfterMs: 3.5,
    retryAfterMs: null,
    retryAfterCapped: false,
    excerpt: '{"effect":12345,"key":"run-0-12345"}',
    truncated: false,
    sha256,
    error: null,
    mayHaveHadEffect: true,
    outcomeUnknown: false,
    answeredWithoutThrottle: true,
    throttle: null,
    permitUnused: false,
    reconciliation: null,
  };
}
