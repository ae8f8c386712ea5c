/**
 * The text of an API key: `sluice_`, then the key's id (16 bytes) and its secret (32 random bytes) as one base64url word of 64
 * characters. The prefix lets scanners of sources find keys that were published by mistake; the id lets a key be looked up by
 * something that is no secret, so that the comparison of what is secret can take the same time whatever was sent.
 *
 * What is kept is a plain SHA-256. Slow, salted hashes are for passwords, which can be guessed; 256 random bits cannot, and
 * NIST SP 800-63B (5.1.2.2) asks for no more than an approved hash for a secret of 112 bits or more.
 */
import { createHash, timingSafeEqual } from 'node:crypto';

export const idBytes = 16;
export const secretBytes = 32;

const prefix = 'sluice_';
const pattern = /^sluice_[A-Za-z0-9_-]{64}$/;

/** @param id a UUID */
export function apiKeyText(id: string, secret: Buffer): string {
  return `${prefix}${Buffer.concat([Buffer.from(id.replaceAll('-', ''), 'hex'), secret]).toString('base64url')}`;
}

/** The id (a UUID) in a text that looks like a key of ours; null: it does not. */
export function idOfApiKey(text: string): string | null {
  if (!pattern.test(text)) return null;
  const hex = Buffer.from(text.slice(prefix.length), 'base64url').subarray(0, idBytes).toString('hex');
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
}

/** SHA-256 of any key's text; of equal length whatever it is made of. */
export function hashOfKey(text: string): Buffer {
  return createHash('sha256').update(text, 'utf8').digest();
}

/** In the same time whatever the two are. */
export function isSameHash(a: Buffer, b: Buffer): boolean {
  return a.length === b.length && timingSafeEqual(a, b);
}
