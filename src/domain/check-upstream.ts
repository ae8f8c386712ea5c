/**
 * What can be wrong with an upstream beyond its shape: where it leads, the headers it sets, the secrets they use.
 * Takes the fields that are in order taken by themselves, so that one wrong field does not hide the others. A message never
 * repeats the value of a header.
 */
import type { Reconcile, Upstream } from './definitions.ts';
import type { Fault } from './errors.ts';
import { isPublicAddress } from './ip-address.ts';
import { didYouMean } from './near-name.ts';
import { checkPath, isConnectionHeader, isHeaderValue, keyPlaceholder, secretPattern } from './outbound-request.ts';
import { jsonPointer } from './schema-faults.ts';

export interface CheckOptions {
  /** Environment variables that headers may use as `${NAME}`. */
  readonly secrets: ReadonlySet<string>;
  /** Given: a variable that is not set is a fault too. */
  readonly readSecret?: ((name: string) => string | undefined) | undefined;
}

/** Pointers count from the definition. */
export function upstreamFaults(upstream: Partial<Upstream>, options: CheckOptions): Fault[] {
  const { base_url, allow_private_addresses = false, idempotency_header = null, headers = {}, reconcile } = upstream;
  const faults = [
    ...(base_url === undefined ? [] : baseUrlFaults(base_url, allow_private_addresses)),
    ...idempotencyHeaderFaults(idempotency_header),
  ];
  const seen = new Set<string>();
  for (const [name, value] of Object.entries(headers)) {
    const problem = headerProblem(name.toLowerCase(), value, idempotency_header, seen);
    seen.add(name.toLowerCase());
    const pointer = jsonPointer(['headers', name]);
    if (problem !== undefined) faults.push({ pointer, code: 'invalid', message: problem });
    faults.push(...secretFaults(value, options).map((fault) => ({ ...fault, pointer })));
  }
  if (reconcile != null) faults.push(...reconcileFaults(reconcile));
  return faults;
}

function reconcileFaults({ path, applied_when, absent_when }: Reconcile): Fault[] {
  const faults: Fault[] = [];
  const pathFault = checkPath(path);
  if (pathFault !== null) faults.push({ pointer: '/reconcile/path', code: 'invalid', message: pathFault.message });
  else if (!path.includes(keyPlaceholder)) {
    const message = `must have ${keyPlaceholder}, which stands for the key that is asked about`;
    faults.push({ pointer: '/reconcile/path', code: 'invalid', message });
  }
  const both = absent_when.filter((status) => applied_when.includes(status));
  if (both.length > 0) {
    const message = `has ${both.join(', ')}, as applied_when has: an answer must be either`;
    faults.push({ pointer: '/reconcile/absent_when', code: 'invalid', message });
  }
  return faults;
}

function baseUrlFaults(baseUrl: string, allowPrivateAddresses: boolean): Fault[] {
  const pointer = '/base_url';
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  if (/[\x00-\x20\x7f-\x9f]|\p{Surrogate}/u.test(baseUrl)) {
    return [{ pointer, code: 'invalid', message: 'must not have white space, control characters or lone surrogates' }];
  }
  const url = new URL(baseUrl);
  if (url.username !== '' || url.password !== '') {
    const message = `must not have a user or password: use a \${NAME} in the header "authorization" instead`;
    return [{ pointer, code: 'invalid', message }];
  }
  if (url.hash !== '') return [{ pointer, code: 'invalid', message: 'must not have a fragment' }];
  if (allowPrivateAddresses || !isPrivateHost(url)) return [];
  const message = `${url.hostname} is not a public address: set allow_private_addresses if calls may go there`;
  return [{ pointer, code: 'base_url_private', message }];
}

/**
 * URL has turned every spelling of an IPv4 address (`0x7f.1`) into dotted form. Names in `localhost` always resolve to
 * loopback (RFC 6761, section 6.3); other names are judged when a call connects.
 */
function isPrivateHost({ hostname }: URL): boolean {
  if (/(^|\.)localhost\.?$/.test(hostname)) return true;
  const isAddress = hostname.startsWith('[') || /^\d+(\.\d+){3}$/.test(hostname);
  return isAddress && !isPublicAddress(hostname.replace(/^\[|\]$/g, ''));
}

function idempotencyHeaderFaults(name: string | null): Fault[] {
  if (name === null || !(isConnectionHeader(name) || name.toLowerCase().startsWith('sluice-'))) return [];
  return [{ pointer: '/idempotency_header', code: 'invalid', message: `${name} has another meaning already` }];
}

function headerProblem(
  name: string,
  value: string,
  idempotencyHeader: string | null,
  seen: ReadonlySet<string>,
): string | undefined {
  if (seen.has(name)) return 'is given twice (case does not count)';
  if (isConnectionHeader(name)) return 'belongs to the connection and cannot be set';
  if (name.startsWith('sluice-')) return 'cannot be set: Sluice-* is set by the service';
  if (name === idempotencyHeader?.toLowerCase()) return 'cannot be set: it carries the idempotency key';
  if (!isHeaderValue(value)) return 'has characters other than visible ASCII, space and tab';
  return undefined;
}

function secretFaults(template: string, { secrets, readSecret }: CheckOptions): Fault[] {
  const faults: Fault[] = [];
  for (const [, name] of template.matchAll(secretPattern)) {
    if (!secrets.has(name!)) {
      const message = `\${${name}} may not be used: ${name} is not in SLUICE_SECRETS${didYouMean(name!, secrets)}`;
      faults.push({ code: 'secret_not_allowed', message });
    } else if (readSecret !== undefined && readSecret(name!) === undefined) {
      faults.push({ code: 'missing_environment_variable', message: `the environment variable ${name} is not set` });
    }
  }
  if (template.replace(secretPattern, '').includes('${')) {
    faults.push({ code: 'invalid', message: `has \${ that does not begin a \${NAME} (letters, digits, underscore)` });
  }
  return faults;
}
