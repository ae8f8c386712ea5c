/**
 * PostgreSQL arrays in their binary form, for elements that are known in hex: the server then has nothing to read letter by
 * letter, and half the bytes come. For what a batch brings by the thousand; other arrays go as text (`array-literal.ts`).
 * The form is that of `array_send`: dimensions, a flag for NULLs, the type of the elements, length, lower bound; then each
 * element with its length before it.
 */

/** Hex digits, all of the same number. */
export function byteaArray(hexes: readonly string[]): Buffer {
  return binaryArray(17, hexes);
}

export function uuidArray(ids: readonly string[]): Buffer {
  return binaryArray(
    2950,
    ids.map((id) => id.replaceAll('-', '')),
  );
}

function binaryArray(elementType: number, hexes: readonly string[]): Buffer {
  if (hexes.length === 0) return Buffer.from(`${int32(0)}${int32(0)}${int32(elementType)}`, 'hex');
  const head = `${int32(1)}${int32(0)}${int32(elementType)}${int32(hexes.length)}${int32(1)}`;
  const length = int32(hexes[0]!.length / 2);
  return Buffer.from(`${head}${length}${hexes.join(length)}`, 'hex');
}

function int32(value: number): string {
  return value.toString(16).padStart(8, '0');
}
