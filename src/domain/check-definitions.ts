/**
 * Everything that can be wrong with definitions, found in one go: shapes (definitions.ts), names, references between them,
 * and what only upstreams have (check-upstream.ts). The same check serves PUT, the config file and `sluice check`.
 * Codes are stable: `invalid_name`, `limit_covers_nothing`, `unknown_upstream`, `unknown_queue`, `invalid_period`,
 * `invalid_limit`, `secret_not_allowed`, `missing_environment_variable`, `base_url_private`, and the general `invalid`,
 * `required`, `unknown_field`.
 */
import type { z } from 'zod';
import { type CheckOptions, upstreamFaults } from './check-upstream.ts';
import {
  type DefinitionKind,
  definitionNamePattern,
  queueSchema,
  type RateLimit,
  rateLimitSchema,
  upstreamSchema,
} from './definitions.ts';
import type { Fault } from './errors.ts';
import { didYouMean } from './near-name.ts';
import { checkShape, jsonPointer } from './schema-faults.ts';

export const schemas = { upstreams: upstreamSchema, rate_limits: rateLimitSchema, queues: queueSchema } as const;
export const definitionKinds = Object.keys(schemas) as DefinitionKind[];

/** Names that exist besides those in the input: a Set of them, or a Map by name. */
interface Names {
  has(name: string): boolean;
  keys(): Iterable<string>;
}
export interface KnownNames {
  readonly upstreams: Names;
  readonly queues: Names;
}

const maxRevision = 2_147_483_647;
const members = ['revision', ...definitionKinds];

/**
 * Checks definitions in the shape of the config file: `{ revision?, upstreams?, rate_limits?, queues? }`, each a map by name.
 * @param known what the input may refer to besides itself
 * @returns every fault, in the order of the input, with pointers into it; empty: all is well
 */
export function checkDefinitions(input: unknown, known: KnownNames, options: CheckOptions): Fault[] {
  if (!isObject(input)) return [{ code: 'invalid', message: 'must be a JSON object' }];
  const faults: Fault[] = [];
  const names = namesIn(input, known);
  for (const [member, value] of Object.entries(input)) {
    const pointer = jsonPointer([member]);
    if (member === 'revision') faults.push(...revisionFaults(value));
    else if (!isKind(member)) {
      const message = `there is no member "${member.slice(0, 80)}"${didYouMean(member, members)}`;
      faults.push({ pointer, code: 'unknown_field', message });
    } else if (!isObject(value)) faults.push({ pointer, code: 'invalid', message: 'must be an object, by name' });
    else {
      for (const [name, definition] of Object.entries(value)) {
        if (!definitionNamePattern.test(name)) faults.push(invalidName(name, jsonPointer([name], pointer)));
        const found = definitionFaults(member, definition, names, options);
        faults.push(
          ...found.map((fault) => ({ ...fault, pointer: jsonPointer([name], pointer) + (fault.pointer ?? '') })),
        );
      }
    }
  }
  return faults;
}

/** Checks one definition, as PUT does; pointers count from the definition. */
export function checkDefinition(
  kind: DefinitionKind,
  name: string,
  definition: unknown,
  known: KnownNames,
  options: CheckOptions,
): Fault[] {
  const { pointer: _inPath, ...fault } = invalidName(name, '');
  return [...(definitionNamePattern.test(name) ? [] : [fault]), ...definitionFaults(kind, definition, known, options)];
}

/** Checks a config file on its own: what it refers to must be in it, but for the queue `default`, which always exists. */
export function checkConfigFile(json: unknown, options: CheckOptions): Fault[] {
  return checkDefinitions(json, { upstreams: new Set(), queues: new Set(['default']) }, options);
}

function revisionFaults(value: unknown): Fault[] {
  if (Number.isInteger(value) && (value as number) >= 0 && (value as number) <= maxRevision) return [];
  return [{ pointer: '/revision', code: 'invalid', message: `must be an integer from 0 to ${maxRevision}` }];
}

function invalidName(name: string, pointer: string): Fault {
  const shown = JSON.stringify(name.length > 80 ? `${name.slice(0, 80)}…` : name);
  return { pointer, code: 'invalid_name', message: `the name ${shown} does not match ${definitionNamePattern.source}` };
}

function definitionFaults(
  kind: DefinitionKind,
  definition: unknown,
  known: KnownNames,
  options: CheckOptions,
): Fault[] {
  const { faults = [] } = checkShape(schemas[kind], definition);
  if (!isObject(definition)) return faults;
  // One wrong field does not hide what is wrong with the others.
  if (kind === 'upstreams') return [...faults, ...upstreamFaults(soundFields(upstreamSchema, definition), options)];
  if (kind === 'rate_limits') {
    return [...faults.map(withLimitCode), ...coverageFaults(soundFields(rateLimitSchema, definition), known)];
  }
  return faults;
}

/** The fields that are in order taken by themselves, defaults filled in. */
function soundFields<S extends z.ZodObject>(schema: S, definition: Record<string, unknown>): Partial<z.output<S>> {
  const sound: Record<string, unknown> = {};
  for (const [field, fieldSchema] of Object.entries(schema.shape)) {
    const { success, data } = (fieldSchema as z.ZodType).safeParse(definition[field]);
    if (success) sound[field] = data;
  }
  return sound as Partial<z.output<S>>;
}

/** Fields of a rate limit whose faults have codes of their own. */
const limitCodes: Readonly<Record<string, string>> = {
  '/limit': 'invalid_limit',
  '/burst': 'invalid_limit',
  '/max_in_flight': 'invalid_limit',
  '/per': 'invalid_period',
};

function withLimitCode(fault: Fault): Fault {
  return { ...fault, code: limitCodes[fault.pointer ?? ''] ?? fault.code };
}

function coverageFaults({ upstreams, queues }: Partial<RateLimit>, known: KnownNames): Fault[] {
  if (upstreams?.length === 0 && queues?.length === 0) {
    return [{ code: 'limit_covers_nothing', message: 'covers nothing: list at least one name in upstreams or queues' }];
  }
  return [...unknownNames('upstreams', upstreams ?? [], known), ...unknownNames('queues', queues ?? [], known)];
}

function unknownNames(kind: 'upstreams' | 'queues', names: readonly string[], known: KnownNames): Fault[] {
  const word = kind.slice(0, -1);
  const faults: Fault[] = [];
  for (const [index, name] of names.entries()) {
    if (known[kind].has(name)) continue;
    const message = `there is no ${word} "${name}"${didYouMean(name, known[kind].keys())}`;
    faults.push({ pointer: `/${kind}/${index}`, code: `unknown_${word}`, message });
  }
  return faults;
}

/** What the input itself declares counts as known, whether or not it is in order. */
function namesIn(input: Record<string, unknown>, known: KnownNames): KnownNames {
  const union = (kind: 'upstreams' | 'queues') =>
    new Set([...known[kind].keys(), ...(isObject(input[kind]) ? Object.keys(input[kind]) : [])]);
  return { upstreams: union('upstreams'), queues: union('queues') };
}

function isKind(member: string): member is DefinitionKind {
  return Object.hasOwn(schemas, member);
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
