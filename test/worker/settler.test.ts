/** Writing outcomes while the store cannot be written to: kept, and let go of only when the process must end. */
import t from 'tap';
import { DatabaseUnavailableError } from '../../src/postgres/database.ts';
import { systemClock } from '../../src/system/clock.ts';
import type { FaultPoints } from '../../src/system/fault-points.ts';
import { createLogger } from '../../src/system/logger.ts';
import { Settler } from '../../src/worker/settler.ts';
import { settleRow, useClaims } from '../support/claims.ts';
import { eventually } from '../support/eventually.ts';
import { Gate } from '../support/worker.ts';

t.test('a drain that is out of time ends, also where a write is under way and fails afterwards', async (t) => {
  const gate = new Gate();
  const faultPoints: FaultPoints = {
    async pass(point) {
      if (point !== 'settle.before') return;
      await gate.pass();
      throw new DatabaseUnavailableError(new Error('silent until now'));
    },
  };
  const store = await useClaims(t, { faultPoints });
  await store.putUpstream('api');
  await store.addJobs({ count: 1 });
  const { jobs } = await store.claim(1);
  const settler = new Settler({
    database: store.database,
    clock: systemClock,
    logger: createLogger('silent'),
    workerId: store.workerId,
    onSettled: () => t.fail('nothing can be written'),
  });
  settler.start();
  settler.add(settleRow(jobs[0]!));
  await eventually('a write is under way', () => gate.waiting === 1);
  const late = new AbortController();
  const drained = settler.drain(late.signal);
  late.abort();
  gate.open();
  await drained;
  t.equal(gate.waiting, 1, 'it is not tried again');
});

t.test(
  'a row that the store refuses for good holds up no other, is told, and is written once it is taken',
  async (t) => {
    let writes = 0;
    const faultPoints: FaultPoints = {
      pass(point) {
        if (point === 'settle.before') writes += 1;
        return undefined;
      },
    };
    const store = await useClaims(t, { faultPoints });
    await store.putUpstream('api');
    await store.addJobs({ count: 60 });
    const { jobs } = await store.claim(60);
    const poison = jobs[17]!;
    await store.database.query(`
    create function public.refuse() returns trigger language plpgsql as $$
    begin
      if new.job_id = '${poison.jobId}' then raise exception 'not this one' using errcode = '23514'; end if;
      return new;
    end $$;
    create trigger refuse before insert on sluice.done_jobs for each row execute function public.refuse()`);
    const lines: Array<Record<string, unknown>> = [];
    const settler = new Settler({
      database: store.database,
      clock: systemClock,
      logger: createLogger('info', { write: (line) => lines.push(JSON.parse(line)) }),
      workerId: store.workerId,
      onSettled: () => undefined,
    });
    const done = async () => (await store.database.query('select 1 from sluice.done_jobs')).length;
    settler.start();
    for (const job of jobs.slice(0, 40)) settler.add(settleRow(job));
    await eventually('the others of its group to be written', async () => (await done()) === 39);
    const found = writes;
    t.ok(found <= 20, `${found} writes find it among 40`);
    // One after the other: each would be a chance to fall back to a group with the poison in it.
    for (const [n, job] of jobs.slice(40).entries()) {
      settler.add(settleRow(job));
      await eventually('the next one to be written', async () => (await done()) === 40 + n);
    }
    t.equal(settler.unwritten, 1);
    t.same(
      settler.rows.map(({ jobId }) => jobId),
      [poison.jobId],
      'it is still known as held',
    );
    const told = lines.filter(
      ({ msg }) => msg === 'the store refuses the outcome of a job; it is kept and tried again',
    );
    t.match(told[0], {
      level: 50,
      job_id: poison.jobId,
      outcome: 'success',
      times: 1,
      again_in_ms: 100,
      err: { code: '23514' },
    });
    t.ok(writes - found <= 20 + told.length, `${writes - found} writes for 20 rows and ${told.length} tries`);
    t.same(
      lines.filter(({ msg }) => msg !== told[0]!.msg),
      [],
      'and nothing else',
    );

    await store.database.query('drop trigger refuse on sluice.done_jobs');
    await eventually('it to be written', async () => (await done()) === 60);
    t.equal(settler.unwritten, 0);
    await settler.drain(new AbortController().signal);
  },
);

t.test('a drain gives a refused row one more try, and ends', async (t) => {
  const store = await useClaims(t);
  await store.putUpstream('api');
  await store.addJobs({ count: 1 });
  const { jobs } = await store.claim(1);
  await store.database.query(`alter table sluice.done_jobs add constraint none_today check (status <> 200) not valid`);
  const lines: string[] = [];
  const settler = new Settler({
    database: store.database,
    clock: systemClock,
    logger: createLogger('info', { write: (line) => lines.push(line) }),
    workerId: store.workerId,
    onSettled: () => undefined,
  });
  settler.start();
  settler.add(settleRow(jobs[0]!));
  await eventually('it to be refused some times', () => lines.length >= 3);
  const before = lines.length;
  await settler.drain(new AbortController().signal);
  t.equal(lines.length, before + 1);
});
