/**
 * Items accepted per second by POST /v1/batches, beside the least that could be done for them: the same rows put into the
 * same tables by `unnest`, from parameters that are ready before the clock starts. Runs of both alternate, so that what else
 * the machine does falls on both.
 */
import { createHash, randomUUID } from 'node:crypto';
import { Pool, request } from 'undici';
import { v7 as newId } from 'uuid';
import { arrayLiteral } from '../src/postgres/array-literal.ts';
import { inTransaction } from '../src/postgres/transaction.ts';
import { systemClock as clock } from '../src/system/clock.ts';
import { batches, items } from './calls-to-make.ts';
import { type Spread, spread } from './figures.ts';
import { declareUpstream } from './service-client.ts';
import type { BenchDatabase, Stage } from './stage.ts';

const batchSize = 1000;

export interface IntakeFigures {
  readonly batchSize: number;
  readonly itemsPerRun: number;
  /** Items per second, all five tables, nothing but the statements. */
  readonly raw: Spread;
  /** Items per second over HTTP, by requests in flight. */
  readonly http: Readonly<Record<string, Spread>>;
}

export async function measureIntake(
  stage: Stage,
  { runs, count }: { runs: number; count: number },
): Promise<IntakeFigures> {
  const target = await stage.createDatabase('intake');
  const service = await stage.startService(target, { env: { SLUICE_ROLES: 'api' } });
  await declareUpstream(service.url, 'api', 'http://127.0.0.1:9');
  const inFlight = [1, 4];
  for (const lanes of inFlight)
    await postAll(service.url, batches('api', `warm-${lanes}`, 5 * batchSize, batchSize), lanes);
  await insertAll(target, rawBatches('warm', 5 * batchSize));

  const raw: number[] = [];
  const http = new Map<number, number[]>(inFlight.map((lanes) => [lanes, []]));
  for (let run = 0; run < runs; run += 1) {
    const parameters = rawBatches(`raw-${run}`, count);
    raw.push(count / (await seconds(() => insertAll(target, parameters))));
    for (const lanes of inFlight) {
      const bodies = batches('api', `http-${run}-${lanes}`, count, batchSize);
      http.get(lanes)!.push(count / (await seconds(() => postAll(service.url, bodies, lanes))));
    }
  }
  await service.stop();
  return {
    batchSize,
    itemsPerRun: count,
    raw: spread(raw),
    http: Object.fromEntries([...http].map(([lanes, rates]) => [String(lanes), spread(rates)])),
  };
}

async function seconds(work: () => Promise<void>): Promise<number> {
  const startMs = clock.monotonicMs();
  await work();
  return (clock.monotonicMs() - startMs) / 1000;
}

/** Sends all bodies, `inFlight` at a time. */
async function postAll(url: string, bodies: readonly string[], inFlight: number): Promise<void> {
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

function rawBatches(prefix: string, count: number): RawBatch[] {
  const all = items(prefix, count);
  return Array.from({ length: count / batchSize }, (_, i) => {
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

/** One batch after the other, each a transaction of five statements. */
async function insertAll({ database }: BenchDatabase, all: readonly RawBatch[]): Promise<void> {
  for (const { batchId, count, ids, keys, fingerprints, bodies } of all) {
    await inTransaction(database, async (client) => {
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
                                  method, path, body)
         select u.id, 'default', $1, ${laneId}, 0, nextval('sluice.job_seq'), 'default', 'api', u.key, 'given', 'POST', '/charges', u.body
           from unnest($2::uuid[], $3::text[], $4::text[]) u (id, key, body)`,
        [batchId, ids, keys, bodies],
        'raw-jobs',
      );
      await client.query(
        `insert into sluice.ready_jobs (lane_id, rank, seq, job_id, cost, eligible_at)
         select ${laneId}, 0, currval('sluice.job_seq') - $2::int + u.place, u.id, 1, now()
           from unnest($1::uuid[]) with ordinality u (id, place)`,
        [ids, count],
        'raw-ready',
      );
      await client.query(
        `insert into sluice.batch_items (batch_id, index, idempotency_key, key_source, verdict, job_id, job_state)
         select $1, u.place - 1, u.key, 'given', 'accepted', u.id, 'ready'
           from unnest($2::uuid[], $3::text[]) with ordinality u (id, key, place)`,
        [batchId, ids, keys],
        'raw-items',
      );
    });
  }
}
