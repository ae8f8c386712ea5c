/** What PostgreSQL tells those who listen for work, as another connection hears it. */
import pg from 'pg';
import type { Test } from 'tap';
import { eventually } from './eventually.ts';

export interface WorkNotices {
  /** Payloads of all that was committed since the last call, in the order of their commits. */
  take(): Promise<string[]>;
}

export async function listenForWork(t: Test, connectionString: string): Promise<WorkNotices> {
  const client = new pg.Client({ connectionString });
  let told: string[] = [];
  client.on('notification', ({ payload }) => told.push(payload ?? ''));
  await client.connect();
  t.teardown(() => client.end());
  await client.query('LISTEN sluice_work');
  const end = 'the end of them';
  return {
    async take() {
      // It comes behind what is committed by now.
      await client.query(`select pg_notify('sluice_work', '${end}')`);
      await eventually(end, () => told.includes(end));
      const taken = told.filter((payload) => payload !== end);
      told = [];
      return taken;
    },
  };
}
