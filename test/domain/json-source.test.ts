import assert from 'node:assert/strict';
import fc from 'fast-check';
import t from 'tap';
import { holdsLargeNumber, nestsDeeperThan, unsafeNumbers } from '../../src/domain/json-source.ts';

const unsafe = (text: string) =>
  unsafeNumbers(text, JSON.parse(text)).map(({ path, token }) => [path.join('/'), token]);

t.test('an integer beyond 2^53-1 and a number beyond a double are found (brianc/node-postgres#2385)', async (t) => {
  t.strictSame(unsafe('{"id":9007199254740993}'), [['id', '9007199254740993']]);
  t.strictSame(unsafe('[1,[-9007199254740992],{"a":1E400}]'), [
    ['1/0', '-9007199254740992'],
    ['2/a', '1E400'],
  ]);
  t.strictSame(unsafe('9007199254740992'), [['', '9007199254740992']]);
  t.strictSame(unsafe('-1e309'), [['', '-1e309']]);
});

t.test('what a double carries, or declares itself a double, passes', async (t) => {
  for (const text of [
    '9007199254740991',
    '-9007199254740991',
    '1e20',
    '9007199254740993.0',
    '1.7976931348623157e308',
  ]) {
    t.strictSame(unsafe(text), [], text);
  }
  t.strictSame(unsafe('{"card":"4242424242424242","n":0.12345678901234567890,"e":"1e999"}'), []);
});

t.test('names, escapes, white space and numbers in strings do not lead astray', async (t) => {
  t.strictSame(unsafe(String.raw`{ "a\"1" : [ "\\", "9007199254740993", { "b/~" : 9007199254740993 } ] }`), [
    ['a"1/2/b/~', '9007199254740993'],
  ]);
});

t.test('of members with the same name only the last counts, as in JSON.parse', async (t) => {
  t.strictSame(unsafe('{"a":9007199254740993,"a":1}'), []);
  t.strictSame(unsafe('{"a":1,"a":9007199254740993}'), [['a', '9007199254740993']]);
  t.strictSame(unsafe('{"items":[9007199254740993],"items":[1]}'), []);
});

t.test('property: exactly the unsafe tokens are found, each at its place', async () => {
  const token = fc.oneof(
    fc.bigInt({ min: -(2n ** 70n), max: 2n ** 70n }).map(String),
    fc.bigInt({ min: 2n ** 53n - 3n, max: 2n ** 53n + 3n }).map(String),
    fc.double({ noNaN: true, noDefaultInfinity: true }).map((value) => JSON.stringify(value)),
    fc.tuple(fc.integer(), fc.integer({ min: -400, max: 400 })).map(([digits, power]) => `${digits}e${power}`),
    fc.constantFrom('1E+309', '-0', '-0.0', '0', '1.5e-400'),
  );
  const space = fc.constantFrom('', ' ', '\n\t');
  // A tree whose leaves are number tokens or other scalars, in their own spelling.
  const { tree } = fc.letrec<{ tree: Node; leaf: Node }>((tie) => ({
    leaf: fc.oneof(
      token.map((text): Node => ({ kind: 'number', text })),
      fc
        .oneof(fc.string({ unit: 'grapheme' }), fc.constantFrom('9007199254740993', '\\"', '1e999'))
        .map((text): Node => ({ kind: 'other', text: JSON.stringify(text) })),
      fc.constantFrom('true', 'null').map((text): Node => ({ kind: 'other', text })),
    ),
    tree: fc.oneof(
      { maxDepth: 4 },
      tie('leaf'),
      fc.array(tie('tree')).map((children): Node => ({ kind: 'array', children })),
      fc
        .uniqueArray(fc.tuple(fc.string(), tie('tree')), { selector: ([name]) => name })
        .map((members): Node => ({ kind: 'object', members })),
    ),
  }));

  fc.assert(
    fc.property(tree, space, (root, gap) => {
      const expected: Array<{ path: Array<string | number>; token: string }> = [];
      const text = write(root, gap, [], expected);
      const value = JSON.parse(text);
      const found = unsafeNumbers(text, value);
      const order = (a: { path: readonly unknown[] }, b: { path: readonly unknown[] }) =>
        JSON.stringify(a.path) < JSON.stringify(b.path) ? -1 : 1;
      assert.deepEqual([...found].sort(order), expected.sort(order));
      if (found.length > 0) assert.ok(holdsLargeNumber(value), 'the cheap look sends us to the text');
    }),
    { numRuns: 500 },
  );
});

type Node =
  | { kind: 'number'; text: string }
  | { kind: 'other'; text: string }
  | { kind: 'array'; children: Node[] }
  | { kind: 'object'; members: Array<[string, Node]> };

/** The tree as JSON text; notes the tokens that exact arithmetic says a double cannot carry. */
function write(
  node: Node,
  gap: string,
  path: Array<string | number>,
  unsafeOnes: Array<{ path: Array<string | number>; token: string }>,
): string {
  if (node.kind === 'number' && isUnsafe(node.text)) unsafeOnes.push({ path, token: node.text });
  if (node.kind === 'number' || node.kind === 'other') return gap + node.text + gap;
  if (node.kind === 'array') {
    return `${gap}[${node.children.map((child, index) => write(child, gap, [...path, index], unsafeOnes)).join(',')}${gap}]`;
  }
  const members = node.members.map(
    ([name, child]) => `${gap}${JSON.stringify(name)}${gap}:${write(child, gap, [...path, name], unsafeOnes)}`,
  );
  return `{${members.join(',')}${gap}}${gap}`;
}

function isUnsafe(token: string): boolean {
  if (!/^-?\d+$/.test(token)) return !Number.isFinite(Number(token));
  const exact = BigInt(token);
  return exact > 9_007_199_254_740_991n || exact < -9_007_199_254_740_991n;
}

t.test('nesting is counted outside of strings; both sides of the limit', async (t) => {
  const nested = (levels: number) => '['.repeat(levels) + ']'.repeat(levels);
  t.equal(nestsDeeperThan(nested(512), 512), false);
  t.equal(nestsDeeperThan(nested(513), 512), true);
  t.equal(nestsDeeperThan(nested(512).replace('[]', '[{}]'), 512), true);
  t.equal(nestsDeeperThan(JSON.stringify({ a: '['.repeat(1000), 'b\\"[[[': 1 }), 1), false);
  t.equal(nestsDeeperThan('[],[],{},'.repeat(1000), 1), false);
  t.equal(nestsDeeperThan('['.repeat(100_000), 512), true, 'also where the text never closes (honojs/node-server#327)');
  t.equal(nestsDeeperThan('"[[[[', 1), false, 'also where a string never ends');
});

t.test('property: nesting agrees with a count on the parsed value', async () => {
  const depth = (value: unknown): number =>
    typeof value === 'object' && value !== null ? 1 + Math.max(0, ...Object.values(value).map(depth)) : 0;
  fc.assert(
    fc.property(fc.jsonValue({ maxDepth: 6 }), (value) => {
      const text = JSON.stringify(value);
      assert.equal(nestsDeeperThan(text, depth(value)), false);
      if (depth(value) > 0) assert.equal(nestsDeeperThan(text, depth(value) - 1), true);
    }),
  );
});
