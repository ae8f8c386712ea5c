/**
 * The simulated upstream as a process of its own, started by `upstream-process.ts`: what its parent does must not delay the
 * arrival times in its books. Speaks with the parent over Node's IPC channel and ends when that closes.
 */

import { monotonicOriginMs } from '../system/clock.ts';
import { startUpstream, type UpstreamOptions } from './upstream.ts';
import type { Command, Listening, Reply } from './upstream-process.ts';

const options = JSON.parse(process.argv[2] ?? '{}') as UpstreamOptions;
const upstream = await startUpstream(options);

/** Ctrl-C reaches the whole process group; the parent still wants the books and closes the channel when it has them. */
process.on('SIGINT', () => {});
process.on('disconnect', () => void upstream.close().then(() => process.exit(0)));
process.on('message', (command: Command) => send({ id: command.id, value: obey(command) }));
send({ id: 0, value: { url: upstream.url, originMs: monotonicOriginMs() } satisfies Listening });

function obey(command: Command): unknown {
  switch (command.call) {
    case 'requests':
      return upstream.log.requests;
    case 'count':
      return upstream.log.requests.length;
    case 'script':
      return upstream.script(...command.rules);
    case 'unscript':
      return upstream.unscript();
    case 'setFaults':
      return upstream.setFaults(command.mix);
    case 'setQuota':
      return upstream.setQuota(command.quota);
    case 'release':
      return upstream.release(command.gate);
  }
}

function send(reply: Reply): void {
  process.send?.(reply);
}
