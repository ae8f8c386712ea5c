/**
 * Jobs put straight into the state tables, for tests of what happens around them: a lane and narrow rows with the ledger a
 * test wants, without a batch or a request.
 */
import { v7 as newId } from 'uuid';
import type { Database } from '../../src/postgres/database.ts';
import { ensureLaneGroups } from '../../src/postgres/lane-groups.ts';
import { inTransaction } from '../../src/postgres/transaction.ts';
import type { Invariant } from './invariants.ts';

/** What such rows lack. */
export const jobRowsAlone: readonly Invariant[] = ['state_of_a_job', 'leased', 'due'];

export interface TestLane {
  readonly id: number;
  readonly groupId: number;
}

/** A lane of the tenant `default` in the group of these two; both must be defined. */
export async function createLane(
  database: Database,
  queue: string,
  upstream: string,
  partitionKey = '',
): Promise<TestLane> {
  const [groupId] = await inTransaction(database, (client) => ensureLaneGroups(client, [{ queue, upstream }]));
  if (groupId == null) throw new Error(`${queue} or ${upstream} is not defined`);
  const [row] = await database.query<{ id: number }>(
    `insert into sluice.lanes (group_id, tenant, partition_key) values ($1, 'default', $2) returning id`,
    [groupId, partitionKey],
  );
  return { id: row!.id, groupId };
}

export type LiveState = 'ready' | 'running' | 'scheduled' | 'held';

/** One job in the lane; `sent`: it has a first_sent_at. Gives its id. */
export async function createJob(
  database: Database,
  lane: TestLane,
  state: LiveState,
  { sent = false, seq = 1 }: { sent?: boolean; seq?: number } = {},
): Promise<string> {
  const id = newId();
  const common = [id, lane.id, seq, sent ? new Date() : null];
  if (state === 'ready') {
    await database.query(
      `insert into sluice.ready_jobs (job_id, lane_id, rank, seq, cost, eligible_at, calls, attempts_used, first_sent_at)
       values ($1, $2, 0, $3, 1, clock_timestamp(), 3, 2, $4)`,
      common,
    );
  } else if (state === 'running') {
    await database.query(
      `insert into sluice.running_jobs (job_id, lane_id, rank, seq, first_sent_at, group_id, cost, eligible_at, worker_id, admitted_at)
       values ($1, $2, 0, $3, $4, $5, 1, clock_timestamp(), $1, clock_timestamp())`,
      [...common, lane.groupId],
    );
  } else {
    await database.query(
      `insert into sluice.parked_jobs (job_id, lane_id, rank, seq, first_sent_at, state, reason, due_at, cost, calls)
       values ($1, $2, 0, $3, $4, $5, $6, $7, 1, 3)`,
      [
        ...common,
        state,
        state === 'held' ? 'outcome_unknown' : null,
        state === 'held' ? null : new Date(Date.now() + 3_600_000),
      ],
    );
  }
  return id;
}
