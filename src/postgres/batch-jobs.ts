/**
 * SQL that walks the jobs a batch has brought by their ids, so in the order of acceptance. By `jobs_batch`: those of a stream
 * lie there by id, those of a JSON batch by the index of their item, and their ids ascend with it (take-keys.ts).
 */

export interface BatchJobsWalk {
  /** A condition on `j.id`, after an `and`; may be empty. */
  readonly and: string;
  readonly order: 'asc' | 'desc';
  /** An SQL expression, like the batch. */
  readonly limit: string;
}

/** A query of ids. */
export function jobsOfBatch(batchId: string, { and, order, limit }: BatchJobsWalk): string {
  // By the index, though the ids would do: asked for these, the planner may walk the jobs of all batches.
  const part = (items: string, by: string) => `
    (select j.id from sluice.jobs j where j.batch_id = ${batchId} and j.item_index ${items} ${and}
      order by ${by} ${order} limit ${limit})`;
  return `select x.id from (${part('= -1', 'j.id')} union all ${part('>= 0', 'j.item_index')}) x
    order by x.id ${order} limit ${limit}`;
}
