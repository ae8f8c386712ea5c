/**
 * Answers as the documents show them, compared with what the service says. Shown are real answers, shortened by `…`: as a
 * member or an element it stands for any that are left out, as a value for any value. All else must be as shown, but for
 * what differs from run to run: ids (the same id in two places is the same here too), times, and some measured numbers.
 */

/** Measured, or counted by what a busy machine makes of it (an expired permit moves the epoch on). */
const varying: ReadonlySet<string> = new Set(['slot_wait_ms', 'epoch']);
const uuid = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const instant = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;
const omission = '…';

/** The value of a shown answer; omissions become the text `…`. Throws where it is no JSON besides. */
export function parseShown(text: string): unknown {
  const json = text.replaceAll(/"(?:[^"\\]|\\.)*"|…/g, (part: string, at: number, all: string) =>
    part === omission ? omissionAt(all, at) : part,
  );
  return JSON.parse(json);
}

/** In an object it needs a name, unless it is a value. */
function omissionAt(text: string, at: number): string {
  if (/:\s*$/.test(text.slice(0, at))) return `"${omission}"`;
  let depth = 0;
  const before = text.slice(0, at).replaceAll(/"(?:[^"\\]|\\.)*"/g, '""');
  for (let i = before.length - 1; i >= 0; i--) {
    const char = before[i] as string;
    if ('}]'.includes(char)) depth += 1;
    if ('{['.includes(char)) {
      if (depth === 0) return char === '[' ? `"${omission}"` : `"${omission}":true`;
      depth -= 1;
    }
  }
  return `"${omission}"`;
}

/** Which id of a run stands for which shown one. */
export type Ids = Map<string, string>;

/** Every difference, as `path: what is wrong`; empty: the answer is what is shown. New ids are kept in `ids` then. */
export function differences(shown: unknown, actual: unknown, ids: Ids): string[] {
  const found: string[] = [];
  const seen: Ids = new Map(ids);
  compare(shown, actual, '', { found, seen });
  if (found.length === 0) for (const [one, other] of seen) ids.set(one, other);
  return found;
}

interface Comparison {
  readonly found: string[];
  readonly seen: Ids;
}

function compare(shown: unknown, actual: unknown, path: string, comparison: Comparison): void {
  if (shown === omission) return;
  if (typeof shown === 'string' && typeof actual === 'string') compareText(shown, actual, path, comparison);
  else if (Array.isArray(shown) && Array.isArray(actual)) compareArrays(shown, actual, path, comparison);
  else if (isObject(shown) && isObject(actual)) compareObjects(shown, actual, path, comparison);
  else if (shown !== actual && !(typeof actual === typeof shown && varying.has(lastName(path)))) {
    comparison.found.push(`${path}: shown as ${JSON.stringify(shown)}, is ${JSON.stringify(actual)}`);
  }
}

function lastName(path: string): string {
  return path.slice(path.lastIndexOf('.') + 1);
}

function compareText(shown: string, actual: string, path: string, { found, seen }: Comparison): void {
  if (instant.test(shown) && instant.test(actual)) return;
  if (uuid.test(shown) && uuid.test(actual)) {
    const known = seen.get(shown);
    if (known === undefined && ![...seen.values()].includes(actual)) seen.set(shown, actual);
    else if (known !== actual) found.push(`${path}: not the same id as where ${shown} is shown before`);
    return;
  }
  if (shown !== actual) found.push(`${path}: shown as ${JSON.stringify(shown)}, is ${JSON.stringify(actual)}`);
}

function compareArrays(shown: unknown[], actual: unknown[], path: string, comparison: Comparison): void {
  const open = shown.at(-1) === omission;
  const elements = open ? shown.slice(0, -1) : shown;
  if (open ? actual.length < elements.length : actual.length !== elements.length) {
    comparison.found.push(`${path}: shown with ${elements.length} elements, has ${actual.length}`);
  }
  for (const [i, element] of elements.entries()) compare(element, actual[i], `${path}[${i}]`, comparison);
}

function compareObjects(
  shown: Record<string, unknown>,
  actual: Record<string, unknown>,
  path: string,
  comparison: Comparison,
): void {
  for (const [name, value] of Object.entries(shown)) {
    if (name !== omission) compare(value, actual[name], `${path}.${name}`, comparison);
  }
  if (omission in shown) return;
  for (const name of Object.keys(actual)) {
    if (!(name in shown)) comparison.found.push(`${path}.${name}: not shown, and no … stands for it`);
  }
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** What `path`, as in `.items[1].job_id`, names in a value. Throws where it is no text. */
export function textAt(value: unknown, path: string): string {
  const steps = [...path.matchAll(/\.(\w+)|\[(\d+)\]/gy)];
  if (steps.map(([step]) => step).join('') !== path) throw new Error(`${path} is no path like .items[1].job_id`);
  let at = value;
  for (const [, name, index] of steps) at = (at as Record<string, unknown> | undefined)?.[name ?? index ?? ''];
  if (typeof at !== 'string') throw new Error(`there is no text at ${path}`);
  return at;
}
