/**
 * From the text of a request to a `Submission`: parsed, every item checked alone and completed by the defaults, its body kept
 * as JSON text and its fingerprint taken. Needs no definitions and no database. Works on the text, because parsing changes
 * numbers and says nothing of it.
 * Members named `__proto__` are refused in the envelope, the defaults, items and headers, the request as a whole; inside a
 * body they are data like any other, and are neither merged nor lost.
 */
import { type Fault, ProblemError } from '../domain/errors.ts';
import { derivedKey, fingerprint, keyFault, requestFingerprint } from '../domain/idempotency.ts';
import type { KeySource } from '../domain/job.ts';
import { holdsLargeNumber, nestsDeeperThan, type UnsafeNumber, unsafeNumbers } from '../domain/json-source.ts';
import { checkItemHeaders, checkPath } from '../domain/outbound-request.ts';
import { checkShape, jsonPointer } from '../domain/schema-faults.ts';
import { defaultQueue, maxItems, maxNesting, type Submission, type SubmittedItem } from '../domain/submission.ts';
import { envelopeSchema, itemSchema, type SentDefaults, type SentItem } from './schemas/batches.ts';

export interface ReadSubmission {
  readonly submission: Submission;
  /** Hex SHA-256 of the request, for its own Idempotency-Key. */
  fingerprint(): string;
}

/**
 * Throws a ProblemError where the envelope is at fault: `malformed_json`, `invalid_request`, `empty_batch`,
 * `too_many_items`. What is wrong with an item is in its faults.
 */
export function readSubmission(text: string): ReadSubmission {
  const value = parse(text);
  const { value: envelope, faults } = checkShape(envelopeSchema, value);
  refusePrototypes(value);
  if (faults !== undefined) {
    throw new ProblemError('invalid_request', `the batch: ${faults[0]!.message}`, { errors: faults });
  }
  const { queue = defaultQueue, derive_keys: deriveKeys = false, defaults = {}, items } = envelope;
  if (items.length === 0) throw new ProblemError('empty_batch', 'items is empty; a batch has at least one');
  if (items.length > maxItems) {
    throw new ProblemError('too_many_items', `the batch has ${items.length} items, the limit is ${maxItems}`);
  }
  let unsafe: UnsafeNumber[] | undefined;
  const context: Context = {
    queue,
    deriveKeys,
    defaults,
    unsafeIn: (path) => {
      unsafe ??= unsafeNumbers(text, value);
      return unsafe.filter((each) => path.every((part, level) => each.path[level] === part));
    },
  };
  return {
    submission: {
      correlationId: envelope.correlation_id ?? null,
      items: items.map((item, index) => readItem(item, index, context)),
    },
    fingerprint: () => requestFingerprint(text, value),
  };
}

function parse(text: string): unknown {
  if (nestsDeeperThan(text, maxNesting)) {
    throw new ProblemError('malformed_json', `the body nests deeper than ${maxNesting} levels`);
  }
  try {
    return JSON.parse(text);
  } catch (error) {
    // The parser's message may quote the body; its position says enough.
    const position = /at position \d+/.exec((error as Error).message)?.[0];
    throw new ProblemError(
      'malformed_json',
      `the body is not valid JSON${position === undefined ? '' : `, ${position}`}`,
    );
  }
}

/** Looks where objects are read by name; bodies are not. */
function refusePrototypes(value: unknown): void {
  const refuse = (object: unknown, pointer: string) => {
    if (typeof object !== 'object' || object === null || !Object.hasOwn(object, '__proto__')) return;
    const fault = { pointer: `${pointer}/__proto__`, code: 'forbidden_member', message: 'this name is not taken here' };
    throw new ProblemError('invalid_request', 'a member is named __proto__', { errors: [fault] });
  };
  const refuseIn = (item: unknown, pointer: string) => {
    refuse(item, pointer);
    if (typeof item === 'object' && item !== null && 'headers' in item) refuse(item.headers, `${pointer}/headers`);
  };
  refuse(value, '');
  if (typeof value !== 'object' || value === null) return;
  if ('defaults' in value) refuseIn(value.defaults, '/defaults');
  if ('items' in value && Array.isArray(value.items)) {
    for (const [index, item] of value.items.entries()) refuseIn(item, `/items/${index}`);
  }
}

/** What all items of a batch share. */
interface Context {
  readonly queue: string;
  readonly deriveKeys: boolean;
  readonly defaults: SentDefaults;
  /** Numbers that parsing has changed, below this place of the request. */
  unsafeIn(path: readonly (string | number)[]): readonly UnsafeNumber[];
}

function readItem(sent: unknown, index: number, context: Context): SubmittedItem {
  const pointer = `/items/${index}`;
  const { value: item, faults: shapeFaults } = checkShape(itemSchema, sent, pointer);
  if (shapeFaults !== undefined) {
    const faults = shapeFaults.map((fault) =>
      fault.pointer === `${pointer}/idempotency_key` ? { ...fault, code: 'invalid_key' } : fault,
    );
    const key = legalKeyOf(sent);
    return { key, keySource: key === null ? null : 'given', job: null, faults };
  }

  const { defaults } = context;
  const faults: Fault[] = [];
  const blame = (field: string, code: string, message: string) =>
    faults.push({ pointer: `${pointer}/${field}`, code, message });

  const { upstream = defaults.upstream, path = defaults.path, headers = defaults.headers } = item;
  if (upstream === undefined) blame('upstream', 'required', 'is required, here or in defaults');
  if (path === undefined) blame('path', 'required', 'is required, here or in defaults');
  const pathFault = path === undefined ? null : checkPath(path);
  const relative = headers === undefined ? [] : checkItemHeaders(headers, null);
  if (pathFault !== null) relative.unshift(pathFault);
  for (const fault of relative) faults.push({ ...fault, pointer: `${pointer}${fault.pointer ?? ''}` });
  const body = readBody(item, index, context, faults);

  const given = item.idempotency_key ?? null;
  const wrongKey = given === null ? null : keyFault(given);
  if (wrongKey !== null) blame('idempotency_key', 'invalid_key', wrongKey);
  if (given === null && !context.deriveKeys) {
    blame('idempotency_key', 'missing_idempotency_key', 'is required, unless the batch has derive_keys: true');
  }
  const keySource: KeySource = given === null ? 'derived' : 'given';
  if (faults.length > 0) {
    const key = wrongKey === null ? given : null;
    return { key, keySource: key === null ? null : keySource, job: null, faults };
  }

  const method = item.method ?? defaults.method ?? 'POST';
  const lowerHeaders = headers === undefined ? null : lowerCased(headers);
  const print = fingerprint({
    upstream: upstream!,
    method,
    path: path!,
    headers: lowerHeaders,
    body: body === null ? null : body.isText ? { text: body.value as string } : { json: body.value },
  });
  const key = given ?? derivedKey(print);
  const job = {
    key,
    keySource,
    fingerprint: print,
    upstream: upstream!,
    queue: item.queue ?? defaults.queue ?? context.queue,
    method,
    path: path!,
    headers: lowerHeaders,
    body: body === null ? null : JSON.stringify(body.value),
    bodyIsText: body?.isText ?? false,
    partitionKey: orDefault(item.partition_key, defaults.partition_key),
    priority: item.priority ?? defaults.priority ?? 0,
    runAt: inUtc(orDefault(item.run_at, defaults.run_at)),
    expiresAt: inUtc(orDefault(item.expires_at, defaults.expires_at)),
    cost: item.cost ?? defaults.cost ?? 1,
    maxAttempts: orDefault(item.max_attempts, defaults.max_attempts),
    payloadVersion: orDefault(item.payload_version, defaults.payload_version),
  };
  return { key, keySource, job, faults };
}

/** What goes out as the body: the item's, else the defaults', in one of two forms; null: none. */
function readBody(
  item: SentItem,
  index: number,
  context: Context,
  faults: Fault[],
): { readonly value: unknown; readonly isText: boolean } | null {
  const own = 'body' in item || 'body_text' in item;
  const source = own ? item : context.defaults;
  const pointer = own ? `/items/${index}` : '/defaults';
  const hasBody = 'body' in source;
  if ('body_text' in source) {
    if (hasBody) faults.push({ pointer, code: 'invalid', message: 'has both body and body_text; give one of them' });
    if (/\p{Cs}/u.test(source.body_text!)) {
      const message = 'has a lone surrogate, which has no bytes in UTF-8';
      faults.push({ pointer: `${pointer}/body_text`, code: 'invalid', message });
    }
    return { value: source.body_text, isText: true };
  }
  if (!hasBody) return null;
  if (holdsLargeNumber(source.body)) {
    for (const { path, token } of context.unsafeIn(own ? ['items', index, 'body'] : ['defaults', 'body'])) {
      faults.push({ pointer: jsonPointer(path), code: 'unsafe_number', message: unsafeMessage(token) });
    }
  }
  return { value: source.body, isText: false };
}

function unsafeMessage(token: string): string {
  const shown = token.length > 40 ? `${token.slice(0, 40)}…` : token;
  return `the number ${shown} would be changed on its way (JSON numbers are doubles here); send the body as body_text`;
}

/** null stands for "none" and is not filled by the defaults. */
function orDefault<T>(own: T | null | undefined, byDefault: T | null | undefined): T | null {
  return own === undefined ? (byDefault ?? null) : own;
}

function inUtc(time: string | null): string | null {
  return time === null ? null : new Date(time).toISOString();
}

function lowerCased(headers: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));
}

/** The key of an item whose shape is wrong elsewhere, so that its verdict can be found by it. */
function legalKeyOf(sent: unknown): string | null {
  if (typeof sent !== 'object' || sent === null || !('idempotency_key' in sent)) return null;
  const key = sent.idempotency_key;
  return typeof key === 'string' && keyFault(key) === null ? key : null;
}
