/** What all lists have in common: `?cursor=&limit=`, and an answer of `{ items, next_cursor }`. */
import { z } from 'zod';
import { ProblemError } from '../../domain/errors.ts';

/** An integer as a query parameter. An empty text is no number (colinhacks/zod#5501), nor is `1e3`. */
export function integerParameter(minimum: number, maximum: number) {
  return z
    .string()
    .transform((text, context) => {
      const value = /^-?\d{1,15}$/.test(text) ? Number(text) : Number.NaN;
      if (value >= minimum && value <= maximum) return value;
      context.addIssue({ code: 'custom', message: `must be an integer from ${minimum} to ${maximum}` });
      return z.NEVER;
    })
    .meta({ type: 'integer', minimum, maximum });
}

export const listParameters = {
  cursor: z.string().optional().describe('`next_cursor` of the page before'),
  limit: integerParameter(1, 1000).default(100).describe('Most items of a page'),
};

/** For lists whose filters may look through much to find little. */
export const shortPages =
  'What one page costs is bounded: where a filter is narrow and jobs are many, a page may have fewer items than `limit`, even none, while `next_cursor` says that there is more.';

export function listOf<T extends z.ZodType>(item: T) {
  return z.object({
    items: z.array(item),
    next_cursor: z.string().nullable().describe('Pass it as `cursor` for the next page; null: there is none'),
  });
}

/** Where the next page begins, in a form that clients have no reason to take apart. */
export function encodeCursor(position: unknown): string {
  return Buffer.from(JSON.stringify(position)).toString('base64url');
}

/** The position in a cursor that we gave; undefined where there is no cursor. Throws ProblemError for any other text. */
export function decodeCursor<T extends z.ZodType>(schema: T, cursor: string | undefined): z.output<T> | undefined {
  if (cursor === undefined) return undefined;
  const { success, data } = schema.safeParse(parseJson(Buffer.from(cursor, 'base64url').toString('utf8')));
  if (success) return data;
  const message = 'is not a cursor that a list has given';
  throw new ProblemError('invalid_request', `the query parameters: cursor ${message}`, {
    errors: [{ pointer: '/query/cursor', code: 'invalid', message }],
  });
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
