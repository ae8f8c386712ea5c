/** How often maintenance looks for jobs of workers that are not there any more, which reads all that run and all that ran. */
import t from 'tap';
import { DefinitionStore } from '../../src/application/definitions.ts';
import { systemClock } from '../../src/system/clock.ts';
import { createLogger } from '../../src/system/logger.ts';
import { Maintenance } from '../../src/worker/maintenance.ts';
import { useClaims } from '../support/claims.ts';
import { eventually } from '../support/eventually.ts';

const lookText = '"neverCalled"';

t.test('a look that takes long comes for a hundredth of the time, a short one every five seconds', async (t) => {
  for (const [tookMs, everyMs] of [
    [0, 5_000],
    [400, 40_000],
  ] as const) {
    const store = await useClaims(t, { max: 1 });
    // A clock on which only sleep takes time, and these looks.
    let nowMs = 0;
    const clock = {
      ...systemClock,
      monotonicMs: () => nowMs,
      async sleep(ms: number, signal?: AbortSignal) {
        await systemClock.sleep(1, signal);
        nowMs += ms;
      },
    };
    const looksAtMs: number[] = [];
    let rounds = 0;
    store.database.pool.on('connect', (client) => {
      const query = client.query.bind(client);
      const counted = (...asked: [{ text?: string; values?: unknown[] }]) => {
        if (asked[0].text?.includes(lookText)) {
          rounds += 1;
          if (asked[0].values?.[1] === true) {
            looksAtMs.push(nowMs);
            nowMs += tookMs;
          }
        }
        return (query as (...all: unknown[]) => unknown)(...asked);
      };
      Object.assign(client, { query: counted });
    });
    // The connection that is open has not been counted.
    await store.database.query('select pg_terminate_backend(pg_backend_pid())').catch(() => undefined);
    const definitions = new DefinitionStore(store.database);
    const maintenance = new Maintenance({
      database: store.database,
      clock,
      logger: createLogger('silent'),
      currentDefinitions: () => definitions.current(),
      retention: { retentionDays: 30, keyRetentionDays: 7 },
    });
    maintenance.start();
    await eventually('a hundred rounds', () => rounds >= 100);
    await maintenance.stop();
    t.ok(looksAtMs.length >= 2, `${looksAtMs.length} looks`);
    for (const [i, atMs] of looksAtMs.slice(1).entries()) {
      const sinceMs = atMs - looksAtMs[i]!;
      t.ok(sinceMs >= everyMs && sinceMs < everyMs + 3_000, `after ${Math.round(sinceMs)} ms`);
    }
  }
});
