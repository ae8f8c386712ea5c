/**
 * Columns of many rows as PostgreSQL's array literals, for `unnest`. The driver makes them as well, element by element and
 * without knowing what is in them, which at thousands of rows a second is a good part of a worker's time.
 */

/** Of numbers, booleans, UUIDs and words without a special character; null is NULL. A column of nulls alone is '{}': `unnest` fills up. */
export function plainArray(values: readonly (string | number | boolean | null)[]): string {
  if (values.every((value) => value === null)) return '{}';
  return `{${values.map((value) => value ?? 'NULL').join(',')}}`;
}

/** Of any text. */
export function textArray(values: readonly (string | null)[]): string {
  if (values.every((value) => value === null)) return '{}';
  return `{${values.map((value) => (value === null ? 'NULL' : quoted(value))).join(',')}}`;
}

/** Of bytea. */
export function bytesArray(values: readonly (Buffer | null)[]): string {
  if (values.every((value) => value === null)) return '{}';
  return `{${values.map((value) => (value === null ? 'NULL' : `"\\\\x${value.toString('hex')}"`)).join(',')}}`;
}

const special = /["\\]/;

function quoted(value: string): string {
  return special.test(value) ? `"${value.replace(/["\\]/g, '\\$&')}"` : `"${value}"`;
}
