/** Bytes to lines, however the bytes are cut into pieces. */
import fc from 'fast-check';
import t from 'tap';
import { LineSplitter, maxLineBytes, type RawLine } from '../../../src/http/ndjson/split-lines.ts';

function split(pieces: readonly Buffer[]): Array<string | { tooLong: string }> {
  const splitter = new LineSplitter();
  const show = (line: RawLine) => (line.kind === 'line' ? line.bytes.toString('latin1') : { tooLong: line.sha256 });
  return [...pieces.flatMap((piece) => Array.from(splitter.push(piece), show)), ...Array.from(splitter.end(), show)];
}

t.test('LF and CR LF end a line, so does the end, and blank lines are none', async (t) => {
  t.same(split([Buffer.from('a\nb\r\n\n \t\r\n\r\nc\r')]), ['a', 'b', 'c']);
  t.same(split([Buffer.from('a\r\n'), Buffer.from('b\n')]), ['a', 'b']);
  t.same(split([Buffer.from('a\rb\n c ')]), ['a\rb', ' c '], 'white space within a line is its own');
  t.same(split([]), []);
});

t.test('how the bytes are cut does not matter', async () => {
  const text = fc.array(fc.constantFrom('a', '\n', '\r', ' ', 'é'), { maxLength: 60 }).map((parts) => parts.join(''));
  fc.assert(
    fc.property(text, fc.array(fc.nat(8), { maxLength: 60 }), (line, sizes) => {
      const bytes = Buffer.from(line);
      const pieces: Buffer[] = [];
      let from = 0;
      for (const size of sizes) {
        pieces.push(bytes.subarray(from, from + size));
        from = Math.min(bytes.length, from + size);
      }
      pieces.push(bytes.subarray(from));
      const expected = bytes
        .toString('latin1')
        .split('\n')
        .map((each) => (each.endsWith('\r') ? each.slice(0, -1) : each))
        .filter((each) => /[^ \r]/.test(each));
      return JSON.stringify(split(pieces)) === JSON.stringify(expected);
    }),
  );
});

t.test('a line of 1 MiB is a line, one byte more is too long, and the next one is whole', async (t) => {
  const full = Buffer.alloc(maxLineBytes, 'x');
  for (const end of ['\n', '\r\n', '']) {
    for (const size of [full.length + 9, 100_000]) {
      const sent = (line: Buffer) =>
        cut(Buffer.concat([Buffer.from('a\n'), line, Buffer.from(`${end || '\n'}b`)]), size);
      t.same(split(sent(full)), ['a', full.toString(), 'b']);
      t.match(split(sent(Buffer.concat([full, Buffer.from('y')]))), ['a', { tooLong: /^[0-9a-f]{64}$/ }, 'b']);
    }
  }
});

t.test('two lines that are too long are told apart', async (t) => {
  const line = (last: string) => Buffer.concat([Buffer.alloc(3 * maxLineBytes, 'x'), Buffer.from(`${last}\n`)]);
  const of = (last: string, size: number) => split(cut(line(last), size))[0];
  t.same(of('1', 65_536), of('1', 1_000_000));
  t.notSame(of('1', 65_536), of('2', 65_536));
});

function cut(bytes: Buffer, size: number): Buffer[] {
  return Array.from({ length: Math.ceil(bytes.length / size) }, (_, i) => bytes.subarray(i * size, (i + 1) * size));
}
