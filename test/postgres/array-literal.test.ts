/** Arrays as text are what PostgreSQL reads back as the same arrays. */
import assert from 'node:assert/strict';
import { createHash, randomUUID } from 'node:crypto';
import fc from 'fast-check';
import t from 'tap';
import { arrayLiteral, repeatedArrayLiteral, sparseArrayLiteral } from '../../src/postgres/array-literal.ts';
import { digestArray, uuidArray } from '../../src/postgres/binary-array.ts';
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
  const sparse = (values: Array<string | null>) => sparseArrayLiteral(values, (value) => value);
  const repeated = (values: Array<number | null>) => repeatedArrayLiteral(values, (value) => value);
  t.equal(sparse([null, null]), '{}');
  t.equal(sparse([null, 'a']), '{null,"a"}');
  t.equal(repeated([null, null]), '{}');
  t.equal(repeated([null, 0, 0, null]), '{0}');
  t.equal(repeated([0, 1]), '{0,1}');
  t.equal(repeated([null, 0, 1]), '{null,0,1}');
  t.equal(
    repeatedArrayLiteral([{ of: null }, null, { of: 1 }], ({ of }) => of),
    '{1}',
    'rows may be null, and their values',
  );
});

t.test('what is sent in binary form is what its text would be', async (t) => {
  const { database } = await createTestDatabase(t, { max: 1 });
  for (const count of [0, 1, 3, 1000]) {
    const ids = Array.from({ length: count }, () => randomUUID());
    const hashes = ids.map((id) => createHash('sha256').update(id).digest('hex'));
    const [row] = await database.query<{ ids: string[]; hashes: string[] }>(
      `select $1::uuid[] as ids, array(select encode(h, 'hex') from unnest($2::bytea[]) with ordinality u(h, place) order by place) as hashes`,
      [uuidArray(ids), digestArray(hashes)],
    );
    t.same(row, { ids, hashes }, `${count} elements`);
  }
});
