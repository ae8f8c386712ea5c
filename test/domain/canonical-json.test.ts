import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import fc from 'fast-check';
import t from 'tap';
import { canonicalJson } from '../../src/domain/canonical-json.ts';

const sha256 = (text: string) => createHash('sha256').update(text).digest('hex');

t.test('the example of RFC 8785 section 3.2.2 and 3.2.3 has the text that the RFC prints', async (t) => {
  const parsed = JSON.parse(String.raw`{
    "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
    "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
    "literals": [null, true, false]
  }`);
  t.equal(
    canonicalJson(parsed),
    String.raw`{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`,
  );
});

t.test('member order does not matter, array order does (aws-powertools/powertools-lambda-python#638)', async (t) => {
  const one = canonicalJson(JSON.parse('{"b":1,"a":{"d":2,"c":3}}'));
  const other = canonicalJson(JSON.parse('{ "a" : {"c":3,"d":2}, "b":1 }'));
  t.equal(one, '{"a":{"c":3,"d":2},"b":1}');
  t.equal(other, one);
  t.equal(sha256(one), '78d48859c3252943aab7306f76c80f3f07783582e05ab8f944ce0696f2dbfc67');
  t.not(canonicalJson([1, 2]), canonicalJson([2, 1]));
  const mixed = JSON.parse('{"b":1,"10":2,"9":{"y":1,"x":2},"":3}');
  t.equal(canonicalJson(mixed), '{"":3,"10":2,"9":{"x":2,"y":1},"b":1}', 'also of names that objects keep as numbers');
  t.equal(canonicalJson(mixed, JSON.stringify(mixed)), canonicalJson(mixed), 'its plain text is not taken for it');
});

t.test('members sort by code units whatever the locale (antonio-ivanovski/spliit-cloud#68)', async (t) => {
  const names = ['b', 'B', '_', 'é', '😀', '\uffee'];
  const expected = '{"B":0,"_":0,"b":0,"é":0,"😀":0,"\uffee":0}';
  t.equal(canonicalJson(Object.fromEntries(names.map((name) => [name, 0]))), expected);
  // A control: the order of a locale differs, so this input can tell the two apart.
  t.not([...names].sort((a, b) => a.localeCompare(b)).join(), [...names].sort().join());

  const module = new URL('../../src/domain/canonical-json.ts', import.meta.url).href;
  const script = `import { canonicalJson } from ${JSON.stringify(module)};
    process.stdout.write(canonicalJson(${JSON.stringify(Object.fromEntries(names.map((name) => [name, 0])))}))`;
  for (const LANG of ['C', 'sv_SE.UTF-8', 'tr_TR.UTF-8']) {
    const env = { ...process.env, LANG, LC_ALL: LANG };
    const run = spawnSync(process.execPath, ['--import=tsx', '--input-type=module', '-e', script], {
      env,
      encoding: 'utf8',
    });
    t.equal(run.stdout, expected, LANG);
  }
});

t.test('what JSON can carry and PostgreSQL or UTF-8 cannot is escaped', async (t) => {
  t.equal(
    canonicalJson(['\u0000', '\ud800', '\udead\ud83d', '😀']),
    String.raw`["\u0000","\ud800","\udead\ud83d","😀"]`,
  );
  t.equal(canonicalJson({ '\ud800': 1 }), String.raw`{"\ud800":1}`);
});

t.test('numbers are doubles: -0 is 0, 1.0 is 1; what is not finite has no form', async (t) => {
  t.equal(canonicalJson([-0, 1.0, 1e21, 5e-324, 9007199254740991]), '[0,1,1e+21,5e-324,9007199254740991]');
  t.throws(() => canonicalJson(JSON.parse('[1e400]')), RangeError);
  t.throws(() => canonicalJson(Number.NaN), RangeError);
});

t.test('a member named __proto__ or constructor is a member like any other', async (t) => {
  const parsed = JSON.parse('{"constructor":null,"__proto__":{"isAdmin":true}}');
  t.equal(canonicalJson(parsed), '{"__proto__":{"isAdmin":true},"constructor":null}');
  t.notOk('isAdmin' in {});
});

t.test('property: equal values have one text, whatever their member order; the text parses to the value', async () => {
  fc.assert(
    fc.property(fc.jsonValue(), fc.infiniteStream(fc.nat()), (value, random) => {
      const draws = random[Symbol.iterator]();
      const text = canonicalJson(value);
      assert.equal(canonicalJson(shuffled(value, () => draws.next().value!)), text);
      assert.equal(canonicalJson(JSON.parse(text)), text);
      assert.deepEqual(JSON.parse(text), JSON.parse(JSON.stringify(value)));
    }),
  );
});

/** The same value with the members of its objects in another order. */
function shuffled(value: unknown, random: () => number): unknown {
  if (Array.isArray(value)) return value.map((each) => shuffled(each, random));
  if (typeof value !== 'object' || value === null) return value;
  const entries = Object.entries(value).map(([name, member]) => [name, shuffled(member, random)] as const);
  const order = entries.map((entry) => ({ entry, at: random() })).sort((a, b) => a.at - b.at);
  return Object.fromEntries(order.map(({ entry }) => entry));
}
