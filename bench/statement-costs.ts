/**
 * What PostgreSQL did for a stretch of work, statement by statement, those inside of functions too: by pg_stat_statements,
 * which has to be loaded at the server's start. Counting costs time itself, so rates are not taken from such a run.
 */
import type { BenchDatabase } from './stage.ts';

export const statementLibrary = 'pg_stat_statements';

export interface StatementCost {
  /** Its first words. */
  readonly text: string;
  /** Sent by a client; else a function said it. */
  readonly top: boolean;
  readonly calls: number;
  readonly rows: number;
  /** Milliseconds in all, what it called included. */
  readonly ms: number;
  /** Of these, spent planning. */
  readonly planMs: number;
  /** Pages found or read. */
  readonly buffers: number;
  readonly walBytes: number;
}

/** Counts from now on. */
export async function countStatements({ database }: BenchDatabase, { nested = false } = {}): Promise<void> {
  await database.query('create extension if not exists pg_stat_statements');
  await database.query(`alter system set pg_stat_statements.track = '${nested ? 'all' : 'top'}'`);
  await database.query(`alter system set pg_stat_statements.track_planning = '${nested ? 'on' : 'off'}'`);
  await database.query('select pg_reload_conf()');
  await database.query('select pg_stat_statements_reset()');
}

/** So that nothing else pays for it. */
export async function stopCounting({ database }: Pick<BenchDatabase, 'database'>): Promise<void> {
  await database.query(`alter system set pg_stat_statements.track = 'none'`);
  await database.query('select pg_reload_conf()');
}

/** Of this database since then, most time first. Our own questions are left out. */
export async function statementCosts({ database, name }: BenchDatabase): Promise<StatementCost[]> {
  const rows = await database.query<StatementCost>(
    `select regexp_replace(s.query, '\\s+', ' ', 'g') as text, s.toplevel as top, s.calls::float8 as calls, s.rows::float8 as rows,
            s.total_exec_time + s.total_plan_time as ms, s.total_plan_time as "planMs",
            (s.shared_blks_hit + s.shared_blks_read)::float8 as buffers, s.wal_bytes::float8 as "walBytes"
       from pg_stat_statements s join pg_database d on d.oid = s.dbid
      where d.datname = $1 and s.query !~* '(pg_stat|bench:|alter system|pg_reload_conf)' order by 5 desc`,
    [name],
  );
  return rows.map((row) => ({ ...row, text: row.text.slice(0, 110) }));
}
