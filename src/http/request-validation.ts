/**
 * Checks what a request brings against the route's zod schemas and reports every fault with a JSON pointer. Faults in the
 * body point into the body; faults elsewhere start with /query, /params or /headers.
 */
import type { FastifyInstance, FastifySchemaCompiler } from 'fastify';
import { z } from 'zod';
import { ProblemError } from '../domain/errors.ts';
import { checkShape } from '../domain/schema-faults.ts';

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
    return { error: new ProblemError('invalid_request', `${words}: ${faults[0]!.message}`, { errors: faults }) };
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
