/** The OpenAPI document as a test needs it: its operations, and validators of what it says about their answers. */

import { Ajv2020 } from 'ajv/dist/2020.js';
import addFormatsModule from 'ajv-formats';
import { openApiText } from '../../scripts/openapi.ts';

export type Schema = Readonly<Record<string, unknown>>;

export interface Parameter {
  readonly name: string;
  readonly in: 'path' | 'query' | 'header';
  readonly required?: boolean;
  readonly schema: Schema;
  readonly example?: unknown;
  readonly examples?: Readonly<Record<string, { readonly value: unknown }>>;
}

export interface Media {
  readonly schema?: Schema;
  readonly example?: unknown;
  readonly examples?: Readonly<Record<string, { readonly value: unknown }>>;
}

export interface Operation {
  readonly operationId: string;
  readonly parameters?: readonly Parameter[];
  readonly requestBody?: { readonly required?: boolean; readonly content: Readonly<Record<string, Media>> };
  readonly responses: Readonly<Record<string, { readonly content?: Readonly<Record<string, Media>> }>>;
}

export interface Route {
  /** `POST /v1/batches`. */
  readonly name: string;
  readonly method: string;
  readonly path: string;
  readonly operation: Operation;
}

export interface OpenApi {
  readonly document: Schema;
  readonly routes: readonly Route[];
  /** What is wrong with a value, in words; null: it fits. */
  check(schema: Schema, value: unknown): string | null;
  /** A schema with its reference followed. */
  resolve(schema: Schema): Schema;
}

// Both are CommonJS modules whose default is their function.
const addFormats = addFormatsModule as unknown as (ajv: Ajv2020) => void;

export async function readOpenApi(): Promise<OpenApi> {
  const document = JSON.parse(await openApiText()) as {
    paths: Record<string, Record<string, Operation>>;
    components: { schemas: Record<string, Schema> };
  };
  const ajv = new Ajv2020({ strict: false, allErrors: true });
  addFormats(ajv);
  ajv.addSchema({ $id: 'doc:/', components: document.components });
  const compiled = new Map<Schema, ReturnType<Ajv2020['compile']>>();
  const routes = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => {
      const upper = method.toUpperCase();
      return { name: `${upper} ${path}`, method: upper, path, operation };
    }),
  );
  return {
    document: document as unknown as Schema,
    routes,
    check(schema, value) {
      let validate = compiled.get(schema);
      if (validate === undefined) {
        validate = ajv.compile(
          JSON.parse(JSON.stringify(schema).replaceAll('"#/components/', '"doc:/#/components/')) as object,
        );
        compiled.set(schema, validate);
      }
      return validate(value) ? null : ajv.errorsText(validate.errors);
    },
    resolve(schema) {
      const name = typeof schema.$ref === 'string' ? schema.$ref.split('/').at(-1) : undefined;
      return name === undefined ? schema : (document.components.schemas[name] ?? {});
    },
  };
}
