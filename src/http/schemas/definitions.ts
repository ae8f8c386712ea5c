/** Definitions as the admin API shows them: as they are written, and what the service adds for reading. */
import { z } from 'zod';
import {
  type DefinitionKind,
  definitionName,
  queueSchema,
  rateLimitSchema,
  upstreamSchema,
} from '../../domain/definitions.ts';

upstreamSchema.register(z.globalRegistry, { id: 'UpstreamDefinition' });
rateLimitSchema.register(z.globalRegistry, { id: 'RateLimitDefinition' });
queueSchema.register(z.globalRegistry, { id: 'QueueDefinition' });

const cooldownSchema = z
  .object({
    partition_key: z.string().nullable().describe('null: of the whole upstream'),
    state: z.enum(['cooling', 'probing']),
    until: z.iso.datetime(),
    reason: z.string(),
    status: z.number().int().nullable(),
    header: z.string().nullable().describe('The Retry-After that was seen'),
    job_id: z.uuid().nullable().describe('The job that met it; null: none did, or it is of another tenant'),
    at: z.iso.datetime(),
  })
  .meta({ id: 'Cooldown' });

const added = {
  revision: z.number().int().describe('A config file overwrites it only with a higher one'),
  updated_at: z.iso.datetime(),
};

/** Answers by kind. */
export const storedSchemas = {
  upstreams: z
    .object({ name: definitionName, ...upstreamSchema.shape, ...added, cooldowns: z.array(cooldownSchema) })
    .meta({ id: 'Upstream' }),
  rate_limits: z.object({ name: definitionName, ...rateLimitSchema.shape, ...added }).meta({ id: 'RateLimit' }),
  queues: z.object({ name: definitionName, ...queueSchema.shape, ...added }).meta({ id: 'Queue' }),
} as const satisfies Record<DefinitionKind, z.ZodType>;

/** What an answer has besides the definition. A definition that was read may be sent back whole: these are left out then. */
export const addedMembers: ReadonlySet<string> = new Set(['revision', 'updated_at', 'cooldowns']);
