/**
 * Puts an answer on the wire, well or badly: raw header lines, a dripping or endless body, a reset at a given point. Decides
 * nothing about effects. Never throws: a caller that hangs up ends it.
 */
import type { ServerResponse } from 'node:http';
import type { Clock } from '../system/clock.ts';
import type { Answer } from './answers.ts';

/** What the answer says, either fresh or from the idempotency store. */
export interface Content {
  readonly status: number;
  readonly headers: ReadonlyArray<readonly [name: string, value: string]>;
  readonly body: string;
}

const endlessChunk = Buffer.alloc(16 * 1024, 'x');

/** Resets the connection: the caller sees ECONNRESET, not an orderly end. */
export function resetConnection(response: ServerResponse): void {
  response.socket?.resetAndDestroy();
}

/** Resolves when the last byte was handed over or the connection is gone. `closing` ends drips and endless bodies. */
export async function sendReply(
  response: ServerResponse,
  content: Content,
  wire: Answer,
  clock: Clock,
  closing: AbortSignal,
): Promise<void> {
  if (wire.raw !== undefined) {
    response.socket?.end(wire.raw);
    return;
  }
  const body = Buffer.from(content.body);
  const whole = (wire.ending ?? 'whole') === 'whole';
  const named = new Set(content.headers.map(([name]) => name.toLowerCase()));
  const lines = content.headers.flat();
  if (!named.has('content-type')) lines.push('Content-Type', 'application/json');
  // A length only where the body has an end; without it Node sends chunks.
  if (whole && !named.has('content-length') && !named.has('transfer-encoding')) {
    lines.push('Content-Length', String(body.length));
  }
  response.writeHead(content.status, lines);

  if (wire.reset === 'in_body') {
    response.write(body.subarray(0, Math.ceil(body.length / 2)));
    // The first half must have left before the reset, which throws away what is still unsent.
    await clock.sleep(20, closing);
    resetConnection(response);
    return;
  }
  if (wire.ending === 'stalled') {
    response.flushHeaders();
    return;
  }
  if (wire.ending === 'endless') return sendForEver(response, closing);
  if (wire.dripMs !== undefined) return drip(response, body, wire.dripMs, clock, closing);
  response.end(body);
}

async function drip(response: ServerResponse, body: Buffer, everyMs: number, clock: Clock, closing: AbortSignal) {
  for (const byte of body) {
    if (response.destroyed || closing.aborted) return;
    response.write(Buffer.of(byte));
    await clock.sleep(everyMs, closing);
  }
  response.end();
}

async function sendForEver(response: ServerResponse, closing: AbortSignal) {
  while (!response.destroyed && !closing.aborted) {
    if (response.write(endlessChunk)) continue;
    // A caller that does not read must not fill this process's memory.
    await new Promise<void>((resolve) => {
      response.once('drain', resolve);
      response.once('close', resolve);
    });
  }
}
