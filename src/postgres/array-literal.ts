/**
 * PostgreSQL arrays as text, for `unnest`: a statement then has the same few parameters whatever the number of rows (65,535
 * is the protocol's limit). Written with native means: the driver's own encoding is a call or more for every element.
 */

/** What an array of PostgreSQL's own input format is made from. */
type Element = string | number | boolean | null;

/** What may be one of them; most texts have none, and this is found in a third of the time. */
const likeForeignEscape = /\\[bfnrtu]/;
/** An escape of JSON that PostgreSQL reads as another: an odd backslash before one of these. */
const foreignEscape = /(?:^|[^\\])(?:\\\\)*\\[bfnrtu]/;

/**
 * The literal of an array. Strings may have anything but what PostgreSQL cannot store as text, NUL and lone surrogates:
 * callers refuse or escape these before.
 */
export function arrayLiteral(values: readonly Element[]): string {
  // JSON.stringify is native, and its form is PostgreSQL's but for the brackets and the escapes of control characters.
  const json = JSON.stringify(values);
  if (!likeForeignEscape.test(json) || !foreignEscape.test(json)) return `{${json.slice(1, -1)}}`;
  return `{${values.map((value) => (typeof value === 'string' ? quoted(value) : String(value))).join(',')}}`;
}

/**
 * A column of rows, of which null ones have no value. As `arrayLiteral`, but empty where no row has a value: `unnest` fills
 * the shorter arrays up with NULL.
 */
export function sparseArrayLiteral<Row>(rows: ReadonlyArray<Row | null>, value: (row: Row) => Element): string {
  return rows.some((row) => row !== null && value(row) !== null) ? arrayLiteral(column(rows, value)) : '{}';
}

/**
 * For a column that every row which uses it has a value in: one element where all these values are equal, so that the
 * statement reads `coalesce(column, (array)[1])`. Rows with null, and null rows, do not use it.
 */
export function repeatedArrayLiteral<Row>(rows: ReadonlyArray<Row | null>, value: (row: Row) => Element): string {
  // Most columns are of this kind, so no array is made before one is needed.
  let first: Element = null;
  for (const row of rows) {
    const own = row === null ? null : value(row);
    if (first === null) first = own;
    else if (own !== null && own !== first) return arrayLiteral(column(rows, value));
  }
  return first === null ? '{}' : arrayLiteral([first]);
}

function column<Row>(rows: ReadonlyArray<Row | null>, value: (row: Row) => Element): Element[] {
  return rows.map((row) => (row === null ? null : value(row)));
}

function quoted(value: string): string {
  return `"${value.replace(/["\\]/g, '\\$&')}"`;
}
