/**
 * A whole deployment for one end-to-end test: a fresh database, service processes, and an upstream in a process of its own
 * (so that what the test does cannot delay the arrival times in its books), with the upstream `api` declared.
 */
import type { Test } from 'tap';
import type { RequestLog } from '../../src/simulator/request-log.ts';
import { type TestClient, waitFor } from './client.ts';
import { createTestDatabase, type TestDatabase } from './database.ts';
import { type Service, startReplicas } from './service.ts';
import { type UpstreamOptions, type UpstreamProcess, useUpstreamProcess } from './upstream.ts';

export interface FleetOptions {
  /** Default 1. */
  readonly replicas?: number;
  readonly env?: Readonly<Record<string, string>>;
  readonly upstream?: UpstreamOptions;
  /** Goes over the test's defaults of the upstream `api`. */
  readonly definition?: object;
  /** Starts per second of a sliding window over `api`; absent: no rate limit. */
  readonly perSecond?: number;
  /** Jitter between start and arrival that the window absorbs; default: what a busy test machine may need. */
  readonly slackMs?: number;
}

/** On two busy cores the upstream may see a call this much later than it was sent. */
const busyMachineMs = 250;

export interface Fleet {
  readonly database: TestDatabase;
  readonly upstream: UpstreamProcess;
  readonly services: readonly Service[];
  /** Speaks with the first service. */
  readonly client: TestClient;
}

export async function startFleet(t: Test, options: FleetOptions = {}): Promise<Fleet> {
  const [database, upstream] = await Promise.all([createTestDatabase(t), useUpstreamProcess(t, options.upstream)]);
  const env = options.env === undefined ? {} : { env: options.env };
  const services = await startReplicas(t, options.replicas ?? 1, { databaseUrl: database.connectionString, ...env });
  const client = (services[0] as Service).client;
  await client.putUpstream('api', upstream.url, options.definition);
  if (options.perSecond !== undefined) {
    const { perSecond: limit, slackMs = busyMachineMs } = options;
    await client.putRateLimit('api', { limit, per: 1, slack_ms: slackMs, upstreams: ['api'] });
  }
  return { database, upstream, services, client };
}

/** Polls the upstream's log until it fulfils the condition. */
export function waitForLog(
  upstream: UpstreamProcess,
  until: (log: RequestLog) => boolean,
  timeoutMs = 20_000,
): Promise<RequestLog> {
  return waitFor(() => upstream.log(), until, timeoutMs);
}

/** Every key took effect exactly once, and nothing else did. */
export function assertOneEffectEach(t: Test, log: RequestLog, keys: readonly string[]): void {
  const effects = log.effectsByKey();
  t.same(
    keys.filter((key) => effects.get(key) !== 1),
    [],
    'keys without exactly one effect',
  );
  t.same(
    [...effects.keys()].filter((key) => !keys.includes(key)),
    [],
    'keys that nobody submitted',
  );
  t.same(log.doubles(), [], 'keys or jobs with two effects');
}
