import t from 'tap';
import { countBatchJobs } from '../../src/postgres/count-batch-jobs.ts';
import { defaults, useIntake } from '../support/intake.ts';

t.test('both ways of counting, by merges and by look-ups, agree with a look at each job', async (t) => {
  const { post, database } = await useIntake(t, { breaks: 'all' });
  const states = ['succeeded', 'failed', 'cancelled', 'expired', 'running', 'held', 'scheduled', 'ready'];
  // Batches that lie in one another, as streams do: ids of one are between those of another.
  const batches: string[] = [];
  for (let i = 0; i < 3; i += 1)
    batches.push((await post({ defaults, items: [{ idempotency_key: `${i}` }] })).body.batch_id);
  await database.query(
    `insert into sluice.jobs (id, tenant, batch_id, lane_id, rank, seq, queue, upstream, idempotency_key, key_source, method, path)
     select gen_random_uuid(), 'default', ($1::uuid[])[1 + n % 3], j.lane_id, 0, 1000 + n, j.queue, j.upstream, 'more-' || n, 'given', 'POST', '/'
       from generate_series(1, 600) n cross join (select * from sluice.jobs limit 1) j`,
    [batches],
  );
  await database.query('update sluice.jobs set item_index = -1');
  const jobs = `select j.id, j.lane_id, j.rank, j.seq, ($1::text[])[1 + (hashtext(j.id::text) & 7)] as state from sluice.jobs j`;
  await database.query(`delete from sluice.ready_jobs`);
  for (const insert of [
    `insert into sluice.done_jobs (job_id, state, ended_at) select x.id, x.state, '2026-01-01Z'::timestamptz + x.seq * interval '1 second'
       from (${jobs}) x where x.state in ('succeeded', 'failed', 'cancelled', 'expired')`,
    `insert into sluice.running_jobs (job_id, lane_id, group_id, rank, seq, cost, eligible_at, worker_id, admitted_at)
     select x.id, x.lane_id, 1, x.rank, x.seq, 1, clock_timestamp(), gen_random_uuid(), clock_timestamp() from (${jobs}) x where x.state = 'running'`,
    `insert into sluice.parked_jobs (job_id, lane_id, rank, seq, state, reason, due_at, cost)
     select x.id, x.lane_id, x.rank, x.seq, x.state, case when x.state = 'held' then 'fuse' end,
            case when x.state = 'scheduled' then clock_timestamp() end, 1 from (${jobs}) x where x.state in ('held', 'scheduled')`,
    `insert into sluice.ready_jobs (job_id, lane_id, rank, seq, cost, eligible_at)
     select x.id, x.lane_id, x.rank, x.seq, 1, clock_timestamp() from (${jobs}) x where x.state = 'ready'`,
  ]) {
    await database.query(insert, [states]);
  }
  await database.query(
    'update sluice.batches b set accepted = (select count(*) from sluice.jobs j where j.batch_id = b.id)',
  );

  for (const batchId of batches) {
    const truth = await database.query<{ state: string; n: number; ended: Date | null }>(
      `select x.state, count(*) as n, max(d.ended_at) as ended from (${jobs} where j.batch_id = $2) x
         left join sluice.done_jobs d on d.job_id = x.id group by x.state order by x.state`,
      [states, batchId],
    );
    t.ok(truth.length > 5, 'many states are there');
    const counted = await countBatchJobs(database, batchId);
    t.same(
      counted
        .map(({ state, count, ownCount, fusedCount, lastEndedAt }) => ({
          state,
          count,
          ownCount,
          fusedCount,
          lastEndedAt,
        }))
        .sort((a, b) => (a.state! < b.state! ? -1 : 1)),
      truth.map(({ state, n, ended }) => ({
        state,
        count: n,
        ownCount: n,
        fusedCount: state === 'held' ? n : 0,
        lastEndedAt: ended,
      })),
    );
    const [range] = await database.query<{ first: string; last: string }>(
      'select (array_agg(id order by id))[1] as first, (array_agg(id order by id desc))[1] as last from sluice.jobs where batch_id = $1',
      [batchId],
    );
    const by = (way: string) =>
      database.query(`select * from sluice.${way}($1, $2, $3) order by state`, [batchId, range!.first, range!.last]);
    t.same(await by('count_by_merge'), await by('count_by_look_up'));
  }
});
