/** API keys: make one, list them, delete one. */
import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import {
  type ApiKeyDependencies,
  createApiKey,
  deleteApiKey,
  getApiKey,
  listApiKeys,
} from '../../application/api-keys.ts';
import { scopes } from '../../domain/access.ts';
import type { StoredApiKey } from '../../postgres/api-keys.ts';
import { apiKeyRequestSchema, apiKeySchema, newApiKeySchema } from '../schemas/api-keys.ts';
import { decodeCursor, encodeCursor, listOf, listParameters } from '../schemas/lists.ts';

const path = '/admin/api-keys';
const tags = ['API keys'];
const access = { scope: 'admin' } as const;
const idParameter = z.object({ id: z.string().describe('Of an API key') });

export function adminApiKeyRoutes(app: FastifyInstance, deps: ApiKeyDependencies): void {
  const typed = app.withTypeProvider<ZodTypeProvider>();

  typed.post(
    path,
    {
      config: access,
      schema: {
        summary: 'Make an API key',
        description:
          'The answer is the only time that the key itself is shown. Keys are the business of operators, as definitions are: whoever has the scope `admin` can make one for any tenant.',
        tags,
        body: apiKeyRequestSchema,
        response: { 201: newApiKeySchema.describe('Made. Keep `key`: it is not shown again') },
      },
    },
    async (request, reply) => {
      const { name, tenant, scopes: wanted } = request.body;
      const made = await createApiKey(deps, { name, tenant, scopes: scopes.filter((scope) => wanted.includes(scope)) });
      request.facts.made_key_id = made.id;
      reply.code(201).header('location', `${path}/${made.id}`).header('cache-control', 'no-store');
      return { ...show(made), key: made.key };
    },
  );

  typed.get(
    path,
    {
      config: access,
      schema: {
        summary: 'List API keys',
        description: 'Of all tenants, newest first, without the keys themselves.',
        tags,
        querystring: z.strictObject(listParameters),
        response: { 200: listOf(apiKeySchema).describe('A page of keys') },
      },
    },
    async (request) => {
      const { cursor, limit } = request.query;
      const { items, next } = await listApiKeys(deps, { before: decodeCursor(z.uuid(), cursor) ?? null, limit });
      return { items: items.map(show), next_cursor: next === null ? null : encodeCursor(next) };
    },
  );

  typed.get(
    `${path}/:id`,
    {
      config: access,
      schema: {
        summary: 'Read an API key',
        description: 'Without the key itself.',
        tags,
        params: idParameter,
        response: { 200: apiKeySchema.describe('As it was made') },
      },
    },
    async (request) => show(await getApiKey(deps, request.params.id)),
  );

  typed.delete(
    `${path}/:id`,
    {
      config: access,
      schema: {
        summary: 'Delete an API key',
        description:
          'From the answer on no replica takes it; requests that are under way, streams among them, finish. What it brought stays with its tenant.',
        tags,
        params: idParameter,
        response: { 204: z.null().describe('Deleted') },
      },
    },
    async (request, reply) => {
      await deleteApiKey(deps, request.params.id);
      return reply.code(204).send(null);
    },
  );
}

function show({ id, name, tenant, scopes: its, createdAt }: StoredApiKey): z.output<typeof apiKeySchema> {
  return { id, name, tenant, scopes: [...its], created_at: createdAt.toISOString() };
}
