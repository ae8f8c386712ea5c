/** How long a job takes from its POST to its call's arrival at the upstream, and the POST to its answer, one job at a time. */
import { once } from 'node:events';
import { Agent, type ClientRequest, type IncomingMessage, request } from 'node:http';
import { text } from 'node:stream/consumers';
import type { UpstreamProcess } from '../src/simulator/upstream-process.ts';
import { systemClock as clock } from '../src/system/clock.ts';

const arrivesWithinMs = 10_000;
/** Pause before the next one: all have gone to sleep again, and what follows a call (its outcome) is over. As with the peers. */
const shortestPauseMs = 10;
const longestPauseMs = 20;

export interface PostTimes {
  /** Milliseconds, ascending, until the upstream has read the head of the call. */
  readonly toCall: number[];
  /** Likewise, until the client has read the head of the answer. */
  readonly toAnswer: number[];
}

/**
 * One POST per item, from when it is written, to a socket that is open, by the one monotonic clock of the machine. Nobody asks
 * the upstream anything meanwhile.
 */
export async function timePosts(
  serviceUrl: string,
  upstream: UpstreamProcess,
  items: ReadonlyArray<{ readonly idempotency_key: string }>,
): Promise<PostTimes> {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const sentMs = new Map<string, number>();
  const toAnswer: number[] = [];
  let calls = await upstream.count();
  for (const item of items) {
    const body = JSON.stringify({ defaults: { upstream: 'api', path: '/charges' }, items: [item] });
    const post = await openPost(`${serviceUrl}/v1/batches`, agent, body);
    const now = clock.monotonicMs();
    sentMs.set(item.idempotency_key, now);
    post.end(body);
    const [answer] = (await once(post, 'response')) as [IncomingMessage];
    toAnswer.push(clock.monotonicMs() - now);
    const told = await text(answer);
    if (answer.statusCode !== 202) throw new Error(`the POST was answered ${answer.statusCode}: ${told}`);
    do {
      if (clock.monotonicMs() - now > arrivesWithinMs)
        throw new Error(`${item.idempotency_key} did not arrive in time`);
      await clock.sleep(shortestPauseMs + Math.random() * (longestPauseMs - shortestPauseMs));
    } while ((await upstream.count()) === calls);
    calls += 1;
  }
  agent.destroy();
  const toCall = (await upstream.log()).requests.flatMap(({ key, arrivedMs }) => {
    const sent = key === null ? undefined : sentMs.get(key);
    return sent === undefined ? [] : [arrivedMs + upstream.clockAheadMs - sent];
  });
  return { toCall: ascending(toCall), toAnswer: ascending(toAnswer) };
}

const ascending = (values: number[]) => values.sort((a, b) => a - b);

/** A request with its socket open, of which nothing is written yet: what a client does before that is not the service's. */
async function openPost(url: string, agent: Agent, body: string): Promise<ClientRequest> {
  const post = request(url, {
    agent,
    method: 'POST',
    headers: { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) },
  });
  const [socket] = await once(post, 'socket');
  if (socket.connecting) await once(socket, 'connect');
  return post;
}
