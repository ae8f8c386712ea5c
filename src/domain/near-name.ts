/** Which known name somebody probably meant: the nearest by edits, where it is near enough to be worth saying. */

/** Names are short; a longer text is not a slip of one. */
const longestName = 80;

/**
 * The known name within a third of the length in edits (at most 3; swapped neighbours are one edit), or one that begins
 * with the name; undefined: none is near.
 */
export function nearName(name: string, known: Iterable<string>): string | undefined {
  if (name.length > longestName) return undefined;
  let best: string | undefined;
  let bestDistance = Math.min(3, Math.max(1, Math.floor(name.length / 3))) + 1;
  for (const candidate of known) {
    if (candidate === name || candidate.length > longestName) continue;
    const distance = editDistance(name.toLowerCase(), candidate.toLowerCase());
    if (distance < bestDistance) {
      best = candidate;
      bestDistance = distance;
    }
  }
  return best ?? beginningWith(name, known);
}

/** `timeout` for `timeout_ms`: more edits than a slip, but plainly meant. */
function beginningWith(name: string, known: Iterable<string>): string | undefined {
  if (name.length < 3) return undefined;
  for (const candidate of known) if (candidate.toLowerCase().startsWith(name.toLowerCase())) return candidate;
  return undefined;
}

/** ` (did you mean "x"?)` where a known name is near, else nothing. */
export function didYouMean(name: string, known: Iterable<string>): string {
  const near = nearName(name, known);
  return near === undefined ? '' : ` (did you mean "${near}"?)`;
}

/** Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours. */
function editDistance(a: string, b: string): number {
  let beforeLast: number[] = [];
  let last = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1] ? 0 : 1;
      let cost = Math.min(last[j]! + 1, row[j - 1]! + 1, last[j - 1]! + same);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1])
        cost = Math.min(cost, beforeLast[j - 2]! + 1);
      row.push(cost);
    }
    beforeLast = last;
    last = row;
  }
  return last[b.length]!;
}
