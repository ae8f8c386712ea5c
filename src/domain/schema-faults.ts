/**
 * What a schema says is wrong with a value, as faults: one per mistake, all at once, each with a JSON pointer (RFC 6901) and
 * a stable code (`required`, `unknown_field`, `invalid`). Used for bodies, parameters and definitions alike, so that one
 * mistake has one name everywhere.
 */
import { z } from 'zod';
import type { Fault } from './errors.ts';
import { didYouMean } from './near-name.ts';

type Issue = z.core.$ZodIssue;
type Checked<T> = { readonly value: T; readonly faults?: never } | { readonly value?: never; readonly faults: Fault[] };

/**
 * The parsed value, or every fault in it.
 * @param prefix pointer of `input` in what was sent; empty where it is the whole.
 */
export function checkShape<S extends z.ZodType>(schema: S, input: unknown, prefix = ''): Checked<z.output<S>> {
  const result = schema.safeParse(input);
  if (result.success) return { value: result.data };
  return { faults: result.error.issues.flatMap((issue) => faultsOf(issue, schema, input, prefix)) };
}

/** RFC 6901 section 3: `~` and `/` in a member's name are escaped. */
export function jsonPointer(path: readonly PropertyKey[], prefix = ''): string {
  return prefix + path.map((part) => `/${String(part).replaceAll('~', '~0').replaceAll('/', '~1')}`).join('');
}

/** More are in the list of the faults itself. */
const mostInWords = 5;

/**
 * For people, in a line: `limit must be an integer; per is required`. Each fault names its field (an element of a list by
 * the list's name too: `keys/0`), unless its message does.
 */
export function faultsInWords(faults: readonly Fault[]): string {
  const told = faults.slice(0, mostInWords).map(inWords);
  const more = faults.length - told.length;
  return `${told.join('; ')}${more > 0 ? `; and ${more} more` : ''}`;
}

/** How messages begin that want their field as the subject. */
const predicate = /^(is|are|must|has|have|may|cannot|belongs|does) /;

function inWords({ pointer = '', code, message }: Fault): string {
  const parts = pointer.split('/').slice(1);
  const from = parts.findLastIndex((part) => !/^\d+$/.test(part));
  const field = parts
    .slice(Math.max(0, from))
    .map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'))
    .join('/');
  if (field === '' || code.startsWith('unknown_') || message.startsWith(`${field} `)) return message;
  const shown = field.length > 80 ? `${field.slice(0, 80)}…` : field;
  return predicate.test(message) ? `${shown} ${message}` : `${shown}: ${message}`;
}

function faultsOf(issue: Issue, schema: z.ZodType, input: unknown, prefix: string): Fault[] {
  const pointer = jsonPointer(issue.path, prefix);
  if (issue.code === 'unrecognized_keys') {
    return issue.keys.map((key) => ({
      pointer: jsonPointer([key], pointer),
      code: 'unknown_field',
      message: `there is no field ${quote(key)}${didYouMean(key, fieldsAt(schema, issue.path))}`,
    }));
  }
  if (issue.code === 'invalid_key') {
    return [{ pointer, code: 'invalid', message: `the name ${issue.issues.map((inner) => inner.message).join('; ')}` }];
  }
  const absent = issue.path.length > 0 && valueAt(input, issue.path) === undefined;
  const fault = absent ? { code: 'required', message: 'is required' } : { code: 'invalid', message: messageOf(issue) };
  return [pointer === '' ? fault : { pointer, ...fault }];
}

function messageOf(issue: Issue): string {
  if (issue.code === 'invalid_type') {
    const name = { int: 'integer', record: 'object' }[issue.expected as string] ?? issue.expected;
    return `must be ${/^[aeiou]/.test(name) ? 'an' : 'a'} ${name}`;
  }
  return issue.message.charAt(0).toLowerCase() + issue.message.slice(1);
}

function valueAt(input: unknown, path: readonly PropertyKey[]): unknown {
  let value = input;
  for (const part of path) {
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, part)) return undefined;
    value = (value as Record<PropertyKey, unknown>)[part];
  }
  return value;
}

/** Names of the fields that the schema has at a path; none where it is no object with fixed fields. */
function fieldsAt(schema: z.ZodType, path: readonly PropertyKey[]): string[] {
  let at: unknown = schema;
  for (const part of [...path, undefined]) {
    while (at instanceof z.ZodDefault || at instanceof z.ZodOptional || at instanceof z.ZodNullable) at = at.unwrap();
    if (part === undefined) break;
    if (at instanceof z.ZodObject) at = at.shape[String(part)];
    else if (at instanceof z.ZodRecord) at = at.valueType;
    else if (at instanceof z.ZodArray) at = at.element;
    else return [];
  }
  return at instanceof z.ZodObject ? Object.keys(at.shape) : [];
}

/** Cut, because what was sent may be long; in JSON's spelling, because it may hold control characters. */
function quote(text: string): string {
  return JSON.stringify(text.length > 80 ? `${text.slice(0, 80)}…` : text);
}
