/**
 * Removes the upstream's secrets from what an answer or an error repeats of them, before anything is kept or logged.
 * Values under 8 characters stay: blotting out short common text would garble every answer.
 */

/** Shortest secret, in characters, that is blotted out. */
const shortestSecret = 8;
const asterisk = 0x2a;

/**
 * The texts to look for, longest first: one may be part of another, and must not break it up before it is found. A secret is
 * repeated as it is, or as JSON and URLs write it.
 */
export function blottable(secrets: readonly string[]): readonly string[] {
  if (secrets.length === 0) return secrets;
  const texts = secrets.filter((secret) => secret.length >= shortestSecret).flatMap(spellings);
  return [...new Set(texts)].sort((a, b) => b.length - a.length);
}

function spellings(secret: string): string[] {
  return /^[\w.~-]*$/.test(secret)
    ? [secret]
    : [secret, JSON.stringify(secret).slice(1, -1), encodeURIComponent(secret)];
}

/** @param secrets as `blottable` gives them */
export function blotOutText(text: string, secrets: readonly string[]): string {
  let blotted = text;
  for (const secret of secrets) blotted = blotted.replaceAll(secret, '*'.repeat(shortestSecret));
  return blotted;
}

/** In place, length unchanged, so that a bound on bytes stays one. @param secrets as `blottable` gives them */
export function blotOutBytes(bytes: Buffer, secrets: readonly string[]): void {
  for (const secret of secrets) {
    const length = Buffer.byteLength(secret);
    for (let at = bytes.indexOf(secret); at !== -1; at = bytes.indexOf(secret, at + length)) {
      bytes.fill(asterisk, at, at + length);
    }
  }
}

/** Shortest beginning of a secret, in bytes, that is blotted out where a text breaks off in it. */
const shortestBeginning = 4;

/** As `blotOutBytes`, of a secret whose end did not come any more. @param secrets as `blottable` gives them */
export function blotOutBrokenOff(bytes: Buffer, secrets: readonly string[]): void {
  for (const secret of secrets) {
    const whole = Buffer.from(secret);
    for (let length = Math.min(whole.length - 1, bytes.length); length >= shortestBeginning; length -= 1) {
      const end = bytes.subarray(bytes.length - length);
      if (end.equals(whole.subarray(0, length))) end.fill(asterisk);
    }
  }
}
