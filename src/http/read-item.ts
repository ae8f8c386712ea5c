/**
 * One item of a submission, read alone: checked for shape, completed by the defaults, its body kept as JSON text, its
 * fingerprint and key worked out. Whatever is wrong is in its faults; it never throws, so it sinks no other.
 */
import type { Fault } from '../domain/errors.ts';
import { derivedKey, fingerprint, keyFault } from '../domain/idempotency.ts';
import type { KeySource } from '../domain/job.ts';
import { holdsLargeNumber, type UnsafeNumber } from '../domain/json-source.ts';
import { checkItemHeaders, checkPath } from '../domain/outbound-request.ts';
import { checkShape, jsonPointer } from '../domain/schema-faults.ts';
import type { JobTerms, SubmittedItem } from '../domain/submission.ts';
import { itemSchema, type SentDefaults, type SentItem } from './schemas/batches.ts';

/** What all items of a batch share. */
export interface ItemContext {
  readonly queue: string;
  readonly deriveKeys: boolean;
  readonly defaults: SentDefaults;
  /** Numbers that parsing has changed in a member of the defaults or of an item: `defaults/body`, `items/4/body`. */
  unsafeIn(place: string): readonly UnsafeNumber[];
}

/** Far more than there are fields; what has more is not looked into, since every mistake in it would be told. */
const maxMembers = 100;
/** Most mistakes that are told of one item; they are stored and answered for each. */
const maxFaults = 20;
/** A pointer with a name in it that is longer than any of ours tells less than it costs. */
const maxPointer = 512;

/** Faults point from the root of the request: `/items/4/method`. */
export function readItem(sent: unknown, index: number, context: ItemContext): SubmittedItem {
  const item = checkItem(sent, index, context);
  if (item.faults.length === 0) return item;
  const faults = item.faults
    .slice(0, maxFaults)
    .map((fault) => ((fault.pointer?.length ?? 0) <= maxPointer ? fault : { ...fault, pointer: `/items/${index}` }));
  return { ...item, faults };
}

function checkItem(sent: unknown, index: number, context: ItemContext): SubmittedItem {
  const pointer = `/items/${index}`;
  if (isPlain(sent)) return checkSound(sent, pointer, context);
  const crowded = crowdedMember(sent, pointer);
  if (crowded !== null) return { key: null, keySource: null, job: null, faults: [crowded] };
  const { value: item, faults } = checkShape(itemSchema, sent, pointer);
  return faults === undefined ? checkSound(item, pointer, context) : misshapen(sent, pointer, context, faults);
}

/** An item whose shape is right. */
function checkSound(item: SentItem, pointer: string, context: ItemContext): SubmittedItem {
  const { defaults } = context;
  const faults: Fault[] = [];
  const { body, keyIsWrong } = checkContent(item, pointer, context, faults, nothingWrong);
  const given = item.idempotency_key ?? null;
  const keySource: KeySource = given === null ? 'derived' : 'given';
  if (faults.length > 0) {
    const key = keyIsWrong ? null : given;
    const rejected = { key, keySource: key === null ? null : keySource, job: null, faults };
    return { ...rejected, terms: termsOf(item, pointer, context, faults) };
  }

  const { upstream = defaults.upstream, path = defaults.path, headers = defaults.headers } = item;
  const method = item.method ?? defaults.method ?? 'POST';
  const lowerHeaders = headers === undefined ? null : lowerCased(headers);
  const bodyText = body === null ? null : JSON.stringify(body.value);
  const print = fingerprint({
    upstream: upstream!,
    method,
    path: path!,
    headers: lowerHeaders,
    body: body === null ? null : body.isText ? { text: body.value as string } : { json: body.value, plain: bodyText! },
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
    body: bodyText,
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

/** Whether an item brings a key and a body and no more, as most do: then the schema has nothing to find. */
function isPlain(sent: unknown): sent is SentItem {
  if (typeof sent !== 'object' || sent === null || Array.isArray(sent)) return false;
  return Object.keys(sent).every(
    (name) =>
      name === 'body' ||
      (name === 'idempotency_key' && typeof (sent as { idempotency_key: unknown }).idempotency_key === 'string'),
  );
}

/** An item whose shape is wrong somewhere; one wrong field does not hide what is wrong with the others. */
function misshapen(sent: unknown, pointer: string, context: ItemContext, shapeFaults: readonly Fault[]): SubmittedItem {
  const faults = shapeFaults.map((fault) =>
    fault.pointer === `${pointer}/idempotency_key` ? { ...fault, code: 'invalid_key' } : fault,
  );
  const key = legalKeyOf(sent);
  const rejected = { key, keySource: key === null ? null : ('given' as const), job: null, faults };
  if (typeof sent !== 'object' || sent === null || Array.isArray(sent)) return rejected;
  const wrong = new Set(faults.map((fault) => (fault.pointer ?? '').slice(pointer.length + 1).split('/', 1)[0]!));
  const sound = Object.fromEntries(Object.entries(sent).filter(([field]) => !wrong.has(field))) as SentItem;
  if (wrong.has('headers')) sound.headers = textsIn((sent as { headers: unknown }).headers);
  checkContent(sound, pointer, context, faults, wrong);
  const judged = ['upstream', 'queue', 'cost', 'priority'].every((field) => !wrong.has(field));
  return judged ? { ...rejected, terms: termsOf(sound, pointer, context, faults) } : rejected;
}

const nothingWrong: ReadonlySet<string> = new Set();
const requiredFields = ['upstream', 'path'] as const;

/**
 * Faults beyond the shape, added to `faults`.
 * @param wrong fields that are not in `item` because their shape is wrong: told already, and not missing
 */
function checkContent(
  item: SentItem,
  pointer: string,
  context: ItemContext,
  faults: Fault[],
  wrong: ReadonlySet<string>,
): { readonly body: ReturnType<typeof readBody>; readonly keyIsWrong: boolean } {
  const { defaults } = context;
  const blame = (field: string, code: string, message: string) =>
    faults.push({ pointer: `${pointer}/${field}`, code, message });

  for (const field of requiredFields) {
    if ((item[field] ?? defaults[field]) !== undefined || wrong.has(field)) continue;
    blame(field, 'required', 'is required, here or in defaults');
  }
  const path = item.path ?? (wrong.has('path') ? undefined : defaults.path);
  const { headers = defaults.headers } = item;
  const pathFault = path === undefined ? null : checkPath(path);
  const relative = headers === undefined ? [] : checkItemHeaders(headers, null);
  if (pathFault !== null) relative.unshift(pathFault);
  for (const fault of relative) faults.push({ ...fault, pointer: `${pointer}${fault.pointer ?? ''}` });
  const body = wrong.has('body_text') ? null : readBody(item, pointer, context, faults);

  const given = item.idempotency_key ?? null;
  const wrongKey = given === null ? null : keyFault(given);
  if (wrongKey !== null) blame('idempotency_key', 'invalid_key', wrongKey);
  if (given === null && !context.deriveKeys && !wrong.has('idempotency_key')) {
    blame('idempotency_key', 'missing_idempotency_key', 'is required, unless the batch has derive_keys: true');
  }
  return { body, keyIsWrong: wrongKey !== null };
}

/** What the definitions have a say in, of an item that is rejected; without headers that are at fault already. */
function termsOf(
  item: SentItem,
  pointer: string,
  context: ItemContext,
  faults: readonly Fault[],
): JobTerms | undefined {
  const { defaults } = context;
  const { upstream = defaults.upstream, headers = defaults.headers ?? {} } = item;
  if (upstream === undefined) return undefined;
  const told = new Set(faults.map((fault) => fault.pointer));
  const untold = Object.entries(headers).filter(([name]) => !told.has(jsonPointer(['headers', name], pointer)));
  return {
    upstream,
    queue: item.queue ?? defaults.queue ?? context.queue,
    cost: item.cost ?? defaults.cost ?? 1,
    priority: item.priority ?? defaults.priority ?? 0,
    headers: Object.fromEntries(untold),
  };
}

/** The members that are texts. */
function textsIn(value: unknown): Record<string, string> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return {};
  return Object.fromEntries(Object.entries(value).filter(([, member]) => typeof member === 'string'));
}

/** A fault for an object with too many members, where members are read by name. */
export function crowdedMember(value: unknown, pointer: string): Fault | null {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return null;
  const count = Object.keys(value).length;
  if (count > maxMembers) {
    return { pointer, code: 'invalid', message: `has ${count} members, at most ${maxMembers} are taken` };
  }
  return 'headers' in value ? crowdedMember(value.headers, `${pointer}/headers`) : null;
}

/** A fault for a member named `__proto__`, in an item or in its headers. */
export function prototypeFault(item: unknown, pointer: string): Fault | null {
  if (typeof item !== 'object' || item === null) return null;
  if (Object.hasOwn(item, '__proto__')) {
    return { pointer: `${pointer}/__proto__`, code: 'forbidden_member', message: 'this name is not taken here' };
  }
  return 'headers' in item ? prototypeFault(item.headers, `${pointer}/headers`) : null;
}

/** What goes out as the body: the item's, else the defaults', in one of two forms; null: none. */
function readBody(
  item: SentItem,
  itemPointer: string,
  context: ItemContext,
  faults: Fault[],
): { readonly value: unknown; readonly isText: boolean } | null {
  const own = 'body' in item || 'body_text' in item;
  const source = own ? item : context.defaults;
  const pointer = own ? itemPointer : '/defaults';
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
    for (const { path, token } of context.unsafeIn(`${pointer.slice(1)}/body`)) {
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
