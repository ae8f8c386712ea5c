/** The Idempotency-Key header: any key in a form that a header can have. */

/** Quoted as a string of RFC 8941, in UTF-8 bytes; fetch takes a header as text with one character per byte. */
export function headerKey(key: string): string {
  const bytes = new TextEncoder().encode(`"${key.replaceAll(/["\\]/g, '\\$&')}"`);
  return Array.from(bytes, (byte) => String.fromCharCode(byte)).join('');
}
