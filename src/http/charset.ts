/**
 * Bodies are UTF-8 (RFC 8259, section 8.1). One whose content type says otherwise would be read as what it is not, and text
 * would be stored that nobody wrote; so it is refused.
 */
import type { FastifyInstance } from 'fastify';
import { ProblemError } from '../domain/errors.ts';

/** Names of UTF-8, and of a part of it. */
const readable: ReadonlySet<string> = new Set(['utf-8', 'utf8', 'us-ascii']);
const charsetParameter = /;[ \t]*charset[ \t]*=[ \t]*"?([^\s";]*)/i;

/** Must be called before the routes are registered. */
export function refuseOtherCharsets(app: FastifyInstance): void {
  app.addHook('preParsing', async ({ method, headers }) => {
    // What a GET brings along is not read.
    if (method === 'GET' || method === 'HEAD') return;
    if (headers['content-length'] === undefined && headers['transfer-encoding'] === undefined) return;
    const charset = charsetParameter.exec(headers['content-type'] ?? '')?.[1];
    if (charset === undefined || readable.has(charset.toLowerCase())) return;
    throw new ProblemError('unsupported_media_type', 'send the body as UTF-8; its content type names another charset');
  });
}
