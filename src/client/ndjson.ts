/**
 * NDJSON over fetch: items to bytes, bytes to values. Both go piece by piece, so that a stream of any length costs no more
 * memory than a short one.
 */
import type { StreamLineInput } from './api-types.ts';

/**
 * An item; or a line of JSON as text; or NDJSON as bytes, which goes as it is (pieces of a file: whole lines or not).
 */
export type Line = StreamLineInput | string | Uint8Array;
export type LineSource = AsyncIterable<Line> | Iterable<Line>;

/** Of one piece, in bytes: few system calls, and little to hold. */
const pieceBytes = 65_536;
/** A source that has its next line at hand gives it within so many turns of the microtask queue; any other has to be waited for. */
const turnsAtHand = 8;

/** Lines that are at hand go out together; none waits for one that is not. */
export async function* encodeLines(source: LineSource): AsyncGenerator<Uint8Array> {
  const encoder = new TextEncoder();
  let text = '';
  for await (const lines of atHand(source)) {
    for (const line of lines) {
      if (!(line instanceof Uint8Array)) {
        const json = typeof line === 'string' ? line : JSON.stringify(line);
        text += json.endsWith('\n') ? json : `${json}\n`;
        if (text.length < pieceBytes) continue;
      }
      if (text !== '') yield encoder.encode(text);
      text = '';
      if (line instanceof Uint8Array) yield line;
    }
    if (text !== '') yield encoder.encode(text);
    text = '';
  }
}

/** The elements of a source in groups: each of what comes without waiting. Iterates one that is synchronous as it is. */
async function* atHand(source: LineSource): AsyncGenerator<Iterable<Line>> {
  if (Symbol.iterator in source) {
    yield source;
    return;
  }
  const iterator = source[Symbol.asyncIterator]();
  let ended = false;
  try {
    let next = iterator.next();
    while (!ended) {
      const group: Line[] = [];
      let result: IteratorResult<Line> | undefined = await next;
      while (result !== undefined && result.done !== true) {
        group.push(result.value);
        next = iterator.next();
        // It may fail while nobody looks at it yet.
        next.catch(() => undefined);
        result = group.length < pieceBytes / 64 ? await settledSoon(next) : undefined;
      }
      ended = result?.done === true;
      if (group.length > 0) yield group;
    }
  } finally {
    if (!ended) await iterator.return?.();
  }
}

/** What it resolves with, if it does at once; a rejection is thrown when it is awaited. */
async function settledSoon<T>(promise: Promise<T>): Promise<T | undefined> {
  let settled: { readonly value: T } | undefined;
  promise.then(
    (value) => {
      settled = { value };
    },
    () => undefined,
  );
  for (let turn = 0; turn < turnsAtHand && settled === undefined; turn += 1) await null;
  return settled?.value;
}

/** The lines of a body, each parsed. Throws what reading it throws, and a SyntaxError for what is no JSON. */
export async function* decodeLines(body: AsyncIterable<Uint8Array> | null): AsyncGenerator<unknown> {
  if (body === null) return;
  const decoder = new TextDecoder();
  let rest = '';
  for await (const piece of body) {
    const lines = (rest + decoder.decode(piece, { stream: true })).split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) if (line !== '') yield JSON.parse(line);
  }
  rest += decoder.decode();
  if (rest !== '') yield JSON.parse(rest);
}
