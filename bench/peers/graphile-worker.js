/** graphile-worker, with jobs taken ahead into its local queue and completed in batches, as its page on performance says. */
import { Logger, makeWorkerUtils, run } from 'graphile-worker';

const logger = new Logger(() => (level, message) => {
  if (level === 'error') console.error('graphile-worker:', message);
});

export async function open({ connectionString, slots, settings: { prefetch, completeDelayMs } }) {
  const utils = await makeWorkerUtils({ connectionString, logger });
  await utils.migrate();
  let runner;
  const start = async (handle, preset) => {
    runner = await run({
      preset: { worker: { connectionString, concurrentJobs: slots, maxPoolSize: 25, logger, ...preset } },
      taskList: { call: (item) => handle(item) },
      noHandleSignals: true,
    });
  };
  const stop = () => runner.stop();
  const batched = { completeJobBatchDelay: completeDelayMs, failJobBatchDelay: completeDelayMs };
  return {
    insert: (items) => utils.addJobs(items.map((payload) => ({ identifier: 'call', payload }))),
    send: (item) => utils.addJob('call', item),
    start: (handle) => start(handle, { localQueue: { size: prefetch }, ...batched }),
    stop,
    startIdle: (handle) => start(handle, {}),
    stopIdle: stop,
    close: () => utils.release(),
  };
}
