/**
 * Batches of a tenant, newest first (ids ascend with their creation), each with whether it still goes on. Nothing is kept of
 * that in the batch's row, so it is found out: from the unfinished jobs where they are few, whatever the size of the batches;
 * else batch by batch, up to its first unfinished job, within a budget of items a page (a page may then be short).
 * Index used: batches_newest, batch_items_pkey with jobs_batch, batch_items_duplicates, and primary keys.
 */
import type { Verdict } from '../domain/job.ts';
import type { Database } from './database.ts';

export const batchActivityFunction = {
  name: 'batch_activity',
  sql: `
-- Of these batches, in their order, as many as the budget allows, at least one. unfinished: a job behind it has not ended;
-- own_active: one that it has brought itself runs, or will by itself.
create or replace function sluice.batch_activity(p_ids uuid[], p_most_unfinished int, p_most_items int)
returns table (id uuid, unfinished boolean, own_active boolean) language plpgsql stable
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
  v_unfinished int;
  v_items bigint := 0;
  b record;
begin
  select count(*) into v_unfinished from (
    select 1 from (select 1 from sluice.ready_jobs union all select 1 from sluice.running_jobs
                   union all select 1 from sluice.parked_jobs) x limit p_most_unfinished + 1) y;
  if v_unfinished <= p_most_unfinished then
    return query
      with u as materialized (
        select r.job_id, true as active from sluice.ready_jobs r union all select r.job_id, true from sluice.running_jobs r
        union all select p.job_id, p.state = 'scheduled' from sluice.parked_jobs p),
      -- As it stands, not merged into what follows: from the unfinished jobs to their batches, never the other way round.
      behind as materialized (
        select j.batch_id, u.active from u join sluice.jobs j on j.id = u.job_id
        union all
        select i.batch_id, false from u join sluice.stored_items i on i.job_id = u.job_id and i.verdict = 'duplicate'),
      of_batch as materialized (
        select x.batch_id, bool_or(x.active) as active from behind x where x.batch_id = any (p_ids) group by x.batch_id)
      select a.id, o.batch_id is not null, coalesce(o.active, false)
        from unnest(p_ids) with ordinality a (id, place) left join of_batch o on o.batch_id = a.id order by a.place;
    return;
  end if;
  for b in
    select a.id, x.accepted + x.duplicate as items, x.cancelled_at
      from unnest(p_ids) with ordinality a (id, place) join sluice.batches x on x.id = a.id order by a.place
  loop
    exit when v_items > 0 and v_items + b.items > p_most_items;
    v_items := v_items + b.items;
    id := b.id;
    -- Retention removes a job only after its end.
    unfinished := exists (
      select 1 from sluice.batch_items i
       where i.batch_id = b.id and i.index >= 0 and i.verdict in ('accepted', 'duplicate')
         and not exists (select 1 from sluice.done_jobs d where d.job_id = i.job_id)
         and exists (select 1 from sluice.jobs j where j.id = i.job_id));
    own_active := unfinished and exists (
      select 1 from sluice.jobs j
       where j.batch_id = b.id and not exists (select 1 from sluice.done_jobs d where d.job_id = j.id)
         and not exists (select 1 from sluice.parked_jobs p where p.job_id = j.id and p.state = 'held'));
    return next;
  end loop;
end $$;`,
} as const;

export interface ListedBatch {
  readonly batchId: string;
  readonly correlationId: string | null;
  readonly createdAt: Date;
  readonly cancelledAt: Date | null;
  /** It came as a stream that has not been ended: more items may come. */
  readonly incomplete: boolean;
  /** A job behind it has not ended, its duplicates' included. */
  readonly hasUnfinished: boolean;
  /** A job that it has brought runs, or will by itself. */
  readonly hasOwnActive: boolean;
  /** Items by verdict. */
  readonly counts: Readonly<Record<'total' | Verdict, number>>;
}

export interface BatchPage {
  /** May be fewer than asked for, though there is a next page. */
  readonly items: ListedBatch[];
  /** Pass as `before` for the rest; null: there is none. */
  readonly next: string | null;
}

export interface BatchWalk {
  readonly tenant: string;
  /** Batches older than this one; null: from the newest. */
  readonly before: string | null;
  readonly limit: number;
}

export interface ActivityBudget {
  /** Up to so many unfinished jobs in all, these are looked at rather than the batches' items; some 100 ms. */
  readonly mostUnfinished: number;
  /** Else items of one page: as much. */
  readonly mostItems: number;
}

const usualBudget: ActivityBudget = { mostUnfinished: 20_000, mostItems: 100_000 };

/** One page of batches. */
export async function listBatches(
  database: Database,
  { tenant, before, limit }: BatchWalk,
  { mostUnfinished, mostItems }: ActivityBudget = usualBudget,
): Promise<BatchPage> {
  const rows = await database.query<Omit<ListedBatch, 'counts'> & ListedBatch['counts'] & { readonly paged: number }>(
    `with page as materialized (
       select b.* from sluice.batches b
        where b.tenant = $1 and ($2::uuid is null or b.id < $2) order by b.id desc limit $3)
     select b.id as "batchId", b.correlation_id as "correlationId", b.created_at as "createdAt",
            b.cancelled_at as "cancelledAt", a.unfinished as "hasUnfinished", a.own_active as "hasOwnActive",
            exists (select 1 from sluice.batch_streams s where s.batch_id = b.id) as incomplete,
            b.total, b.accepted, b.duplicate, b.conflict, b.rejected, (select count(*)::int from page) as paged
       from sluice.batch_activity(array(select p.id from page p order by p.id desc), $4, $5) a
       join page b on b.id = a.id
      order by b.id desc`,
    [tenant, before, limit + 1, mostUnfinished, mostItems],
  );
  const items = rows.slice(0, limit).map((row) => {
    const { total, accepted, duplicate, conflict, rejected, paged: _, ...batch } = row;
    return { ...batch, counts: { total, accepted, duplicate, conflict, rejected } };
  });
  return { items, next: items.length < (rows[0]?.paged ?? 0) ? items.at(-1)!.batchId : null };
}
