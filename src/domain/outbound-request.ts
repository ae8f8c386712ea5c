/**
 * The HTTP request that a job stands for: its URL, its headers, the key it carries, and which paths and headers an item
 * may bring. Pure: secrets come in through a reader and go out only in the request itself.
 * Invariants: the same job carries the same key on every attempt; an item cannot leave its upstream's `base_url`, displace
 * a header that the operator declared, or set one that belongs to the connection or to this service.
 */
import { createHash } from 'node:crypto';
import type { Upstream } from './definitions.ts';
import type { Fault } from './errors.ts';
import type { ClaimedJob, KeySource, Method } from './job.ts';
import type { CallResult } from './outcome.ts';

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

/** Tenant of everything that no API key separates. */
const defaultTenant = 'default';
const derivedPrefix = 'sluice-';

/**
 * The value of the upstream's idempotency header: the job's key, bare, where that is safe and cannot meet another tenant's
 * key or a derived one; else a digest of tenant and key. The same for every attempt of a job.
 */
export function outboundKey({
  tenant,
  key,
  keySource,
}: {
  readonly tenant: string;
  readonly key: string;
  readonly keySource: KeySource;
}): string {
  const bare = /^[\x21-\x7e]{1,255}$/.test(key) && (keySource === 'derived' || !key.startsWith(derivedPrefix));
  if (tenant === defaultTenant && bare) return key;
  // Length-prefixed, so that no two pairs of tenant and key run together into the same bytes.
  const pair = `${Buffer.byteLength(tenant)}:${tenant}${Buffer.byteLength(key)}:${key}`;
  return `${derivedPrefix}${createHash('sha256').update(pair, 'utf8').digest('hex')}`;
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
  Object.assign(headers, job.headers);
  const secrets: string[] = [];
  for (const [name, template] of Object.entries(upstream.headers)) {
    const expanded = expandSecrets(template, readSecret, secrets);
    if (typeof expanded !== 'string') return expanded;
    headers[name.toLowerCase()] = expanded;
  }
  if (upstream.idempotency_header !== null) {
    const { tenant, idempotencyKey: key, keySource } = job;
    headers[upstream.idempotency_header.toLowerCase()] = outboundKey({ tenant, key, keySource });
  }
  headers['sluice-job-id'] = job.jobId;
  headers['sluice-attempt'] = String(job.calls + 1);
  if (job.payloadVersion !== null) headers['sluice-payload-version'] = job.payloadVersion;
  return {
    url: targetUrl(upstream.base_url, job.path),
    method: job.method,
    headers,
    body: job.body,
    timeoutMs: upstream.timeout_ms,
    connectTimeoutMs: upstream.connect_timeout_ms,
    allowPrivateAddresses: upstream.allow_private_addresses,
    secrets,
  };
}

/** Names that `${NAME}` stands for in a header's template. */
const secretPattern = /\$\{([A-Za-z_][A-Za-z0-9_]*)\}/g;

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
  return { kind: 'not_sent', code: 'missing_secret', error };
}

/** `path` (with its query) below the path of `base_url`; a query of `base_url` itself goes along. */
function targetUrl(baseUrl: string, path: string): URL {
  const base = new URL(baseUrl);
  const [pathname, query] = splitQuery(path);
  // Joined as text and parsed once: resolving `path` as a reference would let `//host` name another host.
  const url = new URL(`${base.origin}${base.pathname.replace(/\/+$/, '')}${pathname}`);
  url.search = [base.search.slice(1), query].filter((part) => part !== '').join('&');
  return url;
}

function splitQuery(path: string): [pathname: string, query: string] {
  const at = path.indexOf('?');
  return at === -1 ? [path, ''] : [path.slice(0, at), path.slice(at + 1)];
}
