/**
 * Who calls, and whether they may. Every route names the scope it needs in its `config.scope`; one that names none cannot
 * be registered, so nothing is open by oversight. The check runs before the body is read.
 *
 * With a bootstrap key configured every request needs a key. Without one, which the configuration allows on a loopback address
 * only, a request without a key may do everything as the default tenant; one with a key is that key's, and an unknown key is
 * refused here too: whoever sends one does not mean to act as somebody else.
 */
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { defaultTenant, type Principal, type Scope, scopes } from '../domain/access.ts';
import { hashOfKey, isSameHash } from '../domain/api-key.ts';
import { ProblemError } from '../domain/errors.ts';

declare module 'fastify' {
  interface FastifyRequest {
    /** Set before the handler runs; on open routes it has no scopes. */
    principal: Principal;
  }
  interface FastifyContextConfig {
    /** What a key must allow for this route; `open`: no key is needed. */
    scope?: Scope | 'open';
  }
}

const nobody: Principal = { tenant: defaultTenant, scopes: new Set(), key: null };
const anybody: Principal = { tenant: defaultTenant, scopes: new Set(scopes), key: null };
const bootstrap: Principal = { ...anybody, key: 'bootstrap' };

export interface AuthOptions {
  /** The bootstrap key, with all scopes; it works without the database. Without one, requests need no key. */
  readonly adminKey: string | undefined;
  /** Whom a stored key stands for; null: nobody. */
  readonly identify: (key: string) => Promise<Principal | null>;
}

/** Adds the check to all routes. */
export function addAuth(app: FastifyInstance, { adminKey, identify }: AuthOptions): void {
  app.addHook('onRoute', ({ method, url, config }) => {
    if (config?.scope === undefined) throw new Error(`${method} ${url} names no scope`);
  });
  app.decorateRequest('principal', { getter: () => nobody });
  const expected = adminKey === undefined ? undefined : hashOfKey(adminKey);

  const principalOf = async (request: FastifyRequest, reply: FastifyReply): Promise<Principal> => {
    const key = presentedKey(request);
    if (key === undefined) {
      if (expected === undefined) return anybody;
      challenge(reply);
      throw new ProblemError('unauthorized', 'send a key as "Authorization: Bearer …"');
    }
    if (expected !== undefined && isSameHash(hashOfKey(key), expected)) return bootstrap;
    const principal = await identify(key);
    if (principal !== null) return principal;
    challenge(reply, 'error="invalid_token"');
    const orNone = expected === undefined ? '; this service also takes requests without one' : '';
    throw new ProblemError('unauthorized', `the key is not known${orNone}`);
  };

  app.addHook('onRequest', async (request, reply) => {
    // A path that does not exist has no scope: it needs a key all the same, so that paths cannot be tried out.
    const { scope } = request.routeOptions.config;
    if (scope === 'open') return;
    if (adminKey === undefined) refuseOtherSites(request);
    const principal = await principalOf(request, reply);
    Object.defineProperty(request, 'principal', { value: principal });
    if (principal.key !== null) request.facts.key_id = principal.key;
    if (scope !== undefined && !principal.scopes.has(scope)) {
      challenge(reply, 'error="insufficient_scope"', `scope="${scope}"`);
      throw new ProblemError('forbidden', `this needs a key with the scope ${scope}`);
    }
  });
}

/** The key that a request carries (RFC 6750, section 2.1), be it a legal one or not; undefined: it carries none. */
function presentedKey({ headers: { authorization } }: FastifyRequest): string | undefined {
  return authorization !== undefined && /^Bearer(?: |$)/i.test(authorization)
    ? authorization.slice(7).trim()
    : undefined;
}

/** What a 401 must say, and a 403 may (RFC 6750, section 3). */
function challenge(reply: FastifyReply, ...more: readonly string[]): void {
  reply.header('www-authenticate', `Bearer ${['realm="sluice"', ...more].join(', ')}`);
}

/**
 * Without keys, any web page that is open in a browser on this machine could change things by a form or a plain fetch;
 * browsers mark such requests (Fetch Metadata, `Sec-Fetch-Site`).
 */
function refuseOtherSites(request: FastifyRequest): void {
  if (request.method === 'GET' || request.method === 'HEAD') return;
  if (request.headers['sec-fetch-site'] === 'cross-site') {
    throw new ProblemError('forbidden', 'a page of another site may not change anything here; configure a key');
  }
}
