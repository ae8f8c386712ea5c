/**
 * What a run left behind, read from the three who know: the service (over HTTP, as any client), its database (attempts and
 * answers) and the upstream (what arrived, and what took effect). Nothing is judged here.
 */
import pg from 'pg';
import type { RequestLog } from '../../../src/simulator/request-log.ts';
import { systemClock as clock } from '../../../src/system/clock.ts';
import { type BatchStatus, TestClient } from '../../support/client.ts';
import { type BrokenInvariant, brokenInvariants } from '../../support/invariants.ts';
import type { Standstill } from './replicas.ts';
import type { SentBatch } from './submitter.ts';

/** A call on record. */
export interface RecordedCall {
  readonly jobId: string;
  /** As the header Sluice-Attempt has it. */
  readonly number: number;
  readonly workerId: string;
  readonly outcome: string;
  /** When the claim admitted it, by the database's clock, in milliseconds since 1970. */
  readonly admittedAt: number;
}

/** What became of an accepted item, as the service answers. */
export interface AnsweredItem {
  readonly key: string;
  readonly jobId: string;
  readonly state: string | null;
  readonly status: number | null;
  /** Body of the answer on record; null: none. */
  readonly excerpt: string | null;
}

export interface Audit {
  readonly max_starts: number;
  readonly bound: number;
}

export interface Books {
  readonly batches: readonly BatchStatus[];
  /** Of batches that have not ended: what holds them, in words. */
  readonly holdUps: readonly string[];
  /** Items with the verdict `accepted`, over all batches. */
  readonly accepted: readonly AnsweredItem[];
  /** Rows of batches in the database: more than were answered are batches that nobody was told of. */
  readonly storedBatches: number;
  readonly storedJobs: number;
  readonly calls: readonly RecordedCall[];
  readonly log: RequestLog;
  readonly audit: Audit;
  readonly broken: readonly BrokenInvariant[];
  readonly standstills: readonly Standstill[];
}

export interface BooksOptions {
  /** A replica that is up. */
  readonly url: string;
  /** Past whatever lies in between. */
  readonly databaseUrl: string;
  readonly sent: readonly SentBatch[];
  readonly rateLimit: string;
  readonly log: RequestLog;
  readonly standstills: readonly Standstill[];
}

/** Reads in flight at once. */
const readsAtOnce = 4;
/** A read may still meet a connection that fell silent: it is refused after the service's own limit, and then asked again. */
const mostRefusals = 5;
const refusalPauseMs = 1_000;
/** The server ends a session that fell silent in mid-transaction after 15 s: it was told nothing of its client. */
const silentSessionMs = 20_000;
/** Batches that have not ended and are looked into. */
const mostExplained = 5;

export async function readBooks(options: BooksOptions): Promise<Books> {
  const { url, databaseUrl, sent, rateLimit, log, standstills } = options;
  const client = new TestClient(url);
  const batches: BatchStatus[] = [];
  const items: Array<{ key: string; jobId: string; state: string | null; status: number | null }> = [];
  const left = sent.values();
  const read = async () => {
    for (const { batchId } of left) {
      batches.push(await patiently(() => client.batch(batchId)));
      for (const item of await patiently(() => client.items(batchId))) {
        if (item.verdict !== 'accepted') continue;
        const { idempotency_key: key, job_id: jobId, job_state: state = null, response_status: status = null } = item;
        items.push({ key: key ?? '', jobId: jobId ?? '', state, status });
      }
    }
  };
  await Promise.all(Array.from({ length: readsAtOnce }, read));
  const audit = await patiently(() => client.call<Audit>('GET', `/admin/rate-windows/${rateLimit}/audit`));
  const unended = batches.filter(({ status }) => status !== 'completed').slice(0, mostExplained);
  const holdUps: string[] = [];
  for (const batch of unended) holdUps.push(await whatHolds(client, batch));
  const stored = await readStore(databaseUrl);
  return {
    batches,
    holdUps,
    accepted: items.map((item) => ({ ...item, excerpt: stored.excerpts.get(item.jobId) ?? null })),
    storedBatches: stored.batches,
    storedJobs: stored.jobs,
    calls: stored.calls,
    log,
    audit,
    broken: await brokenInvariants(databaseUrl, [], silentSessionMs),
    standstills,
  };
}

async function patiently<T>(read: () => Promise<T>): Promise<T> {
  for (let refusals = 0; ; refusals += 1) {
    try {
      return await read();
    } catch (error) {
      if (refusals === mostRefusals) throw error;
      await clock.sleep(refusalPauseMs);
    }
  }
}

interface Explanation {
  readonly waiting_on: ReadonlyArray<{ readonly kind: string; readonly name: string | null; readonly detail: string }>;
}

async function whatHolds(client: TestClient, { batch_id, status, jobs }: BatchStatus): Promise<string> {
  const item = (await client.items(batch_id)).find(
    ({ job_state }) => !['succeeded', 'failed', 'cancelled', 'expired'].includes(job_state ?? 'succeeded'),
  );
  const counts = Object.entries(jobs).filter(([, count]) => count > 0);
  const states = counts.map(([state, count]) => `${count} ${state}`).join(', ');
  if (item?.job_id == null) return `batch ${batch_id} is ${status}: ${states}`;
  const { waiting_on } = await client.call<Explanation>('GET', `/v1/jobs/${item.job_id}/explain`);
  const why = waiting_on.map(({ kind, name, detail }) => `${kind} ${name ?? ''}: ${detail}`).join('; ');
  return `batch ${batch_id} is ${status}: ${states}; job ${item.job_id} waits on ${why || 'nothing'}`;
}

interface Store {
  readonly batches: number;
  readonly jobs: number;
  readonly calls: RecordedCall[];
  /** Of successes, by job. */
  readonly excerpts: Map<string, string>;
}

async function readStore(databaseUrl: string): Promise<Store> {
  const client = new pg.Client({ connectionString: databaseUrl, application_name: 'chaos' });
  client.on('error', () => undefined);
  await client.connect();
  try {
    const { rows: counts } = await client.query<{ batches: number; jobs: number }>(
      'select (select count(*)::int from sluice.batches) as batches, (select count(*)::int from sluice.jobs) as jobs',
    );
    const { rows } = await client.query<RecordedCall & { excerpt: string | null }>(
      `select job_id as "jobId", number, worker_id as "workerId", outcome,
              extract(epoch from started_at)::float8 * 1000 as "admittedAt",
              case when outcome = 'success' then excerpt end as excerpt
         from sluice.attempts`,
    );
    const excerpts = new Map<string, string>();
    for (const { jobId, excerpt } of rows) if (excerpt !== null) excerpts.set(jobId, excerpt);
    return { batches: counts[0]!.batches, jobs: counts[0]!.jobs, calls: rows, excerpts };
  } finally {
    await client.end();
  }
}
