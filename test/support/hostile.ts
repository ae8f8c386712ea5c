/** Values made from schemas for a fuzz run: what fits, what nearly fits, and what nobody should send. */
import fc from 'fast-check';
import type { OpenApi, Schema } from './openapi.ts';

/** Texts that have broken servers: control characters, lone surrogates, other notations of numbers, paths, prototypes, SQL. */
export const hostileTexts: readonly string[] = [
  '',
  ' ',
  '\u0000',
  'a\u0000b',
  '\ud800',
  '\u202e\u200b',
  '🔑'.repeat(70),
  'x'.repeat(300),
  'x'.repeat(9_000),
  '../../etc/passwd',
  '/..%2f..',
  '__proto__',
  'constructor',
  "' or 1=1 --",
  '$1',
  '%',
  '%ff',
  '{}',
  'null',
  'NaN',
  '1e3',
  '0x10',
  '-0',
  '99999999999999999999',
  '2026-13-45T99:99:99Z',
  '0000-01-01T00:00:00.000Z',
  '9999-12-31T23:59:59.999+14:00',
  '+275760-09-13T00:00:00.000Z',
  '00000000-0000-0000-0000-000000000000',
  'ffffffff-ffff-ffff-ffff-ffffffffffff',
  'eyJhIjoxfQ',
  'bnVsbA',
  'W10',
  'MTIzNDU2Nzg5MDEyMzQ1Njc4OTA',
];

const hostileValue = fc.oneof(
  fc.constantFrom<unknown>(null, true, 0, -1, 1.5, 1e308, 2 ** 53, -(2 ** 63), [], {}, [[[[]]]], {
    __proto__: null,
    constructor: 1,
  }),
  fc.constantFrom(...hostileTexts),
  fc.jsonValue({ maxDepth: 2 }),
);

/** Schema by name of a member, where what fits is known better: ids and names that exist. */
export type Pools = Readonly<Record<string, readonly unknown[]>>;

/** Mostly what fits the schema; now and then something else in its place, at any depth. */
export function valueFor(openApi: OpenApi, schema: Schema, pools: Pools, name = '', depth = 0): fc.Arbitrary<unknown> {
  const resolved = openApi.resolve(schema);
  const pool = pools[name];
  const fitting = fit(openApi, resolved, pools, depth);
  return fc.oneof(
    { weight: pool === undefined ? 20 : 4, arbitrary: fitting },
    { weight: 2, arbitrary: hostileValue },
    ...(pool === undefined ? [] : [{ weight: 16, arbitrary: fc.constantFrom(...pool) }]),
  );
}

function fit(openApi: OpenApi, schema: Schema, pools: Pools, depth: number): fc.Arbitrary<unknown> {
  const part = (each: Schema, name = '') => valueFor(openApi, each, pools, name, depth + 1);
  const { enum: values, const: only, type, examples, anyOf, oneOf } = schema;
  const examplePool = Array.isArray(examples) && examples.length > 0 ? [fc.constantFrom<unknown>(...examples)] : [];
  if (only !== undefined) return fc.constant(only);
  if (Array.isArray(values)) return fc.constantFrom<unknown>(...values);
  const either = (anyOf ?? oneOf) as Schema[] | undefined;
  if (either !== undefined) return fc.oneof(...examplePool, ...either.map((each) => part(each)));
  if (Array.isArray(type)) return fc.oneof(...type.map((each: unknown) => part({ ...schema, type: each })));
  if (type === 'object') return fc.oneof(...examplePool, objectOf(schema, part));
  if (type === 'array') {
    const { items = {}, maxItems = 4 } = schema as { items?: Schema; maxItems?: number };
    return fc.oneof(
      ...examplePool,
      fc.array(depth > 4 ? fc.constant(null) : part(items), { maxLength: Math.min(maxItems, 4) }),
    );
  }
  return fc.oneof(...examplePool, scalarOf(schema));
}

function objectOf(
  schema: Schema,
  part: (schema: Schema, name?: string) => fc.Arbitrary<unknown>,
): fc.Arbitrary<unknown> {
  const {
    properties = {},
    required = [],
    additionalProperties,
  } = schema as {
    properties?: Record<string, Schema>;
    required?: string[];
    additionalProperties?: Schema | boolean;
  };
  const members = Object.fromEntries(Object.entries(properties).map(([name, each]) => [name, part(each, name)]));
  const known = fc.record(members, { requiredKeys: required.filter((name) => name in members) });
  if (typeof additionalProperties === 'object') {
    const name = fc.oneof(fc.constantFrom('x-one', 'content-type', 'Host', 'cookie'), fc.constantFrom(...hostileTexts));
    return fc.dictionary(name, part(additionalProperties), { maxKeys: 3 });
  }
  return fc.oneof(
    { weight: 15, arbitrary: known },
    { weight: 1, arbitrary: fc.tuple(known, hostileValue).map(([value, more]) => ({ ...value, surprise: more })) },
  );
}

function scalarOf(schema: Schema): fc.Arbitrary<unknown> {
  const { type, format, minimum, maximum, exclusiveMinimum, pattern } = schema as {
    type?: string;
    format?: string;
    minimum?: number;
    maximum?: number;
    exclusiveMinimum?: number;
    pattern?: string;
  };
  const [min, max] = [minimum ?? exclusiveMinimum ?? -1000, maximum ?? 1_000_000];
  if (type === 'integer') {
    return fc.oneof(
      fc.constantFrom(min, max, min - 1, max + 1, 0, 1),
      fc.integer({ min: Math.max(min, -(2 ** 31)), max: Math.min(max, 2 ** 31 - 1) }),
    );
  }
  if (type === 'number') return fc.oneof(fc.constantFrom(min, max, 0.5), fc.double({ noNaN: true }));
  if (type === 'boolean') return fc.boolean();
  if (type === 'null') return fc.constant(null);
  if (type !== 'string') return hostileValue;
  if (format === 'uuid') return fc.uuid();
  if (format === 'date-time') return fc.date({ noInvalidDate: true }).map((date) => date.toISOString());
  if (format === 'uri')
    return fc.constantFrom('https://api.example.test/v1', 'http://10.0.0.1', 'ftp://x', 'https://u:p@x/');
  if (pattern?.startsWith('^[a-z0-9]')) return fc.stringMatching(/^[a-z0-9][a-z0-9._-]{0,5}$/);
  return fc.oneof(fc.string(), fc.string({ unit: 'binary' }), fc.constantFrom(...hostileTexts));
}
