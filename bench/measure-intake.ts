/**
 * Items accepted per second by POST /v1/batches, beside the least that could be done for them: the same rows put into the
 * same tables by `unnest`, without a check, a verdict, or a thought for who else has the key, from parameters that are ready
 * before the clock starts. Runs of both alternate, with as many in flight, so that what else the machine does falls on both.
 */
import { createHash, randomUUID } from 'node:crypto';
import { Pool, request } from 'undici';
import { v7 as newId } from 'uuid';
import { arrayLiteral } from '../src/postgres/array-literal.ts';
import { inTransaction, type TransactionClient } from '../src/postgres/transaction.ts';
import { systemClock as clock } from '../src/system/clock.ts';
import { batches, items } from './calls-to-make.ts';
import { type Spread, spread } from './figures.ts';
import { declareUpstream } from './service-client.ts';
import type { BenchDatabase, Stage } from './stage.ts';

export interface IntakeFigures {
  readonly batchSize: number;
  readonly itemsPerRun: number;
  readonly rates: readonly IntakeRates[];
}

/** Items per second. */
export interface IntakeRates {
  readonly inFlight: number;
  /** All four tables, nothing but the statements. */
  readonly raw: Spread;
  readonly http: Spread;
}

export interface IntakeOptions {
  readonly runs: number;
  readonly count: number;
  readonly batchSize: number;
}

/** Batches on their way at once. */
const inFlights = [1, 4];
const warmUpItems = 10_000;

export async function measureIntake(stage: Stage, { runs, count, batchSize }: IntakeOptions): Promise<IntakeFigures> {
  const target = await stage.createDatabase('intake');
  const service = await stage.startService(target, { env: { SLUICE_ROLES: 'api' } });
  await declareUpstream(service.url, 'api', 'http://127.0.0.1:9');
  const postItems = (label: string, items: number, inFlight: number) => {
    const bodies = batches('api', label, items, { size: batchSize });
    return seconds(() => postAll(service.url, bodies, inFlight));
  };
  const insertItems = (label: string, items: number, inFlight: number) => {
    const parameters = rawBatches(label, items, batchSize);
    return seconds(() => insertAll(target, parameters, inFlight));
  };

  const rates: IntakeRates[] = [];
  for (const inFlight of inFlights) {
    const raw: number[] = [];
    const http: number[] = [];
    await postItems(`warm-${inFlight}`, warmUpItems, inFlight);
    await insertItems(`warm-raw-${inFlight}`, warmUpItems, inFlight);
    for (let run = 0; run < runs; run += 1) {
      raw.push(count / (await insertItems(`raw-${inFlight}-${run}`, count, inFlight)));
      http.push(count / (await postItems(`http-${inFlight}-${run}`, count, inFlight)));
    }
    rates.push({ inFlight, raw: spread(raw), http: spread(http) });
  }
  await service.stop();
  return { batchSize, itemsPerRun: count, rates };
}

async function seconds(work: () => Promise<void>): Promise<number> {
  const startMs = clock.monotonicMs();
  await work();
  return (clock.monotonicMs() - startMs) / 1000;
}

/** Sends all bodies, `inFlight` at a time; throws where not every item was accepted. */
export async function postAll(url: string, bodies: readonly string[], inFlight: number): Promise<void> {
  const pool = new Pool(url, { connections: inFlight });
  const left = bodies.values();
  const send = async () => {
    for (const body of left) {
      const answer = await request(`${url}/v1/batches`, {
        dispatcher: pool,
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body,
      });
      const text = await answer.body.text();
      if (answer.statusCode !== 202) throw new Error(`answered ${answer.statusCode}: ${text.slice(0, 500)}`);
      if (!/"duplicate":0,"conflict":0,"rejected":0/.test(text))
        throw new Error(`not all accepted: ${text.slice(0, 500)}`);
    }
  };
  await Promise.all(Array.from({ length: inFlight }, send));
  await pool.close();
}

interface RawBatch {
  readonly batchId: string;
  readonly count: number;
  /** Array literals. */
  readonly ids: string;
  readonly keys: string;
  readonly fingerprints: string;
  readonly bodies: string;
}

function rawBatches(prefix: string, count: number, batchSize: number): RawBatch[] {
  const all = items(prefix, count);
  return Array.from({ length: Math.ceil(count / batchSize) }, (_, i) => {
    const part = all.slice(i * batchSize, (i + 1) * batchSize);
    return {
      batchId: newId(),
      count: part.length,
      ids: arrayLiteral(part.map(() => newId())),
      keys: arrayLiteral(part.map((item) => item.idempotency_key)),
      fingerprints: arrayLiteral(part.map(() => createHash('sha256').update(randomUUID()).digest('hex'))),
      bodies: arrayLiteral(part.map((item) => JSON.stringify(item.body))),
    };
  });
}

/** A lane of its own that no claim knows: these rows are never run. */
const laneId = 999_999_999;

/** Each batch a transaction of four statements, `inFlight` at a time. */
async function insertAll({ database }: BenchDatabase, all: readonly RawBatch[], inFlight: number): Promise<void> {
  const left = all.values();
  const insert = async () => {
    for (const batch of left) await inTransaction(database, (client) => insertBatch(client, batch));
  };
  await Promise.all(Array.from({ length: inFlight }, insert));
}

async function insertBatch(
  client: TransactionClient,
  { batchId, count, ids, keys, fingerprints, bodies }: RawBatch,
): Promise<void> {
  await client.query(
    `insert into sluice.idempotency_keys (tenant, key, fingerprint, job_id)
         select 'default', u.key, decode(u.fingerprint, 'hex'), u.id
           from unnest($1::text[], $2::text[], $3::uuid[]) u (key, fingerprint, id)`,
    [keys, fingerprints, ids],
    'raw-keys',
  );
  await client.query(
    `insert into sluice.batches (id, tenant, total, accepted, duplicate, conflict, rejected)
         values ($1, 'default', $2, $2, 0, 0, 0)`,
    [batchId, count],
    'raw-batch',
  );
  await client.query(
    `insert into sluice.jobs (id, tenant, batch_id, lane_id, rank, seq, queue, upstream, idempotency_key, key_source,
                                  method, path, body, item_index)
         select u.id, 'default', $1, ${laneId}, 0, nextval('sluice.job_seq'), 'default', 'api', u.key, 'given', 'POST', '/charges', u.body,
                u.place - 1
           from unnest($2::uuid[], $3::text[], $4::text[]) with ordinality u (id, key, body, place)`,
    [batchId, ids, keys, bodies],
    'raw-jobs',
  );
  await client.query(
    `insert into sluice.ready_jobs (lane_id, rank, seq, job_id, cost, eligible_at)
     select lane_id, rank, seq, id, cost, created_at from sluice.jobs where batch_id = $1`,
    [batchId],
    'raw-ready',
  );
}
