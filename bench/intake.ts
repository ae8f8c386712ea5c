/**
 * Intake: items per second over real HTTP, answered and durable, beside a raw `unnest` insert of the same rows into the same
 * tables in the same run. Rounds of both alternate, so that whatever else the machine does meets both; medians are printed.
 *
 * `DATABASE_URL`: use this PostgreSQL, which must be one to throw away; without it the embedded one, durable as shipped.
 * The service is a process of its own without workers, so that nothing but intake runs.
 */
import { availableParallelism, cpus } from 'node:os';
import pg from 'pg';
import { v7 as newId } from 'uuid';
import { ApiClient } from '../src/cli/api-client.ts';
import { startReplica } from '../src/cli/demo/replica.ts';
import { Stage } from '../src/cli/demo/stage.ts';
import { fingerprint } from '../src/domain/idempotency.ts';
import { arrayLiteral } from '../src/postgres/array-literal.ts';
import { systemClock } from '../src/system/clock.ts';

const itemsPerBatch = 10_000;
const warmUps = 2;
const rounds = 7;
/** Clients that each keep one batch on its way. */
const clientCounts = [1, 4];
const call = { upstream: 'bench', method: 'POST', path: '/v1/charges' } as const;

interface BenchItem {
  readonly idempotency_key: string;
  readonly body: object;
}

let batches = 0;

/** Keys that no batch had before, and bodies of about 110 bytes. */
function newItems(): BenchItem[] {
  batches += 1;
  return Array.from({ length: itemsPerBatch }, (_, i) => ({
    idempotency_key: `order-${batches}-${i}`,
    body: {
      amount: i,
      currency: 'eur',
      customer: `cus_${batches}_${i}`,
      description: 'what the charge is for, in a few words',
    },
  }));
}

async function main(): Promise<void> {
  const stage = await Stage.open();
  try {
    const databaseUrl = process.env.DATABASE_URL ?? (await stage.startDatabase());
    const service = await startReplica({
      environment: {
        PATH: process.env.PATH,
        DATABASE_URL: databaseUrl,
        HOST: '127.0.0.1',
        PORT: '0',
        SLUICE_ROLES: 'api',
      },
      cwd: stage.logFolder,
      nodeFlags: ['--import', import.meta.resolve('tsx')],
      onLine: tellOfTrouble,
    });
    try {
      await measure(databaseUrl, service.url);
    } finally {
      await service.stop();
    }
  } finally {
    await stage.close(false);
  }
}

/** Lines of the service's log below a warning are of no use here. */
function tellOfTrouble(line: string): void {
  if (!/^\{"level":[12345]0\b/.test(line) || /^\{"level":[456]0\b/.test(line)) console.error(line);
}

async function measure(databaseUrl: string, url: string): Promise<void> {
  const pool = new pg.Pool({ connectionString: databaseUrl, max: Math.max(...clientCounts) });
  const client = new ApiClient(url);
  await client.call('PUT', '/admin/upstreams/bench', { body: { base_url: 'https://api.example.test' } });
  await describeMachine(pool);
  for (const clients of clientCounts) {
    const http: number[] = [];
    const raw: number[] = [];
    for (let round = 0; round < warmUps + rounds; round++) {
      const overHttp = await itemsPerSecond(clients, () => prepareHttp(client));
      const byInsert = await itemsPerSecond(clients, () => prepareRaw(pool));
      if (round < warmUps) continue;
      http.push(overHttp);
      raw.push(byInsert);
    }
    report(clients, http, raw);
  }
  await pool.end();
}

/** Every client sends one batch; what is sent is made before the clock starts. */
async function itemsPerSecond(clients: number, prepare: () => () => Promise<void>): Promise<number> {
  const sends = Array.from({ length: clients }, prepare);
  const start = systemClock.monotonicMs();
  await Promise.all(sends.map((send) => send()));
  return (clients * itemsPerBatch * 1000) / (systemClock.monotonicMs() - start);
}

function prepareHttp(client: ApiClient): () => Promise<void> {
  const text = JSON.stringify({ defaults: call, items: newItems() });
  return async () => {
    const answer = await client.call<{ counts: { accepted: number } }>('POST', '/v1/batches', { body: text });
    if (answer.counts.accepted !== itemsPerBatch) throw new Error(`accepted ${JSON.stringify(answer.counts)}`);
  };
}

/** What the batch above leaves in the database, without a check, a verdict, or a thought for who else has the key. */
function prepareRaw(pool: pg.Pool): () => Promise<void> {
  const items = newItems();
  const batchId = newId();
  const ids = arrayLiteral(items.map(() => newId()));
  const keys = arrayLiteral(items.map((item) => item.idempotency_key));
  const bodies = arrayLiteral(items.map((item) => JSON.stringify(item.body)));
  const prints = arrayLiteral(items.map(({ body }) => fingerprint({ ...call, headers: null, body: { json: body } })));
  return async () => {
    const client = await pool.connect();
    try {
      await client.query('begin');
      await client.query(
        `insert into sluice.idempotency_keys (tenant, key, fingerprint, job_id)
         select 'default', k, decode(f, 'hex'), j from unnest($1::text[], $2::text[], $3::uuid[]) u (k, f, j)`,
        [keys, prints, ids],
      );
      await client.query(
        `insert into sluice.batches (id, tenant, total, accepted, duplicate, conflict, rejected)
         values ($1, 'default', $2, $2, 0, 0, 0)`,
        [batchId, itemsPerBatch],
      );
      await client.query(
        `insert into sluice.jobs (id, tenant, batch_id, lane_id, rank, seq, queue, upstream, idempotency_key, key_source,
                                  method, path, body)
         select j, 'default', $4, -1, 0, nextval('sluice.job_seq'), 'default', '${call.upstream}', k, 'given',
                '${call.method}', '${call.path}', b
           from unnest($1::uuid[], $2::text[], $3::text[]) u (j, k, b)`,
        [ids, keys, bodies, batchId],
      );
      await client.query(
        `insert into sluice.ready_jobs (lane_id, rank, seq, job_id, cost, eligible_at)
         select lane_id, rank, seq, id, cost, created_at from sluice.jobs where batch_id = $1`,
        [batchId],
      );
      await client.query(
        `insert into sluice.batch_items (batch_id, index, idempotency_key, key_source, verdict, job_id, job_state)
         select $3, i - 1, k, 'given', 'accepted', j, 'ready'
           from unnest($1::uuid[], $2::text[]) with ordinality u (j, k, i)`,
        [ids, keys, batchId],
      );
      await client.query('commit');
    } finally {
      client.release();
    }
  };
}

async function describeMachine(pool: pg.Pool): Promise<void> {
  const { rows } = await pool.query(
    `select current_setting('server_version') as version, current_setting('fsync') as fsync,
            current_setting('synchronous_commit') as synchronous_commit`,
  );
  const [{ version, fsync, synchronous_commit: commit }] = rows;
  console.log(`Node ${process.version}, ${availableParallelism()} x ${cpus()[0]?.model ?? 'unknown processor'}`);
  console.log(`PostgreSQL ${version}, fsync ${fsync}, synchronous_commit ${commit}`);
  console.log(
    `Batches of ${itemsPerBatch.toLocaleString('en')} new items, median of ${rounds} rounds after ${warmUps}\n`,
  );
}

function report(clients: number, http: readonly number[], raw: readonly number[]): void {
  const show = (values: readonly number[]) =>
    `${Math.round(median(values)).toLocaleString('en')} items/s (${[...values]
      .sort((a, b) => a - b)
      .map((value) => `${Math.round(value / 1000)}k`)
      .join(' ')})`;
  console.log(clients === 1 ? 'One batch at a time' : `${clients} batches at a time`);
  console.log(`  POST /v1/batches, durable and answered  ${show(http)}`);
  console.log(`  raw unnest insert of the same rows      ${show(raw)}`);
  console.log(`  ratio                                   ${(median(http) / median(raw)).toFixed(2)}\n`);
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)]!;
}

await main();
