/**
 * One line of a stream to the item that it asks for. A line stands alone: whatever is wrong with it, even that it is no JSON,
 * is in the faults of its item. Line n, from 0 and without blank ones, is `/items/n` in their pointers.
 */
import { isUtf8 } from 'node:buffer';
import { createHash } from 'node:crypto';
import type { StreamLine } from '../../application/line-chunks.ts';
import type { Fault } from '../../domain/errors.ts';
import { requestFingerprint } from '../../domain/idempotency.ts';
import { nestsDeeperThan, unsafeNumbers } from '../../domain/json-source.ts';
import { maxNesting, type SubmittedItem } from '../../domain/submission.ts';
import { type ItemContext, prototypeFault, readItem } from '../read-item.ts';
import { maxLineBytes, type RawLine } from './split-lines.ts';

/** What all lines of a stream share. */
export type LineContext = Omit<ItemContext, 'unsafeIn'>;

/** For what is kept beside the text of a line. */
const overheadBytes = 256;

/**
 * Two lines are the same where their RFC 8785 forms are, so that a client may write a line anew when it sends it again; a
 * line that is no JSON, only where its bytes are.
 */
export function readLine(raw: RawLine, index: number, context: LineContext): StreamLine {
  if (raw.kind === 'too_long') {
    const message = `the line is longer than the limit of ${maxLineBytes} bytes (1 MiB)`;
    return rejectedLine(raw.sha256, index, 'line_too_long', message);
  }
  const { bytes } = raw;
  const asBytes = () => createHash('sha256').update(bytes).digest('hex');
  if (!isUtf8(bytes)) return rejectedLine(asBytes(), index, 'malformed_json', 'the line is not UTF-8');
  const decoded = bytes.toString('utf8');
  // A mark of the byte order before everything; RFC 8259 section 8.1 lets a reader pass over it.
  const text = index === 0 && decoded.startsWith('\ufeff') ? decoded.slice(1) : decoded;
  if (nestsDeeperThan(text, maxNesting)) {
    return rejectedLine(asBytes(), index, 'malformed_json', `the line nests deeper than ${maxNesting} levels`);
  }
  const parsed = parse(text);
  if (parsed === undefined) return rejectedLine(asBytes(), index, 'malformed_json', 'the line is not valid JSON');
  return {
    sha256: requestFingerprint(text, parsed.value),
    bytes: text.length + overheadBytes,
    item: () => readValue(text, parsed.value, index, context),
  };
}

function parse(text: string): { readonly value: unknown } | undefined {
  try {
    return { value: JSON.parse(text) };
  } catch {
    return undefined;
  }
}

function readValue(text: string, value: unknown, index: number, context: LineContext): SubmittedItem {
  const forbidden = prototypeFault(value, `/items/${index}`);
  if (forbidden !== null) return rejected(forbidden);
  return readItem(value, index, {
    ...context,
    // The defaults of a stream have no body.
    unsafeIn: () =>
      unsafeNumbers(text, value)
        .filter(({ path }) => path[0] === 'body')
        .map((number) => ({ ...number, path: ['items', index, ...number.path] })),
  });
}

function rejectedLine(sha256: string, index: number, code: string, message: string): StreamLine {
  return { sha256, bytes: overheadBytes, item: () => rejected({ pointer: `/items/${index}`, code, message }) };
}

function rejected(fault: Fault): SubmittedItem {
  return { key: null, keySource: null, job: null, faults: [fault] };
}
