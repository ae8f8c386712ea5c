/** How lines that were not taken are told: alike ones folded, the field named, never more than a bound. */
import t from 'tap';
import { FaultLines } from '../../src/cli/fault-lines.ts';
import type { LineVerdict } from '../../src/client/index.ts';

type Fault = NonNullable<LineVerdict['errors']>[number];

function setup() {
  const said: string[] = [];
  const view = { say: (text: string) => void said.push(text), show: () => undefined, end: () => undefined };
  const faults = new FaultLines(view);
  const tell = (line: number, errors: Fault[], idempotency_key: string | null = null) =>
    faults.tell(line, { index: line - 1, idempotency_key, verdict: 'rejected', errors } as LineVerdict);
  return { said, faults, tell };
}

const missing = (line: number, field: string, code = 'required'): Fault => ({
  pointer: `/items/${line - 1}/${field}`,
  code,
  message: 'is required, here or in defaults',
});

t.test('the field is named, and the option that stands for it; lines alike are folded', async (t) => {
  const { said, faults, tell } = setup();
  for (let line = 1; line <= 20; line += 1) tell(line, [missing(line, 'upstream'), missing(line, 'path')], `k-${line}`);
  faults.end('there');
  t.same(said, [
    'line 1 (k-1) rejected: required: upstream: is required, here or in defaults (or --upstream); required: path: is required, here or in defaults (or --path)',
    '… and 19 more lines alike',
    'all of them: there',
  ]);
});

t.test('several kinds: each is told once, and counted', async (t) => {
  const { said, faults, tell } = setup();
  for (const line of [1, 3, 4]) tell(line, [missing(line, 'upstream')]);
  tell(2, [{ code: 'malformed_json', message: 'no JSON' }]);
  tell(5, [missing(5, 'idempotency_key', 'missing_idempotency_key')]);
  tell(6, [{ code: 'malformed_json', message: 'no JSON' }]);
  faults.end('there');
  t.match(said, [
    /^line 1 rejected: required: upstream: .* \(or --upstream\)$/,
    /^line 2 rejected: malformed_json: no JSON$/,
    /^line 5 rejected: .* \(or --derive-keys\)$/,
    /^… and 2 more lines like line 1$/,
    /^… and 1 more line like line 2$/,
    /^all of them: there$/,
  ]);
  const one = setup();
  one.tell(1, [missing(1, 'path')]);
  one.faults.end('there');
  t.equal(one.said.length, 1, 'where all is told nothing more is said');
});

t.test('what is said has a bound, however many lines, faults and characters there are', async (t) => {
  const { said, faults, tell } = setup();
  for (let line = 1; line <= 5_000; line += 1) {
    tell(
      line,
      Array.from({ length: 50 }, (_, n) => ({ code: 'invalid', message: `${line} ${n} ${'x'.repeat(10_000)}` })),
    );
  }
  faults.end('there');
  t.equal(said.length, 102);
  t.match(said.at(-2), /^… and 4900 more lines not taken for other reasons$/);
  t.match(said[0], /; … and 45 more faults$/);
  t.ok(said.join('').length < 200_000, `${said.join('').length} characters`);
});
