/** The answer of a claim can be slower than a break of the lease and its end: then the job may be another's. */
import t from 'tap';
import type { FaultPoints } from '../../src/system/fault-points.ts';
import { useClaims } from '../support/claims.ts';
import { eventually } from '../support/eventually.ts';
import { useUpstream } from '../support/upstream.ts';
import { Gate, startWorker } from '../support/worker.ts';

t.test('what was claimed before a break of the lease is not sent after it, with no rate limit either', async (t) => {
  const upstream = await useUpstream(t);
  const store = await useClaims(t);
  await store.putUpstream('api', { base_url: upstream.url, allow_private_addresses: true });
  await store.addJobs({ count: 1 });
  const gate = new Gate();
  const slowAnswers: FaultPoints = { pass: (point) => (point === 'claim.after' ? gate.pass() : undefined) };
  const first = await startWorker(t, {
    connectionString: store.connectionString,
    leaseSeconds: 3,
    faultPoints: slowAnswers,
  });
  await eventually('the first worker has a job, and does not know it yet', () => gate.waiting === 1);

  await startWorker(t, { connectionString: store.connectionString });
  await eventually('its job is taken back and done by the other', async () => {
    await store.database.query(
      `update sluice.workers set lease_expires_at = clock_timestamp() - interval '1 second' where id = $1`,
      [first.workerId],
    );
    return (await store.database.query('select 1 from sluice.done_jobs')).length === 1;
  });
  const leaseEnds = async () => {
    const [row] = await store.database.query<{ ends: string; live: boolean }>(
      `select lease_expires_at::text as ends, lease_expires_at > clock_timestamp() as live from sluice.workers where id = $1`,
      [first.workerId],
    );
    return row!.live && row!.ends;
  };
  const renewed = await eventually('its lease holds again', leaseEnds);
  await eventually('and it knows', async () => ![false, renewed].includes(await leaseEnds()));
  gate.open();
  await first.drain(10_000);

  t.equal(upstream.log.requests.length, 1, 'the other one sent it, and nobody else');
  t.same(await store.database.query('select state, calls, attempts_used from sluice.done_jobs'), [
    { state: 'succeeded', calls: 2, attempts_used: 2 },
  ]);
});
