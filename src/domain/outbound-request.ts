/**
 * The HTTP request that a job stands for: its URL, its headers, the key it carries, and which paths and headers an item
 * may bring. Pure: secrets come in through a reader and go out only in the request itself.
 * Invariants: the same job carries the same key on every attempt; an item cannot leave its upstream's `base_url`, displace
 * a header that the operator declared, or set one that belongs to the connection or to this service.
 */
import { createHash } from 'node:crypto';
import { defaultTenant } from './access.ts';
import type { Reconcile, Upstream } from './definitions.ts';
import type { Fault } from './errors.ts';
import type { ClaimedJob, KeySource, Method } from './job.ts';
import { type CallResult, missingSecretCode } from './outcome.ts';

export interface OutboundRequest {
  readonly url: URL;
  readonly method: Method;
  /** Names in lower case. */
  readonly headers: Readonly<Record<string, string>>;
  /** Sent as UTF-8; null: no body. */
  readonly body: string | null;
  /** For the whole call, from the start of the send to the end of the body. */
  readonly timeoutMs: number;
  readonly connectTimeoutMs: number;
  readonly allowPrivateAddresses: boolean;
  /** Values to blot out of whatever is kept of the answer. */
  readonly secrets: readonly string[];
}

/** A call that cannot be made at all; goes to `decideSettlement` like a call that failed before it left. */
export type NotSent = Extract<CallResult, { kind: 'not_sent' }>;

const derivedPrefix = 'sluice-';

/**
 * The value of the upstream's idempotency header: the job's key, bare, where that is safe and cannot meet another tenant's
 * key or a derived one; else a digest of tenant and key. The same for every attempt of a job, until a person asks for a new
 * one: then a digest that has the number of that wish in it.
 */
export function outboundKey({
  tenant,
  key,
  keySource,
  freshKeys = 0,
}: {
  readonly tenant: string;
  readonly key: string;
  readonly keySource: KeySource;
  readonly freshKeys?: number;
}): string {
  const bare = /^[\x21-\x7e]{1,255}$/.test(key) && (keySource === 'derived' || !key.startsWith(derivedPrefix));
  if (tenant === defaultTenant && bare && freshKeys === 0) return key;
  // Length-prefixed, so that no two pairs of tenant and key run together into the same bytes.
  const pair = `${Buffer.byteLength(tenant)}:${tenant}${Buffer.byteLength(key)}:${key}`;
  const named = freshKeys === 0 ? pair : `${pair}${freshKeys}`;
  return `${derivedPrefix}${createHash('sha256').update(named, 'utf8').digest('hex')}`;
}

/**
 * The request of one attempt. Headers, later ones winning: the item's, the upstream's (an item cannot displace what the
 * operator declared), then those of this service. A `${NAME}` whose secret is not set gives `NotSent`: the call is not
 * made without its credentials.
 *
 * @param readSecret asked at the time of the call, never before
 * @param traceparent W3C Trace Context value for an item that brings none of its own
 */
export function buildOutboundRequest(
  job: ClaimedJob,
  upstream: Upstream,
  readSecret: (name: string) => string | undefined,
  traceparent: string,
): OutboundRequest | NotSent {
  const headers: Record<string, string> = { traceparent };
  if (job.body !== null) headers['content-type'] = job.bodyIsText ? 'text/plain; charset=utf-8' : 'application/json';
  const secrets = declareHeaders(headers, job, upstream, readSecret);
  if ('kind' in secrets) return secrets;
  const { keyHeader } = preparedOf(upstream);
  if (keyHeader !== null) {
    const { tenant, idempotencyKey: key, keySource, freshKeys } = job;
    headers[keyHeader] = outboundKey({ tenant, key, keySource, freshKeys });
  }
  headers['sluice-job-id'] = job.jobId;
  headers['sluice-attempt'] = String(job.calls + 1);
  if (job.payloadVersion !== null) headers['sluice-payload-version'] = job.payloadVersion;
  return outboundRequest(upstream, { method: job.method, path: job.path, headers, body: job.body, secrets });
}

/**
 * The request that asks the upstream what became of a job's call: GET of the path of `reconcile`, the key in it
 * percent-encoded. It has the headers of the call but those that would make it look like the call itself: no idempotency
 * header, no number of an attempt, no type of a body.
 */
export function buildReconcileRequest(
  job: ClaimedJob,
  upstream: Upstream & { readonly reconcile: Reconcile },
  readSecret: (name: string) => string | undefined,
  traceparent: string,
): OutboundRequest | NotSent {
  const headers: Record<string, string> = { traceparent };
  const secrets = declareHeaders(headers, job, upstream, readSecret);
  if ('kind' in secrets) return secrets;
  delete headers['content-type'];
  headers['sluice-job-id'] = job.jobId;
  const { tenant, idempotencyKey: key, keySource, freshKeys } = job;
  // A function, since a replacement text would give `$&` in a key a meaning.
  const encoded = encodeURIComponent(outboundKey({ tenant, key, keySource, freshKeys }));
  const path = upstream.reconcile.path.replaceAll(keyPlaceholder, () => encoded);
  if (splitQuery(path)[0].split('/').some(isDotSegment)) {
    const error = `the key ${key} as a part of the path of reconcile would lead to another path; put {key} into its query`;
    return { kind: 'not_sent', code: 'invalid_path', error };
  }
  return outboundRequest(upstream, { method: 'GET', path, headers, body: null, secrets });
}

/** What stands for the outbound key in the path of `reconcile`. */
export const keyPlaceholder = '{key}';

/** URL parsers take `.` and `..` between slashes away, encoded or not. */
function isDotSegment(segment: string): boolean {
  return /^\.{1,2}$/.test(segment.replace(/%2e/gi, '.'));
}

function outboundRequest(
  upstream: Upstream,
  { path, ...own }: Pick<OutboundRequest, 'method' | 'headers' | 'body' | 'secrets'> & { readonly path: string },
): OutboundRequest {
  // Written out: what is spread before other properties is built one change of shape after the other, 5 µs of each call.
  return {
    url: targetUrl(upstream, path),
    method: own.method,
    headers: own.headers,
    body: own.body,
    timeoutMs: upstream.timeout_ms,
    connectTimeoutMs: upstream.connect_timeout_ms,
    allowPrivateAddresses: upstream.allow_private_addresses,
    secrets: own.secrets,
  };
}

const noSecrets: readonly string[] = [];

/** Adds the item's headers and over them the upstream's; gives the secrets that went into them. */
function declareHeaders(
  headers: Record<string, string>,
  job: ClaimedJob,
  upstream: Upstream,
  readSecret: (name: string) => string | undefined,
): readonly string[] | NotSent {
  Object.assign(headers, job.headers);
  const { declared } = preparedOf(upstream);
  if (declared.length === 0) return noSecrets;
  const secrets: string[] = [];
  for (const [name, template] of declared) {
    const expanded = expandSecrets(template, readSecret, secrets);
    if (typeof expanded !== 'string') return expanded;
    headers[name] = expanded;
  }
  return secrets;
}

/** Names that `${NAME}` stands for in a header's template. */
export const secretPattern = /\$\{([A-Za-z_][A-Za-z0-9_]*)\}/g;

function expandSecrets(
  template: string,
  readSecret: (name: string) => string | undefined,
  secrets: string[],
): string | NotSent {
  if (!template.includes('${')) return template;
  let missing: string | undefined;
  const expanded = template.replace(secretPattern, (_whole, name: string) => {
    const value = readSecret(name);
    if (value === undefined) missing ??= name;
    else if (value !== '') secrets.push(value);
    return value ?? '';
  });
  if (missing === undefined) return expanded;
  const error = `the environment variable ${missing}, which a header of the upstream uses, is not set in this process`;
  return { kind: 'not_sent', code: missingSecretCode, error };
}

/** `path` (with its query) below the path of `base_url`; a query of `base_url` itself goes along. */
function targetUrl(upstream: Upstream, path: string): URL {
  const prepared = preparedOf(upstream);
  const { prefix, query: ownQuery, last } = prepared;
  if (last !== null && last.path === path) return last.url;
  const [pathname, query] = splitQuery(path);
  const search = [ownQuery, query].filter((part) => part !== '').join('&');
  // Joined as text and parsed once: resolving `path` as a reference would let `//host` name another host.
  const url = new URL(`${prefix}${pathname}${search === '' ? '' : `?${search}`}`);
  prepared.last = { path, url };
  return url;
}

/** What all calls of an upstream have in common. */
interface Prepared {
  /** Origin and path of `base_url`, without a slash at the end. */
  readonly prefix: string;
  readonly query: string;
  /** Its headers, names in lower case. */
  readonly declared: readonly (readonly [name: string, template: string])[];
  /** Name of its idempotency header, in lower case. */
  readonly keyHeader: string | null;
  /** The last URL: most jobs of an upstream have the same path. Nobody changes it. */
  last: { readonly path: string; readonly url: URL } | null;
}

/** Made once for each version of a definition, not once for each call. */
const preparedOnes = new WeakMap<Upstream, Prepared>();

function preparedOf(upstream: Upstream): Prepared {
  let prepared = preparedOnes.get(upstream);
  if (prepared === undefined) {
    const url = new URL(upstream.base_url);
    prepared = {
      prefix: `${url.origin}${url.pathname.replace(/\/+$/, '')}`,
      query: url.search.slice(1),
      declared: Object.entries(upstream.headers).map(([name, template]) => [name.toLowerCase(), template]),
      keyHeader: upstream.idempotency_header?.toLowerCase() ?? null,
      last: null,
    };
    preparedOnes.set(upstream, prepared);
  }
  return prepared;
}

function splitQuery(path: string): [pathname: string, query: string] {
  const at = path.indexOf('?');
  return at === -1 ? [path, ''] : [path.slice(0, at), path.slice(at + 1)];
}

/** What is wrong with an item's path; null: nothing. The fault's pointer counts from the item. */
export function checkPath(path: string): Fault | null {
  const problem = pathProblem(path);
  if (problem === null) return null;
  const got = JSON.stringify(shortened(withoutCredentials(path)));
  return { pointer: '/path', code: 'invalid_path', message: `path ${problem}, got ${got}` };
}

/** As a message may repeat it: keys of APIs stand in queries and fragments, passwords before the host. */
function withoutCredentials(path: string): string {
  return path.replace(/([?#]).+$/s, '$1…').replace(/\/\/[^/]*@/, '//…@');
}

/** Nothing here that could be a problem. Most paths are so, and one is looked at for every item. */
const plainPath = /^(?:\/[\w~-]+)+$/;

function pathProblem(path: string): string | null {
  if (plainPath.test(path)) return null;
  if (!path.startsWith('/')) return 'must start with / (it is appended to the base_url of its upstream)';
  if (path.startsWith('//')) return 'must not start with //, which would name a host';
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  if (/[\x00-\x1f\x7f-\x9f]/.test(path)) return 'must not have control characters';
  if (path.includes('\\')) return 'must not have a backslash';
  if (path.includes('#')) return 'must not have a fragment; write # as %23';
  if (/\p{Surrogate}/u.test(path)) return 'must not have lone surrogates';
  // URL parsers, ours included, take %2e for a dot when they look for dot segments.
  if (splitQuery(path)[0].replace(/%2e/gi, '.').includes('..')) return 'must not have ..';
  return null;
}

const tokenPattern = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;
const headerValuePattern = /^[\t\x20-\x7e]*$/;

/** Headers that steer a connection (RFC 9110, 7.6.1; RFC 9113, 8.2.2) or frame a message, and so are the sender's alone. */
const connectionHeaders: ReadonlySet<string> = new Set([
  'connection',
  'content-length',
  'expect',
  'host',
  'http2-settings',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
]);

/** Whether a header belongs to the connection rather than to the message; any case. */
export function isConnectionHeader(name: string): boolean {
  return connectionHeaders.has(name.toLowerCase());
}

/** Whether a text can be a header's value as it is: visible ASCII, space and tab (RFC 9110, 5.5, without obs-text). */
export function isHeaderValue(text: string): boolean {
  return headerValuePattern.test(text);
}

/**
 * What is wrong with the headers an item brings, so that it is said at submission and not by every attempt. Pointers count
 * from the item; messages never repeat a value, which may be a credential.
 *
 * @param headers names in any case
 * @param idempotencyHeader of the item's upstream
 */
export function checkItemHeaders(headers: Readonly<Record<string, string>>, idempotencyHeader: string | null): Fault[] {
  const faults: Fault[] = [];
  const seen = new Set<string>();
  for (const [name, value] of Object.entries(headers)) {
    const lowerName = name.toLowerCase();
    const fault = headerFault(lowerName, value, idempotencyHeader?.toLowerCase() ?? null, seen);
    seen.add(lowerName);
    if (fault === null) continue;
    const pointer = `/headers/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`;
    faults.push({ pointer, code: fault[0], message: `header ${JSON.stringify(shortened(name))} ${fault[1]}` });
  }
  return faults;
}

function headerFault(
  name: string,
  value: string,
  idempotencyHeader: string | null,
  seen: ReadonlySet<string>,
): [code: 'invalid_header' | 'forbidden_header', problem: string] | null {
  if (!tokenPattern.test(name)) return ['invalid_header', 'is not a header name (RFC 9110 token)'];
  if (seen.has(name)) return ['invalid_header', 'is given twice'];
  if (isConnectionHeader(name)) return ['forbidden_header', 'belongs to the connection and cannot be set by an item'];
  if (name.startsWith('sluice-'))
    return ['forbidden_header', 'cannot be set by an item: Sluice-* is set by the service'];
  if (name === idempotencyHeader) {
    return ['forbidden_header', 'cannot be set by an item: it carries the idempotency_key'];
  }
  if (!isHeaderValue(value)) {
    return ['invalid_header', 'has a value with characters other than visible ASCII, space and tab'];
  }
  return null;
}

function shortened(text: string): string {
  return text.length <= 100 ? text : `${text.slice(0, 100)}…`;
}
