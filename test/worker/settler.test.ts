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
