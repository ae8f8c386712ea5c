/**
 * Who calls, and whether they may. Every route names the scope it needs in its `config.scope`; one that names none cannot
 * be registered, so nothing is open by oversight. The check runs before the body is read.
 */
import { createHash, timingSafeEqual } from 'node:crypto';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { ProblemError } from '../domain/errors.ts';

export const scopes = ['submit', 'read', 'receipts', 'admin'] as const;
export type Scope = (typeof scopes)[number];

/** On whose behalf a request acts: `tenant` separates batches, jobs, keys and lanes. */
export interface Principal {
  readonly tenant: string;
  readonly scopes: ReadonlySet<Scope>;
}

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

const defaultTenant = 'default';
const nobody: Principal = { tenant: defaultTenant, scopes: new Set() };
const everything: Principal = { tenant: defaultTenant, scopes: new Set(scopes) };

/**
 * Adds the check to all routes.
 * @param adminKey the bootstrap key, with all scopes; without one everything is open (on a loopback address only: the
 *   configuration sees to that).
 */
export function addAuth(app: FastifyInstance, { adminKey }: { adminKey?: string | undefined }): void {
  app.addHook('onRoute', ({ method, url, config }) => {
    if (config?.scope === undefined) throw new Error(`${method} ${url} names no scope`);
  });
  app.decorateRequest('principal', { getter: () => nobody });
  const principalOf = adminKey === undefined ? () => everything : keyCheck(adminKey);

  app.addHook('onRequest', async (request) => {
    // A path that does not exist has no scope: it needs a key all the same, so that paths cannot be tried out.
    const { scope } = request.routeOptions.config;
    if (scope === 'open') return;
    if (adminKey === undefined) refuseOtherSites(request);
    const principal = principalOf(request);
    if (scope !== undefined && !principal.scopes.has(scope)) {
      throw new ProblemError('forbidden', `this needs a key with the scope ${scope}`);
    }
    Object.defineProperty(request, 'principal', { value: principal });
  });
}

function keyCheck(adminKey: string): (request: FastifyRequest) => Principal {
  const expected = digest(adminKey);
  return (request) => {
    const presented = /^Bearer +(\S+) *$/i.exec(request.headers.authorization ?? '')?.[1];
    if (presented === undefined) {
      throw new ProblemError('unauthorized', 'send a key as "Authorization: Bearer …"');
    }
    if (!timingSafeEqual(digest(presented), expected)) throw new ProblemError('unauthorized', 'the key is not known');
    return everything;
  };
}

/** Of equal length whatever was presented, so that the comparison takes the same time. */
function digest(key: string): Buffer {
  return createHash('sha256').update(key).digest();
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
