/** BullMQ, on Redis or on PostgreSQL. Completed jobs are removed at once, which costs it least. */
import { createPostgresBackend, Queue, Worker } from 'bullmq';

const name = 'call';

export async function open({ connectionString, redisPort, slots }) {
  const onRedis = redisPort !== undefined;
  const backend = onRedis ? [] : [createPostgresBackend];
  const connection = (max) =>
    onRedis ? { host: '127.0.0.1', port: redisPort } : { connectionString, max, migrate: true };
  const queue = new Queue(
    name,
    { connection: connection(2), defaultJobOptions: { removeOnComplete: true, removeOnFail: true } },
    ...backend,
  );
  queue.on('error', (error) => console.error('bullmq:', error));
  await queue.waitUntilReady();
  let worker;
  const start = async (handle) => {
    const options = {
      connection: onRedis ? { ...connection(), maxRetriesPerRequest: null } : connection(10),
      concurrency: slots,
    };
    worker = new Worker(name, ({ data }) => handle(data), options, ...backend);
    worker.on('error', (error) => console.error('bullmq:', error));
    await worker.waitUntilReady();
  };
  const stop = () => worker.close();
  return {
    insert: (items) => queue.addBulk(items.map((data) => ({ name, data }))),
    send: (item) => queue.add(name, item),
    start,
    stop,
    startIdle: start,
    stopIdle: stop,
    close: () => queue.close(),
  };
}
