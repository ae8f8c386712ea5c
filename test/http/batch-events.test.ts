/** GET /v1/batches/{batch_id}/events. */
import t, { type Test } from 'tap';
import { claimJobs } from '../../src/postgres/claim-jobs.ts';
import { settleJobs } from '../../src/postgres/settle-jobs.ts';
import { newWorker, settleRow } from '../support/claims.ts';
import { EventClient, keysOf } from '../support/event-client.ts';
import { defaults, type Intake, useIntake } from '../support/intake.ts';

interface Followed extends Intake {
  readonly url: string;
  /** Claims up to `count` jobs and settles them as succeeded. */
  finish(count: number): Promise<string[]>;
  follow(batchId: string, options?: ConstructorParameters<typeof EventClient>[2]): EventClient;
}

async function useFollowed(t: Test): Promise<Followed> {
  const intake = await useIntake(t);
  const url = await intake.app.app.listen({ host: '127.0.0.1', port: 0 });
  const workerId = await newWorker(intake.database);
  return {
    ...intake,
    url,
    async finish(count) {
      const { jobs } = await claimJobs(intake.database, workerId, count);
      await settleJobs(
        intake.database,
        workerId,
        jobs.map((job) => settleRow(job, { status: 200 })),
      );
      return jobs.map(({ idempotencyKey }) => idempotencyKey);
    },
    follow(batchId, options) {
      const client = new EventClient(url, batchId, options);
      t.teardown(() => client.cut());
      return client;
    },
  };
}

function items(count: number): object[] {
  return Array.from({ length: count }, (_, i) => ({ idempotency_key: `k${i}` }));
}

t.test('tells where it stands, each job that ends, and the end; then the stream ends', async (t) => {
  const { post, follow, finish } = await useFollowed(t);
  const { body } = await post({
    defaults,
    items: [...items(3), { idempotency_key: 'k0' }, { idempotency_key: 'bad', cost: 0 }],
  });
  await finish(1);
  const client = follow(body.batch_id);
  const head = await client.head;
  t.equal(head.statusCode, 200);
  t.match(head.headers['content-type'], /^text\/event-stream/);
  t.match(head.headers['cache-control'], /no-cache/);
  await client.until((events) => keysOf(events).length === 1);
  await finish(2);
  const events = await client.all();
  t.equal(client.retryMs, 2000);
  t.equal(events[0]!.event, 'progress');
  t.match(events[0]!.data, { batch_id: body.batch_id, status: 'processing', progress: 1 / 3, jobs: { succeeded: 1 } });
  t.same(keysOf(events), ['k0', 'k1', 'k2'], 'each job once, that of the duplicate too');
  t.same(events.find(({ event }) => event === 'job')!.data, {
    job_id: body.items[0]!.job_id,
    index: 0,
    idempotency_key: 'k0',
    state: 'succeeded',
    reason: null,
    response_status: 200,
  });
  t.equal(events.at(-1)!.event, 'done');
  t.match(events.at(-1)!.data, { status: 'completed', progress: 1, jobs: { succeeded: 3 } });
  t.ok(events.every(({ id }) => id !== ''));
});
