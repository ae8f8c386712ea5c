/**
 * Upstreams, rate limits and queues: read, put, delete, pause. The three kinds have the same routes; what differs is in
 * `kinds`. Bodies are checked by the use case, whose faults have codes of their own.
 */
import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import { jobNames } from '../../application/job-names.ts';
import {
  type DefinitionDependencies,
  deleteDefinition,
  getDefinition,
  listCooldowns,
  listDefinitions,
  putDefinition,
  setPaused,
} from '../../application/manage-definitions.ts';
import { schemas } from '../../domain/check-definitions.ts';
import { type DefinitionKind, definitionName } from '../../domain/definitions.ts';
import { ProblemError } from '../../domain/errors.ts';
import type { Stored } from '../../postgres/definitions.ts';
import { validatorButForBody } from '../request-validation.ts';
import { addedMembers, storedSchemas } from '../schemas/definitions.ts';
import { decodeCursor, encodeCursor, listOf, listParameters } from '../schemas/lists.ts';

const kinds = {
  upstreams: { path: '/admin/upstreams', one: 'an upstream', many: 'upstreams' },
  rate_limits: { path: '/admin/rate-limits', one: 'a rate limit', many: 'rate limits' },
  queues: { path: '/admin/queues', one: 'a queue', many: 'queues' },
} as const satisfies Record<DefinitionKind, { path: string; one: string; many: string }>;

/** Any text: a name that breaks the rule is a fault of the definition when it is put, and simply unknown otherwise. */
const nameParameter = z.object({ name: z.string() });
const access = { scope: 'admin' } as const;

export function adminDefinitionRoutes(app: FastifyInstance, deps: DefinitionDependencies): void {
  addKind(app, deps, 'upstreams');
  addKind(app, deps, 'rate_limits');
  addKind(app, deps, 'queues');
  addPauses(app, deps, 'upstreams');
  addPauses(app, deps, 'queues');
}

function addKind(app: FastifyInstance, deps: DefinitionDependencies, kind: DefinitionKind): void {
  const typed = app.withTypeProvider<ZodTypeProvider>();
  const { path, one, many } = kinds[kind];
  const answer: z.ZodType = storedSchemas[kind];
  const tags = ['definitions'];

  typed.get(
    path,
    {
      config: access,
      schema: {
        summary: `List ${many}`,
        description: 'By name.',
        tags,
        querystring: z.strictObject(listParameters),
        response: { 200: listOf(answer).describe(`The ${many}`) },
      },
    },
    async (request) => {
      const { cursor, limit } = request.query;
      const after = decodeCursor(definitionName, cursor) ?? '';
      const { items, next } = await listDefinitions(deps, kind, { after, limit });
      const shown = await show(deps, kind, request.principal.tenant, items);
      return { items: shown, next_cursor: next === null ? null : encodeCursor(next) };
    },
  );

  typed.get(
    `${path}/:name`,
    {
      config: access,
      schema: {
        summary: `Read ${one}`,
        tags,
        params: nameParameter,
        response: { 200: answer.describe('As it is stored') },
      },
    },
    async (request) =>
      showOne(deps, kind, request.principal.tenant, await getDefinition(deps, kind, request.params.name)),
  );

  typed.put(
    `${path}/:name`,
    {
      config: access,
      validatorCompiler: validatorButForBody,
      schema: {
        summary: `Create or replace ${one}`,
        description:
          'It is in force in every replica when this has answered. What a GET shows besides the definition may be sent back and is left out.',
        tags,
        params: nameParameter,
        body: schemas[kind],
        response: { 200: answer.describe('Replaced'), 201: answer.describe('Created') },
      },
    },
    async (request, reply) => {
      const { name } = request.params;
      const { created, stored } = await putDefinition(deps, kind, name, withoutAdded(request.body, name));
      return reply.code(created ? 201 : 200).send(await showOne(deps, kind, request.principal.tenant, stored));
    },
  );

  typed.delete(
    `${path}/:name`,
    {
      config: access,
      schema: {
        summary: `Delete ${one}`,
        description:
          kind === 'rate_limits'
            ? 'Never refused. What it has counted goes on counting until it is empty, should a limit of this name come back.'
            : kind === 'queues'
              ? '409 `in_use` while jobs that are not done depend on it, and always for `default`, where items go that name no queue.'
              : '409 `in_use` while jobs that are not done depend on it.',
        tags,
        params: nameParameter,
        response: { 204: z.null().describe('Deleted') },
      },
    },
    async (request, reply) => {
      await deleteDefinition(deps, kind, request.params.name);
      return reply.code(204).send(null);
    },
  );
}

function addPauses(app: FastifyInstance, deps: DefinitionDependencies, kind: 'upstreams' | 'queues'): void {
  const typed = app.withTypeProvider<ZodTypeProvider>();
  const { path, one } = kinds[kind];
  const answer: z.ZodType = storedSchemas[kind];

  for (const [action, paused] of [
    ['pause', true],
    ['resume', false],
  ] as const) {
    typed.post(
      `${path}/:name/${action}`,
      {
        config: access,
        schema: {
          summary: `${paused ? 'Pause' : 'Resume'} ${one}`,
          description: paused ? 'Its jobs wait; calls in flight finish.' : 'Its jobs go on.',
          tags: ['definitions'],
          params: nameParameter,
          response: { 200: answer.describe('As it is stored now') },
        },
      },
      async (request) =>
        showOne(deps, kind, request.principal.tenant, await setPaused(deps, kind, request.params.name, paused)),
    );
  }
}

async function showOne(
  deps: DefinitionDependencies,
  kind: DefinitionKind,
  tenant: string,
  stored: Stored,
): Promise<object> {
  return (await show(deps, kind, tenant, [stored]))[0]!;
}

async function show(
  deps: DefinitionDependencies,
  kind: DefinitionKind,
  tenant: string,
  items: readonly Stored[],
): Promise<object[]> {
  const shown = items.map(({ name, definition, revision, updatedAt }) => ({
    name,
    ...definition,
    revision,
    updated_at: updatedAt.toISOString(),
  }));
  if (kind !== 'upstreams') return shown;
  const cooldowns = await listCooldowns(
    deps,
    items.map((item) => item.name),
  );
  const nameOf = await jobNames(
    deps,
    tenant,
    cooldowns.map(({ jobId }) => jobId),
  );
  return shown.map((upstream) => ({
    ...upstream,
    cooldowns: cooldowns
      .filter((cooldown) => cooldown.upstream === upstream.name)
      .map(({ partitionKey, state, until, reason, status, header, jobId, at }) => ({
        partition_key: partitionKey === '' ? null : partitionKey,
        state,
        until: until.toISOString(),
        reason,
        status,
        header,
        job_id: nameOf(jobId),
        at: at.toISOString(),
      })),
  }));
}

/** A definition that was read can be changed and sent back; its name must be the one in the path. */
function withoutAdded(body: unknown, name: string): unknown {
  if (typeof body !== 'object' || body === null || Array.isArray(body)) return body;
  if ('name' in body && body.name !== name) {
    const message = `must be the name in the path, ${JSON.stringify(name)}, or be left out`;
    throw new ProblemError('invalid_definition', `name ${message}`, {
      errors: [{ pointer: '/name', code: 'invalid', message }],
    });
  }
  return Object.fromEntries(Object.entries(body).filter(([member]) => member !== 'name' && !addedMembers.has(member)));
}
