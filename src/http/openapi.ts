/**
 * The OpenAPI 3.1 document, worked out from the routes' own schemas, and its reader at /docs. `openapi/openapi.json` is a
 * copy of it; `scripts/openapi.ts` writes and compares it. What all routes have in common (errors, keys) is added here, so
 * that no route has to say it.
 */
import swagger from '@fastify/swagger';
import swaggerUi from '@fastify/swagger-ui';
import type { FastifyInstance, FastifySchema } from 'fastify';
import { jsonSchemaTransform, jsonSchemaTransformObject } from 'fastify-type-provider-zod';
import { z } from 'zod';
import { annotated } from './openapi-annotations.ts';
import { operationId } from './operation-id.ts';
import { problemMediaType, problemSchema } from './problem-details.ts';
import { refusalsOf, refusalText } from './refusals.ts';

const description =
  'Push a batch of calls at a rate-limited API: every item gets its own verdict, what is accepted is durable, and all ' +
  'replicas together never exceed the quota. Times are RFC 3339 in UTC with milliseconds. Errors are ' +
  '`application/problem+json` (RFC 9457). Unknown query parameters and unknown fields are errors, and so is a body ' +
  '(but `{}`) where an operation takes none.\n\n' +
  'A key is sent as `Authorization: Bearer …`; each operation names the scope that it needs. No key or an unknown one is a ' +
  '401, a key without the scope a 403, and what belongs to another tenant a 404. Where submissions are limited they answer ' +
  'with `RateLimit` and `RateLimit-Policy`, and one too many is a 429 `too_many_requests` with Retry-After. A process that ' +
  'has too much to do answers 503 `overloaded` with Retry-After to submissions, lists and exports, and where too many ' +
  'batches are read at once.';

const tags = [
  { name: 'batches', description: 'Submit batches and follow them' },
  { name: 'jobs', description: 'The calls behind accepted items' },
  { name: 'receipts', description: 'What became of idempotency keys' },
  { name: 'definitions', description: 'Upstreams, rate limits and queues' },
  { name: 'rate windows', description: 'Live state of rate limits, their audit, and the levers' },
  { name: 'dead letters', description: 'Failed and held jobs, which need a person' },
  { name: 'fleet', description: 'Workers and figures of the whole' },
  { name: 'API keys', description: 'Who may call, for which tenant' },
  { name: 'health', description: 'For load balancers and supervisors' },
];

declare module 'fastify' {
  interface FastifyContextConfig {
    /** What a route takes (undefined: nothing) and answers with this status under another media type than JSON, for the document. */
    otherMedia?: {
      readonly type: string;
      readonly body?: z.ZodType;
      readonly status: number;
      readonly answer: z.ZodType;
      /** Of a stream of events: the data of each kind. */
      readonly events?: Readonly<Record<string, z.ZodType>>;
    };
  }
}

/** The reader needs no other site; styles are set inline by its script. */
const docsPolicy =
  "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; base-uri 'self'; frame-ancestors 'none'; object-src 'none'";

/** Must be called before any route that the document shall have is registered. */
export function addOpenApi(app: FastifyInstance): void {
  app.register(swagger, {
    openapi: {
      openapi: '3.1.1',
      info: { title: 'Sluice', description, version: '1', license: { name: 'Apache-2.0', identifier: 'Apache-2.0' } },
      servers: [{ url: '/' }],
      components: {
        securitySchemes: {
          key: {
            type: 'http',
            scheme: 'bearer',
            description: 'The bootstrap key of the service, or one made by `POST /admin/api-keys`',
          },
        },
      },
      tags,
    },
    transform: (document) => {
      const { scope, otherMedia } = document.route.config ?? {};
      const transformed = (schema: FastifySchema | undefined) =>
        jsonSchemaTransform({ ...document, schema: schema ?? {} });
      const id = document.schema?.operationId ?? operationId(String(document.route.method), document.url);
      const complete = completeSchema(document.schema, {
        id,
        scope,
        namesOne: document.url.includes('/:'),
        mayHaveBody: document.route.method !== 'GET',
      });
      const { schema, url } = transformed(complete);
      if (otherMedia === undefined) return { schema, url };
      const { type, body, status, answer, events } = otherMedia;
      const { schema: other } = transformed({ ...(body && { body }), response: { [status]: answer } });
      const data = events && (transformed({ response: { [status]: z.object(events) } }).schema as Shown);
      return {
        schema: withMedia(schema as Shown, type, other as Shown, { status, events: data?.response[status] }),
        url,
      };
    },
    transformObject: (document) => annotated(withoutNoise(withoutUnused(jsonSchemaTransformObject(document)))),
  });
  app.register(swaggerUi, { routePrefix: '/docs', staticCSP: docsPolicy });
  app.get('/openapi.json', { config: { scope: 'open' }, schema: { hide: true } }, async () => app.swagger());
}

interface CompletedBy {
  readonly id: string;
  readonly scope: string | undefined;
  readonly namesOne: boolean;
  readonly mayHaveBody: boolean;
}

function completeSchema(schema: FastifySchema = {}, { id, scope, namesOne, mayHaveBody }: CompletedBy): FastifySchema {
  const open = scope === undefined || scope === 'open';
  const refusals = refusalsOf({ id, open, namesOne, mayHaveBody });
  return {
    ...schema,
    operationId: id,
    security: open ? [] : [{ key: [] }],
    ...(open ? {} : { description: [schema.description, `Scope: \`${scope}\`.`].filter(Boolean).join('\n\n') }),
    response: {
      ...(schema.response as object),
      ...Object.assign(
        {},
        ...[...refusals].map(([status, codes]) => problemResponse(String(status), refusalText(codes))),
      ),
      ...problemResponse('4xx', 'Refused for another reason'),
      ...problemResponse(
        '5xx',
        'Not possible just now (503, with Retry-After where it helps), or a fault of the service',
      ),
    },
  };
}

interface ShownAnswer {
  readonly description?: string;
  readonly properties?: object;
}

interface Shown {
  readonly body?: object;
  readonly response: Readonly<Record<string, ShownAnswer>>;
}

/** The operation with a second form of its body and of its answer; of a stream of events, with the data of each kind. */
function withMedia(
  shown: Shown,
  type: string,
  other: Shown,
  { status, events }: { readonly status: number; readonly events: ShownAnswer | undefined },
): FastifySchema {
  const { description, ...json } = shown.response[status]!;
  const { body } = other;
  const answer = { schema: other.response[status], ...(events && { 'x-events': events.properties }) };
  return {
    ...shown,
    ...(body && { body: { content: { 'application/json': { schema: shown.body }, [type]: { schema: body } } } }),
    response: {
      ...shown.response,
      [status]: {
        description,
        content: events === undefined ? { 'application/json': { schema: json }, [type]: answer } : { [type]: answer },
      },
    },
  };
}

function problemResponse(status: string, text: string): object {
  return { [status]: { description: text, content: { [problemMediaType]: { schema: problemSchema } } } };
}

/** Each named schema comes in a form for requests and one for answers; the form that nobody refers to only confuses. */
function withoutUnused(document: Record<string, unknown>): Record<string, unknown> {
  const components = document.components as { schemas?: Record<string, unknown> };
  const { schemas = {}, ...others } = components;
  const used = new Set<string>();
  const look = (value: unknown): void => {
    for (const [, name] of JSON.stringify(value).matchAll(/"#\/components\/schemas\/([^"]+)"/g)) {
      if (used.has(name!)) continue;
      used.add(name!);
      look(schemas[name!] ?? null);
    }
  };
  look(document.paths);
  const kept = Object.entries(schemas).filter(([name]) => used.has(name));
  return { ...document, components: { ...others, schemas: Object.fromEntries(kept) } };
}

/** A format says more to a reader than the expression it is checked by, and that integers are safe ones goes without saying. */
function withoutNoise(document: Record<string, unknown>): Record<string, unknown> {
  const tidied: unknown = JSON.parse(JSON.stringify(document), (_name, value: unknown) => {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return value;
    const { pattern, minimum, maximum, ...schema } = value as Record<string, unknown>;
    return {
      ...schema,
      ...(pattern !== undefined && !(typeof schema.format === 'string' && typeof pattern === 'string') && { pattern }),
      ...(minimum !== undefined && minimum !== Number.MIN_SAFE_INTEGER && { minimum }),
      ...(maximum !== undefined && maximum !== Number.MAX_SAFE_INTEGER && { maximum }),
    };
  });
  return tidied as Record<string, unknown>;
}
