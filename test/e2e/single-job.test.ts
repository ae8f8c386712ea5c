/** A service at rest takes a single job, and calls it, without a word to anybody: no notification, no claim. */
import t from 'tap';
import { eventually } from '../support/eventually.ts';
import { assertOneEffectEach, startFleet, waitForLog } from '../support/fleet.ts';
import { listenForWork } from '../support/work-notices.ts';

t.setTimeout(60_000);

t.test('a job on an idle service is leased at its intake, one on a busy service is announced', async (t) => {
  const { client, upstream, database } = await startFleet(t, { env: { SLUICE_CONCURRENCY: '1' } });
  const notices = await listenForWork(t, database.connectionString);
  const keys: string[] = [];
  const post = async () => {
    keys.push(`job-${keys.length}`);
    await notices.take();
    await client.submit('api', [{ idempotency_key: keys.at(-1)! }]);
    return notices.take();
  };
  const called = (count: number) => waitForLog(upstream, (log) => log.requests.length === count);

  // The worker may be looking for jobs at any one of them.
  await eventually('nobody is told of a job', async () => {
    const told = await post();
    await called(keys.length);
    return told.length === 0;
  });
  const gate = 'answered';
  await upstream.script({ times: 1, answer: { gate } });
  await post();
  await called(keys.length);
  t.same(await post(), ['intake'], 'without a slot it is announced');
  await upstream.release(gate);
  assertOneEffectEach(t, await called(keys.length), keys);
});
