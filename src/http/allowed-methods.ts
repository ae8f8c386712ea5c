/** Which methods a path takes, so that a wrong method is a 405 with `Allow` (RFC 9110, section 15.5.6) and not a 404. */
import type { FastifyInstance } from 'fastify';

/** Watches the routes that are registered from here on. Gives a function from a path (no query) to its methods, sorted. */
export function watchMethods(app: FastifyInstance): (path: string) => string[] {
  const routes: { pattern: RegExp; methods: readonly string[] }[] = [];
  app.addHook('onRoute', ({ url, method }) => {
    routes.push({ pattern: patternOf(url), methods: Array.isArray(method) ? method : [method] });
  });
  return (path) => {
    const methods = routes.filter(({ pattern }) => pattern.test(path)).flatMap((route) => route.methods);
    return [...new Set(methods)].sort();
  };
}

function patternOf(url: string): RegExp {
  const parts = url.split('/').map((part) => {
    if (part === '*') return '.*';
    return part.startsWith(':') ? '[^/]+' : part.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
  });
  return new RegExp(`^${parts.join('/')}$`);
}
