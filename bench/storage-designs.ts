/**
 * Two ways to keep the state of a job, measured alike: one row per job that is updated twice, its ready ones in a partial
 * index; and narrow rows that move by delete and insert between tables. Beside them the product's own claim and settle, which
 * are the second with everything else that they do. One lane without a limit, one connection, claim and settle in turn, an
 * attempt on record for each job, no calls. Then all three once more while a transaction is left open, so that no dead row
 * can go. `node --import tsx bench/storage-designs.ts [--quick]`; figures go into
 * docs/decisions/0001-storage.md.
 */
import { randomUUID } from 'node:crypto';
import { parseArgs } from 'node:util';
import { table } from '../src/cli/demo/table.ts';
import { type Database, withClient } from '../src/postgres/database.ts';
import { systemClock as clock } from '../src/system/clock.ts';
import { inWords, type Spread, spread, spreadInWords } from './figures.ts';
import { addProductJobs, prepareProduct, productTurn } from './product-turn.ts';
import { describeMachine, load, machineInWords, writeResults } from './results.ts';
import { onStage } from './stage.ts';

const { values } = parseArgs({ options: { quick: { type: 'boolean', default: false } } });
const jobs = values.quick ? 10_000 : 40_000;
const sizes = [32, 64, 128];
const runs = 3;
const longestMinutes = 10;

/** One claim of `size` jobs and the settle of what it gave; gives how many. */
type Turn = (database: Database, size: number) => Promise<number>;

interface Design {
  readonly name: string;
  readonly fill: (database: Database) => Promise<void>;
  readonly turn: Turn;
}

/** What both sketches share: the bodies, written once, and the attempts. */
const commonTables = `
  create schema sketch;
  create table sketch.jobs (id uuid primary key, seq bigint not null, path text not null, body text not null);
  create table sketch.attempts (
    job_id uuid, number int, epoch int, worker_id uuid, outcome text, status smallint, started_at timestamptz, sent_at timestamptz,
    ended_at timestamptz, excerpt text, sha256 bytea, primary key (job_id, number))`;

const ledger = `epoch int not null default 0, calls int not null default 0, attempts_used int not null default 0,
  throttles int not null default 0, first_sent_at timestamptz, outcome_unknown boolean not null default false`;

/** Statistics say that these tables are empty; without this a plan may read every dead row. */
const onlyIndexes = 'set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off';

const oneRow = `
  create table sketch.state (
    job_id uuid primary key, lane_id bigint not null, rank int not null, seq bigint not null, state smallint not null, cost int not null,
    eligible_at timestamptz not null, worker_id uuid, admitted_at timestamptz, ended_at timestamptz, status smallint, ${ledger})
    with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_limit = 2000);
  create index on sketch.state (lane_id, rank, seq) where state = 0;
  create function sketch.claim_one_row(p_worker uuid, p_size int) returns table (job_id uuid, epoch int, path text, body text)
  language plpgsql ${onlyIndexes} as $$
  #variable_conflict use_column
  begin
    return query
    with p as materialized (
      select x.job_id from sketch.state x where x.lane_id = 1 and x.state = 0 order by x.rank, x.seq limit p_size for update skip locked),
    leased as (
      update sketch.state x set state = 1, worker_id = p_worker, admitted_at = clock_timestamp(), epoch = x.epoch + 1
        from p where x.job_id = p.job_id returning x.job_id, x.epoch)
    select l.job_id, l.epoch, b.path, b.body from leased l join sketch.jobs b on b.id = l.job_id;
  end $$;
  create function sketch.settle_one_row(p_worker uuid, p_job uuid[], p_epoch int[], p_excerpt text[], p_sha256 bytea[]) returns int
  language plpgsql ${onlyIndexes} as $$
  declare v_count int;
  begin
    with s as materialized (select * from unnest(p_job, p_epoch, p_excerpt, p_sha256) as s(job_id, epoch, excerpt, sha256)),
    ended as (
      update sketch.state x set state = 2, ended_at = clock_timestamp(), status = 200, calls = x.calls + 1,
             attempts_used = x.attempts_used + 1, first_sent_at = coalesce(x.first_sent_at, x.admitted_at)
        from s where x.job_id = s.job_id and x.epoch = s.epoch and x.worker_id = p_worker and x.state = 1
      returning x.job_id, x.epoch, x.calls, x.admitted_at, x.ended_at, s.excerpt, s.sha256),
    told as (
      insert into sketch.attempts
      select e.job_id, e.calls, e.epoch, p_worker, 'success', 200, e.admitted_at, e.admitted_at, e.ended_at, e.excerpt, e.sha256 from ended e)
    select count(*) into v_count from ended;
    return v_count;
  end $$;`;

const movingRows = `
  create table sketch.ready (
    lane_id bigint, rank int, seq bigint, job_id uuid not null, cost int not null, eligible_at timestamptz not null, ${ledger},
    primary key (lane_id, rank, seq))
    with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_limit = 2000, vacuum_truncate = false);
  create table sketch.running (
    job_id uuid primary key, lane_id bigint not null, rank int not null, seq bigint not null, cost int not null, eligible_at timestamptz not null,
    worker_id uuid not null, admitted_at timestamptz not null, ${ledger})
    with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_limit = 2000, vacuum_truncate = false);
  create table sketch.done (job_id uuid primary key, status smallint, ended_at timestamptz not null, ${ledger});
  create function sketch.claim_moving_rows(p_worker uuid, p_size int) returns table (job_id uuid, epoch int, path text, body text)
  language plpgsql ${onlyIndexes} as $$
  #variable_conflict use_column
  begin
    return query
    with p as materialized (
      select x.lane_id, x.rank, x.seq from sketch.ready x where x.lane_id = 1 order by x.rank, x.seq limit p_size for update skip locked),
    gone as (
      delete from sketch.ready x using p where x.lane_id = p.lane_id and x.rank = p.rank and x.seq = p.seq returning x.*),
    leased as (
      insert into sketch.running
      select g.job_id, g.lane_id, g.rank, g.seq, g.cost, g.eligible_at, p_worker, clock_timestamp(), g.epoch + 1, g.calls, g.attempts_used,
             g.throttles, g.first_sent_at, g.outcome_unknown from gone g)
    select g.job_id, g.epoch + 1, b.path, b.body from gone g join sketch.jobs b on b.id = g.job_id;
  end $$;
  create function sketch.settle_moving_rows(p_worker uuid, p_job uuid[], p_epoch int[], p_excerpt text[], p_sha256 bytea[]) returns int
  language plpgsql ${onlyIndexes} as $$
  declare v_count int;
  begin
    with s as materialized (select * from unnest(p_job, p_epoch, p_excerpt, p_sha256) as s(job_id, epoch, excerpt, sha256)),
    gone as (
      delete from sketch.running x using s where x.job_id = s.job_id and x.epoch = s.epoch and x.worker_id = p_worker
      returning x.*, s.excerpt, s.sha256),
    ended as (
      insert into sketch.done
      select g.job_id, 200, clock_timestamp(), g.epoch, g.calls + 1, g.attempts_used + 1, g.throttles, coalesce(g.first_sent_at, g.admitted_at),
             g.outcome_unknown from gone g),
    told as (
      insert into sketch.attempts
      select g.job_id, g.calls + 1, g.epoch, p_worker, 'success', 200, g.admitted_at, g.admitted_at, clock_timestamp(), g.excerpt, g.sha256 from gone g)
    select count(*) into v_count from gone;
    return v_count;
  end $$;`;

function sketch(name: string, kind: 'one_row' | 'moving_rows'): Design {
  return {
    name,
    async fill(database) {
      await database.query(
        'truncate sketch.jobs, sketch.attempts, sketch.state, sketch.ready, sketch.running, sketch.done',
      );
      await database.query(
        `insert into sketch.jobs select gen_random_uuid(), n, '/charges', '{"amount":' || n || ',"currency":"eur","note":"a note of some length"}'
           from generate_series(1, $1::int) n`,
        [jobs],
      );
      await database.query(
        kind === 'one_row'
          ? 'insert into sketch.state (job_id, lane_id, rank, seq, state, cost, eligible_at) select id, 1, 0, seq, 0, 1, now() from sketch.jobs order by seq'
          : 'insert into sketch.ready (job_id, lane_id, rank, seq, cost, eligible_at) select id, 1, 0, seq, 1, now() from sketch.jobs order by seq',
      );
    },
    turn: sketchTurn(kind),
  };
}

const workerId = randomUUID();
const sha256 = Buffer.alloc(32, 7);

function sketchTurn(kind: 'one_row' | 'moving_rows'): Turn {
  return async (database, size) => {
    const claimed = await database.query<{ job_id: string; epoch: number }>(
      `select * from sketch.claim_${kind}($1::uuid, $2::int)`,
      [workerId, size],
      `claim_${kind}`,
    );
    if (claimed.length === 0) return 0;
    await database.query(
      `select sketch.settle_${kind}($1::uuid, $2::uuid[], $3::int[], $4::text[], $5::bytea[])`,
      [
        workerId,
        claimed.map((job) => job.job_id),
        claimed.map((job) => job.epoch),
        claimed.map(() => '{"effect":12345,"key":"run-0-12345"}'),
        claimed.map(() => sha256),
      ],
      `settle_${kind}`,
    );
    return claimed.length;
  };
}

const designs: readonly Design[] = [
  sketch('one state row, updated twice', 'one_row'),
  sketch('rows that move between tables', 'moving_rows'),
  {
    name: "the product's claim and settle",
    fill: (database) => addProductJobs(database, jobs),
    turn: productTurn,
  },
];

interface DesignFigures {
  readonly design: string;
  readonly size: number;
  readonly jobsPerSecond: Spread;
  readonly walBytesPerJob: Spread;
}

interface PinnedFigures {
  readonly design: string;
  /** Jobs per second in successive quarters. */
  readonly quarters: readonly number[];
}

const pinnedSize = 64;

await onStage(longestMinutes, async (stage) => {
  const { database } = await stage.createDatabase('designs');
  const machine = await describeMachine(database);
  console.log(`${machineInWords(machine)}; ${inWords(jobs)} jobs a run\n`);
  for (const text of [commonTables, oneRow, movingRows]) await database.query(text);
  await prepareProduct(database);

  const found = new Map<string, { rate: number[]; wal: number[] }>();
  const keyOf = (design: Design, size: number) => `${design.name}/${size}`;
  for (let run = 0; run < runs; run += 1) {
    for (const design of designs) {
      for (const size of sizes) {
        const { rate, wal } = await measure(database, design, size);
        const all = found.get(keyOf(design, size)) ?? { rate: [], wal: [] };
        found.set(keyOf(design, size), all);
        all.rate.push(rate);
        all.wal.push(wal);
      }
    }
  }
  const figures: DesignFigures[] = designs.flatMap((design) =>
    sizes.map((size) => {
      const { rate, wal } = found.get(keyOf(design, size))!;
      return { design: design.name, size, jobsPerSecond: spread(rate), walBytesPerJob: spread(wal) };
    }),
  );
  console.log(
    table([
      ['', 'a claim', 'jobs/s, median (least to most)', 'WAL bytes per job'],
      ...figures.map((each) => [
        each.design,
        String(each.size),
        spreadInWords(each.jobsPerSecond),
        inWords(each.walBytesPerJob.median),
      ]),
    ]),
  );
  const pinned: PinnedFigures[] = [];
  for (const design of designs) pinned.push(await measurePinned(database, design));
  console.log(
    `\na transaction left open, ${pinnedSize} a claim: jobs/s in successive quarters of ${inWords(jobs)} jobs`,
  );
  console.log(table(pinned.map(({ design, quarters }) => [design, ...quarters.map(inWords)])));
  const path = await writeResults('storage-designs', { machine, loadAtEnd: load(), jobs, figures, pinned });
  console.log(`\nload at the end ${load()}; all figures are in ${path}`);
});

async function measure(database: Database, design: Design, size: number): Promise<{ rate: number; wal: number }> {
  await design.fill(database);
  const walBefore = await walPosition(database);
  const startMs = clock.monotonicMs();
  let done = 0;
  for (;;) {
    const settled = await design.turn(database, size);
    if (settled === 0) break;
    done += settled;
  }
  const seconds = (clock.monotonicMs() - startMs) / 1000;
  if (done !== jobs) throw new Error(`${design.name}: ${done} of ${jobs} jobs`);
  return { rate: jobs / seconds, wal: ((await walPosition(database)) - walBefore) / jobs };
}

async function measurePinned(database: Database, design: Design): Promise<PinnedFigures> {
  await design.fill(database);
  return withClient(database, async (client) => {
    await client.query('begin isolation level repeatable read');
    await client.query('select txid_current()');
    const quarters: number[] = [];
    let done = 0;
    for (let quarter = 1; quarter <= 4; quarter += 1) {
      const before = done;
      const startMs = clock.monotonicMs();
      while (done < (jobs * quarter) / 4) {
        const settled = await design.turn(database, pinnedSize);
        if (settled === 0) break;
        done += settled;
      }
      quarters.push(((done - before) * 1000) / (clock.monotonicMs() - startMs));
    }
    await client.query('rollback');
    return { design: design.name, quarters };
  });
}

async function walPosition(database: Database): Promise<number> {
  const [row] = await database.query<{ bytes: number }>(
    `select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8 as bytes`,
  );
  return row!.bytes;
}
