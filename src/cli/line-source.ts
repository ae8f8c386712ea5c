/**
 * What `submit` sends: a file, which is read once before to name the submission and to count its lines, and again for each
 * time it is sent; or a pipe, which can be read only once. Bytes go on as they are, in pieces; nothing is kept of them.
 */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import type { Readable } from 'node:stream';
import type { Lines } from '../client/index.ts';
import { LineForm } from './line-form.ts';
import { UsageError } from './talk.ts';

export interface LineInput {
  readonly lines: Lines;
  /** Lines that are not blank; null: not known before the end. */
  readonly total: number | null;
  /** Of all bytes, hex; null: not known before they are sent. */
  readonly sha256: string | null;
  /** Number in the file, from 1, of the line whose verdict has this index; only for lines that were sent. */
  lineNumber(index: number): number;
}

const pieceBytes = 65_536;
/** Of a pipe, in bytes: no more is held back to see what it is before any of it is sent. */
const mostHeld = 65_536;
const nothing = 'no lines: there is nothing to submit';

/**
 * `file`: a path, or `-` for stdin. Throws a UsageError where it cannot be read, holds no line, or is plainly not one item a
 * line; of a pipe only its beginning is looked at.
 */
export async function openLines(file: string, stdin: Readable, signal?: AbortSignal): Promise<LineInput> {
  if (file === '-') return openPipe('stdin', stdin, signal);
  const open = () => createReadStream(file, { highWaterMark: pieceBytes });
  const kind = await reading(file, () => stat(file));
  if (kind.isDirectory()) throw new UsageError(`cannot read ${file}: it is a directory`);
  if (!kind.isFile()) return openPipe(file, open(), signal);
  const [counter, form, hash] = [new LineCounter(), new LineForm(), createHash('sha256')];
  const pieces = () => counted(readable(file, open()), counter);
  for await (const piece of pieces()) {
    signal?.throwIfAborted();
    form.push(piece);
    refuse(file, form);
    hash.update(piece);
  }
  form.end();
  refuse(file, form);
  const total = counter.count;
  if (total === 0) throw new UsageError(`${file} has ${nothing}`);
  return { lines: pieces, total, sha256: hash.digest('hex'), lineNumber: (index) => counter.lineNumber(index) };
}

/** Waits for its first line; blank lines before it are counted, and let go. */
async function openPipe(name: string, stream: Readable, signal: AbortSignal | undefined): Promise<LineInput> {
  const [counter, form] = [new LineCounter(), new LineForm()];
  const pieces = counted(readable(name, stream), counter);
  const held: Buffer[] = [];
  let heldBytes = 0;
  const stop = () => stream.destroy(signal?.reason as Error);
  signal?.addEventListener('abort', stop, { once: true });
  try {
    signal?.throwIfAborted();
    while (!form.firstLineEnded && heldBytes < mostHeld) {
      const { value, done } = await pieces.next();
      if (done) {
        form.end();
        refuse(name, form);
        break;
      }
      form.push(value);
      refuse(name, form);
      if (!counter.nothingYet) {
        held.push(value);
        heldBytes += value.length;
      }
    }
    if (held.length === 0) throw new UsageError(`${name} has ${nothing}`);
  } finally {
    signal?.removeEventListener('abort', stop);
  }
  const lines = (async function* () {
    yield* held.splice(0);
    yield* pieces;
  })();
  return { lines, total: null, sha256: null, lineNumber: (index) => counter.lineNumber(index) };
}

function refuse(name: string, { fault }: LineForm): void {
  if (fault !== null) throw new UsageError(`${name} was not sent: ${fault.what}\n${fault.advice}`);
}

async function reading<T>(name: string, read: () => Promise<T>): Promise<T> {
  try {
    return await read();
  } catch (error) {
    throw new UsageError(`cannot read ${name}: ${(error as Error).message}`, { cause: error });
  }
}

/** The stream, whose failure is the user's to mend. */
async function* readable(name: string, stream: Readable): AsyncGenerator<Buffer> {
  const pieces = stream[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  try {
    for (;;) {
      const { value, done } = await reading(name, () => pieces.next());
      if (done) return;
      yield value;
    }
  } finally {
    await pieces.return?.();
  }
}

async function* counted(stream: AsyncIterable<Buffer>, counter: LineCounter): AsyncGenerator<Buffer> {
  counter.restart();
  for await (const piece of stream) {
    counter.push(piece);
    yield piece;
  }
  counter.end();
}

const lineFeed = 0x0a;
const blanks: ReadonlySet<number> = new Set([0x20, 0x09, 0x0d]);
/** More of them are not remembered: a file with so many blank lines is read by nobody. */
const mostGaps = 100_000;

/** The service passes over blank lines, so its indexes are not the file's numbers; only where they part is kept. */
class LineCounter {
  /** Lines with something on them. */
  count = 0;
  /** [index of the first line after a gap, blank lines before it] */
  #gaps: Array<readonly [number, number]> = [];
  #blank = 0;
  #onlyBlanks = true;
  #empty = true;

  /** Only blanks have come. */
  get nothingYet(): boolean {
    return this.count === 0 && this.#onlyBlanks;
  }

  restart(): void {
    this.count = 0;
    this.#gaps = [];
    this.#blank = 0;
    this.#onlyBlanks = true;
    this.#empty = true;
  }

  push(piece: Buffer): void {
    let from = 0;
    for (let at = piece.indexOf(lineFeed); at !== -1; at = piece.indexOf(lineFeed, from)) {
      this.#look(piece, from, at);
      this.#endLine();
      from = at + 1;
    }
    this.#look(piece, from, piece.length);
  }

  /** Where the last line has no end of its own. */
  end(): void {
    if (!this.#empty) this.#endLine();
  }

  lineNumber(index: number): number {
    let low = 0;
    let high = this.#gaps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#gaps[middle]![0] <= index) low = middle + 1;
      else high = middle;
    }
    return index + 1 + (this.#gaps[low - 1]?.[1] ?? 0);
  }

  #look(piece: Buffer, from: number, to: number): void {
    if (to > from) this.#empty = false;
    for (let at = from; at < to && this.#onlyBlanks; at += 1) this.#onlyBlanks = blanks.has(piece[at]!);
  }

  #endLine(): void {
    if (this.#onlyBlanks) {
      this.#blank += 1;
      if (this.#gaps.at(-1)?.[0] === this.count) this.#gaps.pop();
      if (this.#gaps.length < mostGaps) this.#gaps.push([this.count, this.#blank]);
    } else {
      this.count += 1;
    }
    this.#onlyBlanks = true;
    this.#empty = true;
  }
}
