/**
 * What a change of definitions means for jobs that are not done: whether any depends on a name, and putting on hold those
 * that must not go on as if nothing had happened.
 * The caller holds the definitions' lock alone, so no claim and no intake is under way. Lock order: that lock, job rows.
 */
import type { TransactionClient } from './transaction.ts';

/** Whether a ready, running, scheduled or held job goes through this upstream or queue. By the lanes' and jobs' keys. */
export async function hasUnfinishedJobs(
  client: TransactionClient,
  kind: 'upstreams' | 'queues',
  name: string,
): Promise<boolean> {
  const [row] = await client.query<{ found: boolean }>(
    `with its_groups as materialized (
       select g.id from sluice.lane_groups g where g.${kind === 'upstreams' ? 'upstream' : 'queue'} = $1)
     select exists (select 1 from its_groups g join sluice.running_jobs j on j.group_id = g.id)
         or exists (select 1 from its_groups g join sluice.lanes l on l.group_id = g.id
                      join sluice.ready_jobs j on j.lane_id = l.id)
         or exists (select 1 from its_groups g join sluice.lanes l on l.group_id = g.id
                      join sluice.parked_jobs j on j.lane_id = l.id) as found`,
    [name],
  );
  return row!.found;
}

/**
 * Holds the jobs of an upstream that may have had an effect already (`first_sent_at`; throttles do not count): sent to another
 * address, or under another header, the same key would not be recognised. Running ones are held by their settle, which
 * compares `target_changed_at` with their admission. Gives how many were held now.
 */
export async function moveTarget(client: TransactionClient, upstream: string): Promise<number> {
  await client.query('update sluice.upstreams set target_changed_at = clock_timestamp() where name = $1', [upstream]);
  const scheduled = await client.query(
    `update sluice.parked_jobs p
        set state = 'held', reason = 'upstream_changed', due_at = null, resume_at = null, expires_at = null
       from sluice.lanes l join sluice.lane_groups g on g.id = l.group_id
      where l.id = p.lane_id and g.upstream = $1 and (p.state = 'scheduled' or p.reason = 'fuse')
        and p.first_sent_at is not null
      returning p.job_id`,
    [upstream],
  );
  const ready = await client.query(
    `with gone as (
       delete from sluice.ready_jobs r using sluice.lanes l join sluice.lane_groups g on g.id = l.group_id
        where l.id = r.lane_id and g.upstream = $1 and r.first_sent_at is not null
        returning r.*)
     insert into sluice.parked_jobs (job_id, lane_id, rank, seq, state, reason, due_at, cost, expires_at,
                                     epoch, calls, attempts_used, throttles, first_sent_at, outcome_unknown)
     select g.job_id, g.lane_id, g.rank, g.seq, 'held', 'upstream_changed', null, g.cost, null,
            g.epoch, g.calls, g.attempts_used, g.throttles, g.first_sent_at, g.outcome_unknown
       from gone g
     returning job_id`,
    [upstream],
  );
  return scheduled.length + ready.length;
}
