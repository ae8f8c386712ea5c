/**
 * What the demo plays: how many calls, under which limit, against which faults, and the definitions and items it sends.
 * Sized so that all of it ends within 40 seconds on two cores, start-up included.
 */
import type { BatchInput, RateLimitDefinitionInput, UpstreamDefinitionInput } from '../../client/index.ts';
import type { FaultMix } from '../../simulator/answers.ts';

export interface Scenario {
  readonly items: number;
  /** Starts per second. */
  readonly limit: number;
  readonly replicas: number;
  /** Name of the upstream and of the rate limit. */
  readonly name: string;
  /** Start of every idempotency key. */
  readonly keyPrefix: string;
}

/** Length of the rate limit's period, in seconds. */
export const periodSeconds = 1;

export const faults: FaultMix = {
  throttled: 0.01,
  retryAfterSeconds: 1,
  failed: 0.1,
  slow: 0.05,
  slowMs: [200, 1500],
};

/** For people: what `faults` says. */
export const faultsInWords = '1 % 429 with Retry-After 1, 10 % 500, 5 % slow';

/** Random faults of a fresh database are the same in every run. */
export const seed = 1;

/**
 * Longest the main batch may take before the demo calls it stuck, in milliseconds: twice the time that the limit alone
 * needs, and room for cooldowns and retries.
 */
export function longestRunMs(scenario: Scenario): number {
  return 12_000 + (2000 * scenario.items * periodSeconds) / scenario.limit;
}

/** The upstream's definition. Many short retries: with 10 % of failures nobody should run out of attempts. */
export function upstreamDefinition(url: string): UpstreamDefinitionInput {
  return {
    base_url: url,
    timeout_ms: 5000,
    retry: { max_attempts: 12, base_ms: 200, cap_ms: 2000 },
    // The simulator listens on loopback, which is refused unless an upstream says so.
    allow_private_addresses: true,
  };
}

export function rateLimitDefinition(scenario: Scenario): RateLimitDefinitionInput {
  return {
    limit: scenario.limit,
    per: periodSeconds,
    algorithm: 'sliding_window',
    // All the processes share this machine: where it is busy, a call may be picked up long after it was sent.
    slack_ms: 150,
    upstreams: [scenario.name],
  };
}

/** The batch that shows all four verdicts: the third item repeats the first, the fourth reuses its key for another call. */
export function verdictBatch(scenario: Scenario): object {
  const [first, second] = [`${scenario.keyPrefix}verdict-1`, `${scenario.keyPrefix}verdict-2`];
  return {
    defaults: defaultsOf(scenario),
    items: [
      { idempotency_key: first, body: { amount: 5 } },
      { idempotency_key: second, body: { amount: 7 } },
      { idempotency_key: first, body: { amount: 5 } },
      { idempotency_key: first, body: { amount: 500 } },
      { idempotency_key: `${scenario.keyPrefix}verdict-3`, method: 'FETCH', body: { amount: 9 } },
    ],
  };
}

export function mainBatch(scenario: Scenario): BatchInput {
  const digits = String(scenario.items).length;
  return {
    defaults: defaultsOf(scenario),
    items: Array.from({ length: scenario.items }, (_, i) => ({
      idempotency_key: `${scenario.keyPrefix}order-${String(i + 1).padStart(digits, '0')}`,
      body: { amount: i + 1 },
    })),
  };
}

function defaultsOf(scenario: Scenario): NonNullable<BatchInput['defaults']> {
  return { upstream: scenario.name, method: 'POST', path: '/charges' };
}
