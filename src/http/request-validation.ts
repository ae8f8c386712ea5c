/**
 * Checks what a request brings against the route's zod schemas and reports every fault with a JSON pointer. Faults in the
 * body point into the body; faults elsewhere start with /query, /params or /headers.
 */
import type { FastifyInstance, FastifyRequest, FastifySchemaCompiler } from 'fastify';
import { z } from 'zod';
import { ProblemError } from '../domain/errors.ts';
import { checkShape, faultsInWords } from '../domain/schema-faults.ts';

const places: Readonly<Record<string, { prefix: string; words: string }>> = {
  body: { prefix: '', words: 'the body' },
  querystring: { prefix: '/query', words: 'the query parameters' },
  params: { prefix: '/params', words: 'the path' },
  headers: { prefix: '/headers', words: 'the headers' },
};

/** Every part of a request is checked before its handler runs; what is wrong is a 400 `invalid_request`. */
export const requestValidator: FastifySchemaCompiler<unknown> = ({ schema, httpPart = 'body' }) => {
  const { prefix, words } = places[httpPart]!;
  return (input) => {
    const { value, faults } = checkShape(schema as z.ZodType, input, prefix);
    if (faults === undefined) return { value };
    const detail = `${words}: ${faultsInWords(faults)}`;
    return { error: new ProblemError('invalid_request', detail, { errors: faults }) };
  };
};

/**
 * As `requestValidator`, but the body goes to the handler as it came: its schema is there for the OpenAPI document, and the
 * use case checks it with codes of its own.
 */
export const validatorButForBody: FastifySchemaCompiler<unknown> = (part) =>
  part.httpPart === 'body' ? (value) => ({ value }) : requestValidator(part);

const noParameters = z.strictObject({});

/**
 * Query parameters that a route does not list are errors, so each list must be a strict object; one that is not cannot be
 * registered. @param except paths of routes that are not ours
 */
export function refuseUnknownParameters(app: FastifyInstance, except?: RegExp): void {
  app.addHook('onRoute', (route) => {
    if (except?.test(route.url)) return;
    const { querystring = noParameters } = route.schema ?? {};
    if (!(querystring instanceof z.ZodObject) || !(querystring.def.catchall instanceof z.ZodNever)) {
      throw new Error(`${route.method} ${route.url}: its query parameters must be a strict object`);
    }
    route.schema = { ...route.schema, querystring };
  });
}

/** Methods whose bodies the framework reads. */
const mayBringBody: ReadonlySet<unknown> = new Set(['POST', 'PUT', 'PATCH', 'DELETE']);
const nothing = z.strictObject({});
const checkNothing = requestValidator({ schema: nothing, httpPart: 'body', method: '', url: '' });

/**
 * A route without a schema of its body takes none: what is sent all the same (`{"fresh_key": true}` to a route that has no
 * such option) was meant to do something, and is an error rather than left unread. Many clients send `{}` where they send
 * nothing.
 */
export function refuseUnreadBodies(app: FastifyInstance): void {
  app.addHook('onRoute', (route) => {
    if (route.schema?.body !== undefined || ![route.method].flat().some((method) => mayBringBody.has(method))) return;
    const refuse = async ({ body }: FastifyRequest): Promise<void> => {
      if (body === undefined) return;
      const { error } = checkNothing(body) as { error?: Error };
      if (error !== undefined) throw error;
    };
    route.preValidation = [route.preValidation ?? [], refuse].flat();
  });
}
