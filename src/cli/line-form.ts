/**
 * Whether a file is one item a line at all. An array or a batch as JSON, or one printed over many lines, would be taken apart
 * at its line feeds, and those pieces sent that happen to be items. What is wrong within a line is the service's to say.
 */

/** In words for a person. */
export interface FormFault {
  readonly what: string;
  readonly advice: string;
}

/** Of the first line, in bytes: enough to know a batch by its first member. */
const headBytes = 256;
const batchStart = /^\s*\{\s*"(items|defaults)"\s*:/;

const [tab, lineFeed, carriageReturn, space] = [0x09, 0x0a, 0x0d, 0x20];
const [quote, backslash, comma, colon] = [0x22, 0x5c, 0x2c, 0x3a];
const [openBracket, closeBracket, openBrace, closeBrace] = [0x5b, 0x5d, 0x7b, 0x7d];
const byteOrderMark = '\ufeff';

const asLines = (filter: string) => `One item a line is what is sent: jq -c '${filter}' makes lines of it`;

/** Looks at bytes as they pass, and keeps the start of the first line. */
export class LineForm {
  fault: FormFault | null = null;
  /** The first line with something on it has ended. */
  firstLineEnded = false;
  #line = 1;
  #head = '';
  #depth = 0;
  #texts = 0;
  #inString = false;
  #escaped = false;
  /** Last byte that is no blank; 0: there was none on this line. */
  #last = 0;

  push(piece: Uint8Array): void {
    for (let at = 0; at < piece.length && this.fault === null; at += 1) this.#look(piece[at]!);
  }

  end(): void {
    if (this.fault === null) this.#endLine();
  }

  #look(byte: number): void {
    if (byte === lineFeed) {
      this.#endLine();
      this.#line += 1;
      return;
    }
    if (byte === space || byte === tab || byte === carriageReturn) {
      this.#escaped = false;
      if (this.#last !== 0) this.#addToHead(byte);
      return;
    }
    this.#last = byte;
    this.#addToHead(byte);
    if (this.#inString) {
      if (this.#escaped) this.#escaped = false;
      else if (byte === backslash) this.#escaped = true;
      else if (byte === quote) this.#inString = false;
    } else if (byte === quote) {
      this.#inString = true;
    } else if (byte === openBrace || byte === openBracket) {
      if (this.#depth === 0) this.#open();
      this.#depth += 1;
    } else if (byte === closeBrace || byte === closeBracket) {
      this.#depth = Math.max(0, this.#depth - 1);
    }
  }

  #addToHead(byte: number): void {
    if (this.firstLineEnded || this.#head.length === headBytes) return;
    this.#head += String.fromCharCode(byte);
    if (this.#head.length === headBytes) this.fault ??= this.#faultOfHead();
  }

  #open(): void {
    this.#texts += 1;
    if (this.#texts === 2) {
      this.fault = { what: `line ${this.#line} holds more than one JSON text`, advice: asLines('.') };
    }
  }

  #endLine(): void {
    if (this.#last !== 0 && !this.firstLineEnded) {
      this.firstLineEnded = true;
      this.fault ??= this.#faultOfHead() ?? this.#faultOfFirstEnd();
    }
    this.#depth = 0;
    this.#texts = 0;
    this.#inString = false;
    this.#escaped = false;
    this.#last = 0;
  }

  #faultOfHead(): FormFault | null {
    const head = Buffer.from(this.#head, 'latin1').toString('utf8').replace(byteOrderMark, '');
    if (head.startsWith('[')) return { what: 'it is a JSON array, not one item a line', advice: asLines('.[]') };
    if (batchStart.test(head)) {
      return {
        what: 'it is a batch as JSON, not one item a line',
        advice: `POST /v1/batches takes it as it is. ${asLines('.items[]')}, and options stand for its defaults`,
      };
    }
    return null;
  }

  #faultOfFirstEnd(): FormFault | null {
    const goesOn = [openBrace, openBracket, comma, colon].includes(this.#last);
    if (this.#depth === 0 || this.#inString || !goesOn) return null;
    return { what: `line ${this.#line} holds only the start of a JSON text`, advice: asLines('.') };
  }
}
