/** Arrays as text are what PostgreSQL reads back as the same arrays. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import t from 'tap';
import { arrayLiteral, repeatedArrayLiteral, sparseArrayLiteral } from '../../src/postgres/array-literal.ts';
import { createTestDatabase } from '../support/database.ts';

t.test('property: text comes back as it was, with quotes, backslashes, controls and words of the syntax', async (t) => {
  const { database } = await createTestDatabase(t, { max: 1 });
  const piece = fc.oneof(
    fc.string({ unit: 'grapheme' }),
    fc.constantFrom('"', '\\', '\\\\n', '\n', '\t', '\\"', '{', '}', ',', 'NULL', 'null', ' ', '\u007f', '\u2028', "'"),
  );
  const text = fc
    .array(piece, { maxLength: 4 })
    .map((pieces) => pieces.join(''))
    .filter((each) => !each.includes('\u0000'));
  await fc.assert(
    fc.asyncProperty(fc.array(fc.option(text)), async (values) => {
      const [row] = await database.query<{ values: Array<string | null> }>('select $1::text[] as values', [
        arrayLiteral(values),
      ]);
      assert.deepEqual(row!.values, values);
    }),
  );
});

t.test('numbers, booleans and nulls', async (t) => {
  t.equal(arrayLiteral([1, -2, 1.5, true, false, null]), '{1,-2,1.5,true,false,null}');
  t.equal(arrayLiteral([]), '{}');
});

t.test('a column without values is empty; one with a single value is sent once', async (t) => {
  t.equal(sparseArrayLiteral([null, null]), '{}');
  t.equal(sparseArrayLiteral([null, 'a']), '{null,"a"}');
  t.equal(repeatedArrayLiteral([null, null]), '{}');
  t.equal(repeatedArrayLiteral([null, 0, 0, null]), '{0}');
  t.equal(repeatedArrayLiteral([0, 1]), '{0,1}');
  t.equal(repeatedArrayLiteral([null, 0, 1]), '{null,0,1}');
});
