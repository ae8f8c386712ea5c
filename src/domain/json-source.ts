/**
 * What `JSON.parse` does not tell of its text: how deep it nests, and which numbers it would change. Both read the text once
 * from left to right, without recursion, and skip strings by native search.
 */

/** A number in a JSON text that a double cannot carry. */
export interface UnsafeNumber {
  /** Member names and array indices from the root. */
  readonly path: readonly (string | number)[];
  /** As it is written. */
  readonly token: string;
}

const quote = 0x22;
const comma = 0x2c;
const minus = 0x2d;
const zero = 0x30;
const nine = 0x39;
const openBracket = 0x5b;
const backslash = 0x5c;
const closeBracket = 0x5d;
const openBrace = 0x7b;
const closeBrace = 0x7d;

/** Whether arrays and objects nest deeper than `levels` anywhere in the text. The text need not be well formed. */
export function nestsDeeperThan(text: string, levels: number): boolean {
  let depth = 0;
  for (let at = 0; at < text.length; at++) {
    const char = text.charCodeAt(at);
    if (char === quote) at = endOfString(text, at);
    else if (char === openBracket || char === openBrace) {
      if (++depth > levels) return true;
    } else if (char === closeBracket || char === closeBrace) depth--;
  }
  return false;
}

/** Whether a parsed value holds a number beyond ±(2^53-1) anywhere: only then its text needs a look. */
export function holdsLargeNumber(value: unknown): boolean {
  if (typeof value === 'number') return !(Math.abs(value) <= Number.MAX_SAFE_INTEGER);
  if (typeof value !== 'object' || value === null) return false;
  if (Array.isArray(value)) return value.some(holdsLargeNumber);
  for (const name of Object.keys(value)) {
    if (holdsLargeNumber((value as Record<string, unknown>)[name])) return true;
  }
  return false;
}

/**
 * Every number in a JSON text that parsing would change: an integer (written without fraction and exponent) beyond
 * ±(2^53-1), or a number beyond the range of a double. Numbers written with a fraction or an exponent are doubles by their
 * spelling, as RFC 8259 section 6 expects, and pass.
 * @param text well-formed JSON.
 * @param value what `JSON.parse` made of it: of members with the same name only the last counts there, and so here.
 */
export function unsafeNumbers(text: string, value: unknown): UnsafeNumber[] {
  const found: UnsafeNumber[] = [];
  /** Open arrays with the index, and open objects with where the current member's name is in the text. */
  const open: Array<{ array: boolean; index: number; nameStart: number; nameEnd: number }> = [];
  let inner: (typeof open)[number] | undefined;
  let expectName = false;
  const number = /-?[\d.eE+-]+/y;

  for (let at = 0; at < text.length; at++) {
    const char = text.charCodeAt(at);
    if (char === quote) {
      const end = endOfString(text, at);
      if (expectName) {
        inner!.nameStart = at;
        inner!.nameEnd = end + 1;
        expectName = false;
      }
      at = end;
    } else if (char === openBracket || char === openBrace) {
      inner = { array: char === openBracket, index: 0, nameStart: 0, nameEnd: 0 };
      open.push(inner);
      expectName = !inner.array;
    } else if (char === closeBracket || char === closeBrace) {
      open.pop();
      inner = open.at(-1);
      expectName = false;
    } else if (char === comma) {
      if (inner!.array) inner!.index++;
      else expectName = true;
    } else if (char === minus || (char >= zero && char <= nine)) {
      number.lastIndex = at;
      const token = number.exec(text)![0];
      at += token.length - 1;
      if (changesWhenParsed(token)) {
        const path = open.map(({ array, index, nameStart, nameEnd }) =>
          array ? index : JSON.parse(text.slice(nameStart, nameEnd)),
        );
        if (valueAt(value, path) === Number(token)) found.push({ path, token });
      }
    }
  }
  return found;
}

function changesWhenParsed(token: string): boolean {
  // The shortest one is 1e309 or -2^53 in digits; most numbers are shorter.
  if (token.length < 5) return false;
  const parsed = Math.abs(Number(token));
  if (parsed <= Number.MAX_SAFE_INTEGER) return false;
  return parsed === Number.POSITIVE_INFINITY || !/[.eE]/.test(token);
}

/** Position of the quote that ends the string which begins at `start`; the text's end where none does. */
function endOfString(text: string, start: number): number {
  for (let end = text.indexOf('"', start + 1); end !== -1; end = text.indexOf('"', end + 1)) {
    let before = end - 1;
    while (text.charCodeAt(before) === backslash) before--;
    // An even number of backslashes: none of them escapes the quote.
    if ((end - before) % 2 === 1) return end;
  }
  return text.length;
}

function valueAt(value: unknown, path: readonly (string | number)[]): unknown {
  let at = value;
  for (const part of path) {
    if (typeof at !== 'object' || at === null || !Object.hasOwn(at, part)) return undefined;
    at = (at as Record<string | number, unknown>)[part];
  }
  return at;
}
