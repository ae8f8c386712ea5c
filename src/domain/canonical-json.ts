/**
 * One text for all spellings of a JSON value (RFC 8785, JSON Canonicalization Scheme): no white space, members sorted by
 * UTF-16 code units (never by a locale), numbers as ECMAScript writes doubles. What is hashed is this text, so two bodies
 * that differ in member order or spacing alone are one request. Departs from the RFC in one point: a lone surrogate, which
 * the RFC calls an error, is written as its escape (`\udxxx`), because a body may carry one.
 */

/**
 * The canonical text of a parsed JSON value. Throws a RangeError for a number that is not finite (RFC 8785 section 3.2.2.3).
 * Recurses once per level: bound the nesting before (`nestsDeeperThan`).
 * @param plain what JSON.stringify makes of the value, where the caller has it at hand
 */
export function canonicalJson(value: unknown, plain?: string): string {
  return isInOrder(value) ? (plain ?? JSON.stringify(value)) : sortedJson(value);
}

/** Whether JSON.stringify, which is native, gives the canonical text: all members come in order, all numbers are finite. */
function isInOrder(value: unknown): boolean {
  if (typeof value === 'number') return Number.isFinite(value);
  if (typeof value !== 'object' || value === null) return true;
  if (Array.isArray(value)) return value.every(isInOrder);
  const members = value as Record<string, unknown>;
  let before = '';
  for (const name of Object.keys(members)) {
    // Compares code units, as the RFC wants it.
    if (name < before || !isInOrder(members[name])) return false;
    before = name;
  }
  return true;
}

function sortedJson(value: unknown): string {
  if (typeof value === 'string') return canonicalString(value);
  if (typeof value === 'number' && !Number.isFinite(value)) throw new RangeError(`${value} has no form in JSON`);
  // JSON.stringify is canonical for what has no members: shortest doubles, -0 as 0.
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(sortedJson).join(',')}]`;
  const members = value as Record<string, unknown>;
  const names = Object.keys(members);
  // Without a comparison function, sort compares code units.
  if (names.length > 1) names.sort();
  let text = '{';
  for (const name of names) {
    if (text.length > 1) text += ',';
    text += `${canonicalString(name)}:${sortedJson(members[name])}`;
  }
  return `${text}}`;
}

/** JSON.stringify has exactly the escapes of the RFC; most strings need none, and then asking costs half of calling it. */
function canonicalString(text: string): string {
  return /^[\x20\x21\x23-\x5b\x5d-\x7e]*$/.test(text) ? `"${text}"` : JSON.stringify(text);
}
