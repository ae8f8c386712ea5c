/**
 * PostgreSQL arrays in their binary form, for elements that are known in hex: the server then has nothing to read letter by
 * letter, and half the bytes come. For what a batch brings by the thousand; other arrays go as text (`array-literal.ts`).
 * The form is that of `array_send`: dimensions, a flag for NULLs, the type of the elements, length, lower bound; then each
 * element with its length before it.
 */

/** SHA-256 digests. */
export function digestArray(hexes: readonly string[]): Buffer {
  return Buffer.from(binaryArray(17, 32, hexes), 'hex');
}

export function uuidArray(ids: readonly string[]): Buffer {
  return Buffer.from(binaryArray(2950, 16, ids).replaceAll('-', ''), 'hex');
}

/** In hex. @param elementLength in bytes */
function binaryArray(elementType: number, elementLength: number, elements: readonly string[]): string {
  if (elements.length === 0) return `${int32(0)}${int32(0)}${int32(elementType)}`;
  const head = `${int32(1)}${int32(0)}${int32(elementType)}${int32(elements.length)}${int32(1)}`;
  const length = int32(elementLength);
  return `${head}${length}${elements.join(length)}`;
}

function int32(value: number): string {
  return value.toString(16).padStart(8, '0');
}
