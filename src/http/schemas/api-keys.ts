/** API keys as the admin API takes and shows them. */
import { z } from 'zod';
import { defaultTenant, scopes } from '../../domain/access.ts';
import { definitionName } from '../../domain/definitions.ts';
import { instant } from './batches.ts';

const scope = z.enum(scopes);
const aboutScopes =
  'What it may do, exactly: no scope implies another. `submit`: bring work and steer it; `read`: look at it, and `/metrics`; `receipts`: put receipts; `admin`: everything under `/admin`';
const aboutTenant =
  'Whose batches, jobs, keys and receipts it works on; a tenant sees only its own. Same syntax as names of definitions';
const name = z
  .string()
  .min(1)
  .max(200)
  .refine((text) => !/[\p{Cc}\p{Cs}]/u.test(text), 'must not have control characters or lone surrogates');

export const apiKeyRequestSchema = z
  .strictObject({
    name: name.describe('For people: who uses it, where'),
    scopes: z.array(scope).min(1).max(scopes.length).describe(aboutScopes),
    tenant: definitionName.default(defaultTenant).describe(aboutTenant),
  })
  .meta({ id: 'ApiKeyRequest', examples: [{ name: 'importer', scopes: ['submit', 'read'], tenant: 'acme' }] });

const shape = {
  id: z.uuid().describe('Names the key in the log (`key_id`) and in this API; it is no secret'),
  name: z.string().describe('As it was given'),
  tenant: z.string().describe(aboutTenant),
  scopes: z.array(scope).describe(aboutScopes),
  created_at: instant.describe('When it was made'),
};
const example = {
  id: '01a229d4-e669-74ea-9104-965b77a9264f',
  name: 'importer',
  tenant: 'acme',
  scopes: ['submit' as const, 'read' as const],
  created_at: '2026-11-30T00:22:28.206Z',
};

export const apiKeySchema = z.object(shape).meta({ id: 'ApiKey', examples: [example] });

export const newApiKeySchema = z
  .object({
    ...shape,
    key: z.string().describe('Send it as `Authorization: Bearer …`. Shown this once: only its hash is kept'),
  })
  .meta({ id: 'NewApiKey', examples: [{ ...example, key: `sluice_${'…'.repeat(8)}` }] });
