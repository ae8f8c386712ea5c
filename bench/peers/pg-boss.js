/**
 * pg-boss: jobs fetched and completed by the batch, in `loops` loops side by side, each with at most `size` jobs at hand.
 * Its own `work()` pauses between batches unless one takes as long as its polling interval, so that batches are fetched here
 * by its `fetch` and `complete`, without a pause. Where jobs come one by one, `work()` runs them.
 */
import PgBoss from 'pg-boss';
import { eachWith } from './in-flight.js';

const queue = 'call';
const idlePauseMs = 5;

export async function open({ connectionString, slots, settings: { size, loops, pollSeconds = 0.5 } }) {
  const boss = new PgBoss({ connectionString, max: 10, schedule: false });
  boss.on('error', (error) => console.error('pg-boss:', error));
  await boss.start();
  await boss.createQueue(queue);
  let stopping = false;
  let running = [];

  const loop = async (handle) => {
    while (!stopping) {
      const jobs = await boss.fetch(queue, { batchSize: size });
      if (jobs.length === 0) {
        await new Promise((resolve) => setTimeout(resolve, idlePauseMs));
        continue;
      }
      await eachWith(Math.ceil(slots / loops), jobs, ({ data }) => handle(data));
      await boss.complete(
        queue,
        jobs.map(({ id }) => id),
      );
    }
  };
  return {
    insert: (items) => boss.insert(items.map((data) => ({ name: queue, data }))),
    send: (item) => boss.send(queue, item),
    async start(handle) {
      stopping = false;
      running = Array.from({ length: loops }, () => loop(handle));
    },
    async stop() {
      stopping = true;
      await Promise.all(running);
    },
    async startIdle(handle) {
      await boss.work(queue, { pollingIntervalSeconds: pollSeconds }, async ([{ data }]) => handle(data));
    },
    stopIdle: () => boss.offWork(queue),
    close: () => boss.stop({ graceful: false, wait: false }),
  };
}
