/**
 * Brings work to a soak: at a steady rate, whatever becomes of it, or as much as is worked off, so that a little always waits.
 * Each key ends with the time of its POST.
 */
import { Pool, request } from 'undici';
import { systemClock as clock } from '../src/system/clock.ts';
import { items } from './calls-to-make.ts';

export interface Feeder {
  /** Items taken in so far. */
  readonly posted: number;
  /** Ends once what is on its way has been answered; rejects where a POST failed. */
  stop(): Promise<void>;
}

const inFlight = 4;
const tickMs = 50;
/** Below so many waiting a closed loop posts the next batch. */
const enoughWaiting = 3_000;
const closedBatch = 1_000;

/**
 * So many items a second, by the clock, in batches of what is due after a tick: what was late is made up for.
 * @param lanes they go to, in turn
 */
export function feedSteadily(serviceUrl: string, lanes: number, perSecond: number): Feeder {
  const startMs = clock.monotonicMs();
  const least = (perSecond * tickMs) / 1000;
  return feed(serviceUrl, lanes, async (given) => {
    const due = Math.floor(((clock.monotonicMs() - startMs) * perSecond) / 1000) - given;
    return due < least ? 0 : Math.min(due, closedBatch);
  });
}

/** As many as have been called. @param lanes they go to, in turn */
export function feedAsCalled(serviceUrl: string, lanes: number, called: () => Promise<number>): Feeder {
  return feed(serviceUrl, lanes, async (given) => (given - (await called()) < enoughWaiting ? closedBatch : 0));
}

/** `next`: how many to post now, by how many have been given out. */
function feed(serviceUrl: string, lanes: number, next: (given: number) => Promise<number>): Feeder {
  const pool = new Pool(serviceUrl, { connections: inFlight });
  const stopped = new AbortController();
  let given = 0;
  let posted = 0;
  const post = async (count: number) => {
    given += count;
    const now = clock.wallMs();
    const batch = items(`soak-${given}`, count).map((item, place) => ({
      ...item,
      idempotency_key: `${item.idempotency_key}-${now}`,
      ...(lanes === 1 ? {} : { partition_key: `lane-${place % lanes}` }),
    }));
    const answer = await request(`${serviceUrl}/v1/batches`, {
      dispatcher: pool,
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ defaults: { upstream: 'api', method: 'POST', path: '/charges' }, items: batch }),
    });
    const text = await answer.body.text();
    if (answer.statusCode !== 202) throw new Error(`answered ${answer.statusCode}: ${text.slice(0, 300)}`);
    posted += count;
  };
  const loop = async () => {
    while (!stopped.signal.aborted) {
      const count = await next(given);
      if (count > 0) await post(count);
      else await clock.sleep(tickMs, stopped.signal);
    }
  };
  const loops = Promise.all(Array.from({ length: inFlight }, loop));
  // Told by stop(); until then a failure must not end the process.
  loops.catch(() => stopped.abort());
  return {
    get posted() {
      return posted;
    },
    async stop() {
      stopped.abort();
      await loops;
      await pool.close();
    },
  };
}
