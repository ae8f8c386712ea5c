/**
 * What is kept of an answer's body: an excerpt, a digest over all that was read, and whether the excerpt is all there was.
 * Bytes are taken as they come on the wire; a Content-Encoding is not undone, so there is nothing to blow up.
 */
import * as crypto from 'node:crypto';
import { blotOutBrokenOff, blotOutBytes } from './blot-out.ts';

/** Kept as text, in bytes. */
export const excerptBytes = 64 * 1024;
/** Read and dropped beyond the excerpt, in bytes; then the socket is given up: no answer to a job is that long. */
export const droppedBytes = 1024 * 1024;

const mostBytes = excerptBytes + droppedBytes;
const noBytes = Buffer.alloc(0);

/** Hex. In one call where Node has it (20.12): an object for each answer costs four times the time, and more to collect. */
const sha256: (bytes: Buffer) => string =
  typeof crypto.hash === 'function'
    ? (bytes) => crypto.hash('sha256', bytes, 'hex')
    : (bytes) => crypto.createHash('sha256').update(bytes).digest('hex');

export interface KeptBody {
  readonly excerpt: string;
  readonly truncated: boolean;
  /** In lower-case hex. */
  readonly sha256: string;
}

export class AnswerBody {
  /** The first piece, which is the only one of most answers; more are digested as they come. */
  #first: Buffer | null = null;
  #hash: crypto.Hash | null = null;
  #read = 0;
  #kept: Buffer[] = [];
  #keptBytes = 0;
  readonly #secrets: readonly string[];
  readonly #mostKept: number;

  /** @param secrets as `blottable` gives them */
  constructor(secrets: readonly string[]) {
    this.#secrets = secrets;
    // What lies across the end of the excerpt must be seen whole: of a secret the first part would stay, and whether a
    // character is cut in two shows in the byte after.
    this.#mostKept = excerptBytes + Math.max(1, secrets[0] === undefined ? 0 : Buffer.byteLength(secrets[0]));
  }

  /** false: as much as is read of any body has been read. */
  add(chunk: Buffer): boolean {
    const taken = this.#read + chunk.length > mostBytes ? chunk.subarray(0, mostBytes - this.#read) : chunk;
    if (this.#first === null) this.#first = taken;
    else {
      this.#hash ??= crypto.createHash('sha256').update(this.#first);
      this.#hash.update(taken);
    }
    this.#read += taken.length;
    if (this.#keptBytes < this.#mostKept) {
      const room = this.#mostKept - this.#keptBytes;
      const kept = taken.length <= room ? taken : taken.subarray(0, room);
      this.#kept.push(kept);
      this.#keptBytes += kept.length;
    }
    return taken === chunk;
  }

  /** @param complete the body was read to its end */
  finish(complete: boolean): KeptBody {
    // Before the excerpt, which is blotted out in place.
    const digest = this.#hash?.digest('hex') ?? sha256(this.#first ?? noBytes);
    return {
      excerpt: this.#excerpt(complete),
      truncated: !complete || this.#read > excerptBytes,
      sha256: digest,
    };
  }

  #excerpt(complete: boolean): string {
    const [only] = this.#kept;
    let bytes = this.#kept.length === 1 && only !== undefined ? only : Buffer.concat(this.#kept);
    blotOutBytes(bytes, this.#secrets);
    if (!complete) blotOutBrokenOff(bytes, this.#secrets);
    if (bytes.length > excerptBytes) bytes = bytes.subarray(0, endOfCharacter(bytes, excerptBytes));
    const text = bytes.toString('utf8');
    // PostgreSQL's text has no NUL.
    return text.includes('\0') ? text.replaceAll('\0', '\ufffd') : text;
  }
}

/** The last place at or before `end` where no UTF-8 sequence (at most 4 bytes) is cut in two. */
function endOfCharacter(bytes: Buffer, end: number): number {
  for (let at = end; at > end - 4; at -= 1) {
    if (((bytes[at] ?? 0) & 0xc0) !== 0x80) return at;
  }
  return end;
}
