/** A job under a lease and an upstream, as the rules of settling and sending take them; a test names only what matters to it. */
import { type Upstream, upstreamSchema } from '../../src/domain/definitions.ts';
import { type ClaimedJob, firstLedger } from '../../src/domain/job.ts';

export function claimedJob(overrides: Partial<ClaimedJob> = {}): ClaimedJob {
  return {
    jobId: '01890a5d-ac96-774b-bcce-b302099a8057',
    batchId: '01890a5d-ac96-774b-bcce-b302099a8000',
    tenant: 'default',
    queue: 'default',
    upstream: 'shop',
    partitionKey: null,
    idempotencyKey: 'ord-1',
    keySource: 'given',
    freshKeys: 0,
    method: 'POST',
    path: '/v1/charges',
    headers: {},
    body: '{"amount":5}',
    bodyIsText: false,
    payloadVersion: null,
    maxAttempts: null,
    cost: 1,
    permitMs: null,
    slotWaitMs: 0,
    ...firstLedger,
    ...overrides,
  };
}

/** As an operator would write it, defaults filled in. */
export function upstream(definition: Record<string, unknown> = {}): Upstream {
  return upstreamSchema.parse({ base_url: 'https://api.example.test', ...definition });
}
