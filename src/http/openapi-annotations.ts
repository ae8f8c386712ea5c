/**
 * What makes the OpenAPI document good to read and does not belong to a schema: words for fields and path parameters that have
 * none of their own, and examples.
 */
import { bodyExamples, schemaExamples } from './openapi-examples.ts';
import { fieldWords, pathWords, schemaWords } from './openapi-words.ts';

type Json = Readonly<Record<string, unknown>>;

interface Body {
  readonly content: Readonly<Record<string, { readonly schema: Json }>>;
}

interface Operation extends Json {
  readonly operationId: string;
  readonly parameters?: ReadonlyArray<Json & { readonly name: string; readonly in: string }>;
  readonly requestBody?: Body;
}

interface Document extends Json {
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>;
  readonly components: Json & { readonly schemas: Readonly<Record<string, Json>> };
}

/** The document with them. */
export function annotated(document: Json): Json {
  const { paths, components, ...others } = document as Document;
  const schemas = mapValues(components.schemas, (schema, name) => {
    const description = schemaWords[name];
    const worded = { ...(description && { description }), ...(withWords(schema, name, name) as Json) };
    const example = schemaExamples[name];
    return example === undefined ? worded : { ...worded, examples: [example] };
  });
  const operations = mapValues(paths, (methods) => mapValues(methods, describeOperation));
  return { ...others, components: { ...components, schemas }, paths: operations };
}

function describeOperation(operation: Operation): Json {
  const { operationId: id, parameters, requestBody } = operation;
  return {
    ...(withWords(operation, id, id) as Json),
    ...(parameters && {
      parameters: parameters.map((each) =>
        each.in === 'path' ? { description: pathWords[each.name], ...each } : each,
      ),
    }),
    ...(requestBody && { requestBody: describeBody(requestBody, id) }),
  };
}

function describeBody(body: Body, id: string): Json {
  const content = mapValues(body.content, (media) => {
    const schema = withWords(media.schema, id, id);
    return bodyExamples[id] === undefined ? { ...media, schema } : { ...media, schema, example: bodyExamples[id] };
  });
  // A body that may be null may be left out.
  const optional = Object.values(body.content).some(
    ({ schema }) => Array.isArray(schema.anyOf) && schema.anyOf.some((each) => (each as Json).type === 'null'),
  );
  return { ...body, content, ...(optional && { required: false }) };
}

/** Words for each property without its own. @param owner of the properties: a schema's name, or a property's. */
function withWords(value: unknown, root: string, owner: string): unknown {
  if (Array.isArray(value)) return value.map((each) => withWords(each, root, owner));
  if (typeof value !== 'object' || value === null) return value;
  return mapValues(value as Json, (each, key) => {
    if (key === 'examples' || key === 'example' || key === 'default') return each;
    if (key !== 'properties') return withWords(each, root, owner);
    return mapValues(each as Readonly<Record<string, Json>>, (property, name) => {
      const words = fieldWords[`${root}/${owner}.${name}`] ?? fieldWords[`${owner}.${name}`] ?? fieldWords[name];
      const worded = withWords(property, root, name) as Json;
      return '$ref' in property || words === undefined ? worded : { description: words, ...worded };
    });
  });
}

function mapValues<T, U>(
  values: Readonly<Record<string, T>>,
  change: (value: T, name: string) => U,
): Record<string, U> {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, change(value, name)]));
}
