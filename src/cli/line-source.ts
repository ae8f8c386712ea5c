/**
 * What `submit` sends: a file, which is read once before to name the submission and to count its lines, and again for each
 * time it is sent; or a pipe, which can be read only once. Bytes go on as they are, in pieces; nothing is kept of them.
 */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import type { Lines } from '../client/index.ts';
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

/** `file`: a path, or `-` for stdin. Throws a UsageError where it cannot be read. */
export async function openLines(file: string, stdin: NodeJS.ReadStream): Promise<LineInput> {
  const counter = new LineCounter();
  const lineNumber = (index: number) => counter.lineNumber(index);
  if (file === '-') return { lines: counted(stdin, counter), total: null, sha256: null, lineNumber };
  const open = () => createReadStream(file, { highWaterMark: pieceBytes });
  try {
    if (!(await stat(file)).isFile()) return { lines: counted(open(), counter), total: null, sha256: null, lineNumber };
    const hash = createHash('sha256');
    for await (const piece of counted(open(), counter)) hash.update(piece);
    const total = counter.count;
    return { lines: () => counted(open(), counter), total, sha256: hash.digest('hex'), lineNumber };
  } catch (error) {
    throw new UsageError(`cannot read ${file}: ${(error as Error).message}`, { cause: error });
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
