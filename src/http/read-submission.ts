/**
 * From the text of a request to a `Submission`: parsed, every item checked alone and completed by the defaults, its body kept
 * as JSON text and its fingerprint taken. Needs no definitions and no database. Works on the text, because parsing changes
 * numbers and says nothing of it.
 * Members named `__proto__` are refused in the envelope, the defaults, items and headers, the request as a whole; inside a
 * body they are data like any other, and are neither merged nor lost.
 */
import { ProblemError } from '../domain/errors.ts';
import { requestFingerprint } from '../domain/idempotency.ts';
import { nestsDeeperThan, type UnsafeNumber, unsafeNumbers } from '../domain/json-source.ts';
import { checkShape, faultsInWords } from '../domain/schema-faults.ts';
import { defaultQueue, maxItems, maxNesting, type Submission } from '../domain/submission.ts';
import { crowdedMember, type ItemContext, prototypeFault, readItem } from './read-item.ts';
import { envelopeSchema } from './schemas/batches.ts';

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
  refusePrototypes(value);
  const { value: envelope, faults } = checkEnvelope(value);
  if (faults !== undefined) {
    throw new ProblemError('invalid_request', `the batch: ${faultsInWords(faults)}`, { errors: faults });
  }
  const { queue = defaultQueue, derive_keys: deriveKeys = false, defaults = {}, items } = envelope;
  if (items.length === 0) throw new ProblemError('empty_batch', 'items is empty; a batch has at least one');
  if (items.length > maxItems) {
    throw new ProblemError('too_many_items', `the batch has ${items.length} items, the limit is ${maxItems}`);
  }
  let unsafe: ReadonlyMap<string, readonly UnsafeNumber[]> | undefined;
  const context: ItemContext = {
    queue,
    deriveKeys,
    defaults,
    unsafeIn: (place) => {
      unsafe ??= byPlace(unsafeNumbers(text, value));
      return unsafe.get(place) ?? [];
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

function checkEnvelope(value: unknown): ReturnType<typeof checkShape<typeof envelopeSchema>> {
  const defaults = typeof value === 'object' && value !== null && 'defaults' in value ? value.defaults : null;
  const crowded = crowdedMember(value, '') ?? crowdedMember(defaults, '/defaults');
  return crowded === null ? checkShape(envelopeSchema, value) : { faults: [crowded] };
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
  const refuseIn = (item: unknown, pointer: string) => {
    const fault = prototypeFault(item, pointer);
    if (fault !== null) throw new ProblemError('invalid_request', 'a member is named __proto__', { errors: [fault] });
  };
  refuseIn(value, '');
  if (typeof value !== 'object' || value === null) return;
  if ('defaults' in value) refuseIn(value.defaults, '/defaults');
  if ('items' in value && Array.isArray(value.items)) {
    for (const [index, item] of value.items.entries()) refuseIn(item, `/items/${index}`);
  }
}

function byPlace(numbers: readonly UnsafeNumber[]): Map<string, UnsafeNumber[]> {
  const places = new Map<string, UnsafeNumber[]>();
  for (const number of numbers) {
    const place = number.path.slice(0, number.path[0] === 'items' ? 3 : 2).join('/');
    const there = places.get(place);
    if (there === undefined) places.set(place, [number]);
    else there.push(number);
  }
  return places;
}
