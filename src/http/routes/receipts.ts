/** Receipts by key: read one, look up many, and the receiver's own evidence. A key stands in the query or in the path. */
import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import {
  getReceipt,
  lookUpReceipts,
  putReceipt,
  type Receipt,
  type ReceiptDependencies,
} from '../../application/receipts.ts';
import { evidenceSchema, lookupAnswerSchema, lookupSchema, receiptSchema } from '../schemas/receipts.ts';

const path = '/v1/receipts';
const tags = ['receipts'];
const inQuery = z.strictObject({ key: z.string().describe('The idempotency key') });
const inPath = z.object({ key: z.string().describe('The idempotency key, percent-encoded') });

export function receiptRoutes(app: FastifyInstance, deps: ReceiptDependencies): void {
  addReads(app, deps);
  addPuts(app, deps);
}

function addReads(app: FastifyInstance, deps: ReceiptDependencies): void {
  const typed = app.withTypeProvider<ZodTypeProvider>();
  const get = {
    summary: 'Read a receipt',
    description:
      'What became of a key: of the unfinished job too. Lives as long as the key, whatever happens to the job.',
    tags,
    response: { 200: receiptSchema.describe('As it stands') },
  };
  const access = { scope: 'read' } as const;

  typed.get(path, { config: access, schema: { ...get, querystring: inQuery } }, async (request) =>
    show(await getReceipt(deps, request.principal.tenant, request.query.key)),
  );
  typed.get(`${path}/:key`, { config: access, schema: { ...get, params: inPath } }, async (request) =>
    show(await getReceipt(deps, request.principal.tenant, request.params.key)),
  );
  typed.post(
    `${path}/lookup`,
    {
      config: access,
      schema: {
        summary: 'Look up receipts',
        description: 'Up to 1,000 keys at once. A key that is not known is an item too, with the state `unknown_key`.',
        tags,
        body: lookupSchema,
        response: { 200: lookupAnswerSchema.describe('In the order of the keys') },
      },
    },
    async (request) => {
      const { keys } = request.body;
      const receipts = await lookUpReceipts(deps, request.principal.tenant, keys);
      return {
        items: receipts.map((receipt, index) =>
          receipt === null ? { idempotency_key: keys[index]!, state: 'unknown_key' as const } : show(receipt),
        ),
      };
    },
  );
}

function addPuts(app: FastifyInstance, deps: ReceiptDependencies): void {
  const typed = app.withTypeProvider<ZodTypeProvider>();
  const put = {
    summary: 'Put a receipt',
    description:
      "The receiver's own evidence that the effect was applied: ends an unfinished job as `succeeded`, also one that runs (what its call answers later is kept with the attempt). 409 where the job has ended.",
    tags,
    body: evidenceSchema.nullish(),
    response: { 200: receiptSchema.describe('The receipt, with that evidence') },
  };
  const access = { scope: 'receipts' } as const;

  typed.put(path, { config: access, schema: { ...put, querystring: inQuery } }, async (request) =>
    show(await putReceipt(deps, request.principal.tenant, request.query.key, request.body ?? {})),
  );
  typed.put(`${path}/:key`, { config: access, schema: { ...put, params: inPath } }, async (request) =>
    show(await putReceipt(deps, request.principal.tenant, request.params.key, request.body ?? {})),
  );
}

function show(receipt: Receipt): z.output<typeof receiptSchema> {
  return {
    idempotency_key: receipt.key,
    job_id: receipt.jobId,
    state: receipt.state,
    reason: receipt.reason,
    attempts: receipt.attempts,
    status: receipt.status,
    excerpt: receipt.excerpt,
    truncated: receipt.truncated,
    sha256: receipt.sha256,
    evidence: receipt.evidence,
    note: receipt.note,
    first_sent_at: iso(receipt.firstSentAt),
    ended_at: iso(receipt.endedAt),
    expires_at: iso(receipt.expiresAt),
  };
}

function iso(time: Date | null): string | null {
  return time?.toISOString() ?? null;
}
