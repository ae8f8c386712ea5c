/**
 * Idempotency: which keys are legal, when two requests are the same, and what verdict each item of a batch gets. Pure; the
 * store (`postgres/insert-batch.ts`) tells which keys are known and keeps exactly what is decided here.
 */
import * as crypto from 'node:crypto';
import { canonicalJson } from './canonical-json.ts';
import type { JobState, Method, Verdict } from './job.ts';
import { holdsLargeNumber } from './json-source.ts';

/** Longest key, in Unicode code points. */
export const maxKeyLength = 255;

/**
 * What is wrong with a key, in words; null: it is legal. 1 to 255 code points, no control characters (category Cc), no lone
 * surrogates, no white space at the ends. Nothing is normalised: keys are compared code point by code point.
 */
export function keyFault(key: string): string | null {
  if (/^[\x21-\x7e]{1,255}$/.test(key)) return null;
  if (key === '') return 'must not be empty';
  // A code point has one or two units, so most keys need no counting.
  if (key.length > maxKeyLength && (key.length > 2 * maxKeyLength || [...key].length > maxKeyLength)) {
    return `must have at most ${maxKeyLength} Unicode code points`;
  }
  if (/\p{Cc}/u.test(key)) return 'must not have control characters';
  if (/\p{Cs}/u.test(key)) return 'must not have lone surrogates';
  if (key.trim() !== key) return 'must not begin or end with white space';
  return null;
}

/** What makes two requests the same: the call itself, and nothing of how or when it is to be made. */
export interface FingerprintedRequest {
  readonly upstream: string;
  readonly method: Method;
  readonly path: string;
  /** Names in lower case; null or empty: none. */
  readonly headers: Readonly<Record<string, string>> | null;
  /** A JSON value, with what JSON.stringify makes of it; or text that is sent as it is; null: no body. */
  readonly body: { readonly json: unknown; readonly plain?: string } | { readonly text: string } | null;
}

/**
 * Hex SHA-256 of the RFC 8785 form of `{upstream, method, path, headers, body | body_text}`. A member that the request has
 * not is left out; empty headers count as none, since they make the same call.
 */
export function fingerprint({ upstream, method, path, headers, body }: FingerprintedRequest): string {
  // Written out in the order that the RFC gives these names, because this runs for every item.
  let form = '{';
  if (body !== null)
    form +=
      'text' in body ? `"body_text":${canonicalJson(body.text)},` : `"body":${canonicalJson(body.json, body.plain)},`;
  if (headers !== null && Object.keys(headers).length > 0) form += `"headers":${canonicalJson(headers)},`;
  form += `"method":"${method}","path":${canonicalJson(path)},"upstream":${canonicalJson(upstream)}}`;
  return sha256(form);
}

/**
 * Hex SHA-256 of a whole request, for its own `Idempotency-Key`: of the RFC 8785 form, so that spelling does not matter; of
 * the text itself where a number would be changed by parsing, since then the value does not tell two requests apart.
 */
export function requestFingerprint(text: string, value: unknown): string {
  return sha256(holdsLargeNumber(value) ? text : canonicalJson(value));
}

/** Hex, of the text in UTF-8. In one call where Node has it (20.12): an object for each of 10,000 items costs twice the time. */
const sha256: (text: string) => string =
  typeof crypto.hash === 'function'
    ? (text) => crypto.hash('sha256', text, 'hex')
    : (text) => crypto.createHash('sha256').update(text).digest('hex');

/** The key of an item that came without one, in a batch that derives keys. */
export function derivedKey(fingerprintHex: string): string {
  return `sluice-${fingerprintHex}`;
}

/**
 * The key in an `Idempotency-Key` request header: bare, or a quoted string as the IETF draft has it
 * (draft-ietf-httpapi-idempotency-key-header, RFC 8941 section 3.3.3). `"k"` and `k` are one key.
 */
export function keyFromHeader(value: string): string {
  const quoted = /^"((?:[^"\\]|\\["\\])*)"$/.exec(value);
  return quoted === null ? value : quoted[1]!.replace(/\\(["\\])/g, '$1');
}

/** An item with a legal key, as far as its verdict depends on it. */
export interface KeyedItem {
  readonly key: string;
  /** Hex. */
  readonly fingerprint: string;
  /** Nothing forbids to accept it. If not, its key may still be known from before: then it is a duplicate all the same. */
  readonly acceptable: boolean;
}

/** A key that the store knew before this batch. */
export interface KnownKey {
  readonly fingerprint: string;
  readonly jobId: string;
  /** null: the job's rows are gone, its key is still remembered. */
  readonly jobState: JobState | null;
}

/** What an item's key amounts to. `first` is the position of the item, in this batch, that brought the job. */
export type KeyVerdict =
  | { readonly verdict: 'accepted' }
  | { readonly verdict: 'duplicate' | 'conflict'; readonly known: KnownKey }
  | { readonly verdict: 'duplicate' | 'conflict'; readonly first: number }
  | { readonly verdict: 'rejected' };

/** Positions of the items that get a job unless the store knows their key: of each key the first that is acceptable. */
export function firstOfEachKey(items: ReadonlyArray<KeyedItem | null>): Map<string, number> {
  const first = new Map<string, number>();
  items.forEach((item, position) => {
    if (item?.acceptable && !first.has(item.key)) first.set(item.key, position);
  });
  return first;
}

/**
 * One verdict per item; null stands for an item that has no legal key. They come out as if the items were taken one by one
 * in their order: a key that is known by then, from the store or from an item before, makes a duplicate or a conflict.
 */
export function keyVerdicts(
  items: ReadonlyArray<KeyedItem | null>,
  known: ReadonlyMap<string, KnownKey>,
): KeyVerdict[] {
  const firsts = firstOfEachKey(items);
  return items.map((item, position): KeyVerdict => {
    if (item === null) return { verdict: 'rejected' };
    const stored = known.get(item.key);
    const first = firsts.get(item.key);
    let match: { readonly known: KnownKey } | { readonly first: number };
    if (stored !== undefined) match = { known: stored };
    else if (first === position) return { verdict: 'accepted' };
    else if (first !== undefined && first < position) match = { first };
    else return { verdict: 'rejected' };
    const before = 'known' in match ? match.known : items[match.first]!;
    if (before.fingerprint === item.fingerprint) return { verdict: 'duplicate', ...match };
    return item.acceptable ? { verdict: 'conflict', ...match } : { verdict: 'rejected' };
  });
}

/** A duplicate of a job in one of these states is not run again by itself. */
export function needsRetry(verdict: Verdict, state: JobState | null): boolean {
  return verdict === 'duplicate' && (state === 'failed' || state === 'cancelled' || state === 'expired');
}
