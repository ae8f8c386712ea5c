/** Preferences that a request carries (RFC 7240). One that is not understood is passed over, as section 2 has it. */

/**
 * Seconds of `wait` (section 4.3), at most `most`; undefined: there is none, or it is no number. Of several the first counts.
 * @param header as Node joins them: several header fields in one, with commas
 */
export function preferredWait(header: string | string[] | undefined, most: number): number | undefined {
  for (const preference of [header ?? []].flat().join(',').split(',')) {
    const [, value] = /^\s*wait\s*=\s*(?:"(\d{1,9})"|(\d{1,9}))\s*(?:;.*)?$/i.exec(preference)?.filter(Boolean) ?? [];
    if (value !== undefined) return Math.min(Number(value), most);
  }
  return undefined;
}
