/**
 * Bytes to lines: each ends with LF, or CR LF, or the end of the stream; blank ones are no lines. A line over the limit is not
 * kept, whatever its length; of it there is only what tells it from another.
 */
import { createHash, type Hash } from 'node:crypto';

/** Longest line without its end, in bytes: 1 MiB. */
export const maxLineBytes = 1_048_576;

export type RawLine =
  /** Valid until the next piece is asked for. */
  | { readonly kind: 'line'; readonly bytes: Buffer }
  /** Hex, of all its bytes. */
  | { readonly kind: 'too_long'; readonly sha256: string };

const lineFeed = 0x0a;
const carriageReturn = 0x0d;
/** Room for a CR before the LF. */
const mostKept = maxLineBytes + 1;

export class LineSplitter {
  /** What came of the line that is not over yet. */
  #begun = Buffer.alloc(0);
  #length = 0;
  /** Of a line that is too long. */
  #hash: Hash | undefined;

  /** Lines that this piece ends. */
  *push(piece: Buffer): Generator<RawLine> {
    let from = 0;
    for (let at = piece.indexOf(lineFeed); at !== -1; at = piece.indexOf(lineFeed, from)) {
      const line = this.#endLine(piece.subarray(from, at));
      from = at + 1;
      if (line !== null) yield line;
    }
    this.#keep(piece.subarray(from));
  }

  /** The last line, where nothing ended it. */
  *end(): Generator<RawLine> {
    const line = this.#endLine(Buffer.alloc(0));
    if (line !== null) yield line;
  }

  #endLine(rest: Buffer): RawLine | null {
    let bytes = rest;
    // Most lines lie within one piece.
    if (this.#length > 0 || this.#hash !== undefined || rest.length > mostKept) {
      this.#keep(rest);
      if (this.#hash !== undefined) {
        const sha256 = this.#hash.digest('hex');
        this.#hash = undefined;
        return { kind: 'too_long', sha256 };
      }
      bytes = this.#begun.subarray(0, this.#length);
      this.#length = 0;
    }
    if (bytes.at(-1) === carriageReturn) bytes = bytes.subarray(0, -1);
    if (bytes.length > maxLineBytes) {
      return { kind: 'too_long', sha256: createHash('sha256').update(bytes).digest('hex') };
    }
    return isBlank(bytes) ? null : { kind: 'line', bytes };
  }

  #keep(bytes: Buffer): void {
    if (this.#hash === undefined && this.#length + bytes.length > mostKept) {
      this.#hash = createHash('sha256').update(this.#begun.subarray(0, this.#length));
      this.#length = 0;
      this.#begun = Buffer.alloc(0);
    }
    if (this.#hash !== undefined) {
      this.#hash.update(bytes);
      return;
    }
    const length = this.#length + bytes.length;
    if (length > this.#begun.length) {
      // Doubled, so that a line that comes byte by byte is not copied each time.
      const grown = Buffer.allocUnsafe(Math.min(mostKept, Math.max(length, 2 * this.#begun.length, 4_096)));
      this.#begun.copy(grown, 0, 0, this.#length);
      this.#begun = grown;
    }
    bytes.copy(this.#begun, this.#length);
    this.#length = length;
  }
}

/** Nothing but spaces, tabs and CRs. */
function isBlank(bytes: Buffer): boolean {
  for (const byte of bytes) {
    if (byte !== 0x20 && byte !== 0x09 && byte !== carriageReturn) return false;
  }
  return true;
}
