/**
 * Chance that can be repeated: a draw depends on the seed and on what it is drawn for, not on what was drawn before. So the
 * same call meets the same fate in every run, in whatever order the calls arrive.
 */

/** A number in [0, 1) for this seed and text (FNV-1a, then the finalizer of MurmurHash3). */
export function draw(seed: number, what: string): number {
  let hash = (0x811c9dc5 ^ seed) >>> 0;
  for (let i = 0; i < what.length; i += 1) hash = Math.imul(hash ^ what.charCodeAt(i), 0x01000193) >>> 0;
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return ((hash ^ (hash >>> 16)) >>> 0) / 2 ** 32;
}
