/** What `submit` reads before it sends anything: what is refused, and that the rest goes out as it is. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import t, { type Test } from 'tap';
import { openLines } from '../../src/cli/line-source.ts';
import { UsageError } from '../../src/cli/talk.ts';
import type { LineSource } from '../../src/client/index.ts';

const none = Readable.from([]);

async function useFolder(t: Test) {
  const folder = await mkdtemp(join(tmpdir(), 'sluice-lines-'));
  t.teardown(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

/** Text as it would be sent. */
async function sentOf(lines: LineSource | (() => LineSource)): Promise<string> {
  let text = '';
  for await (const piece of typeof lines === 'function' ? lines() : lines) {
    text += new TextDecoder().decode(piece as Uint8Array);
  }
  return text;
}

const pipeOf = (text: string, bytes = text.length) =>
  Readable.from(
    Array.from({ length: Math.ceil(text.length / bytes) }, (_, n) => text.slice(n * bytes, (n + 1) * bytes)).map(
      (each) => Buffer.from(each),
    ),
  );

async function isUsage(t: Test, promise: Promise<unknown>, message: RegExp, what = String(message)): Promise<void> {
  const error = await promise.then(
    () => undefined,
    (reason: unknown) => reason,
  );
  t.ok(error instanceof UsageError, what);
  t.match((error as Error | undefined)?.message, message, what);
}

const long = 'x'.repeat(70_000);
const taken: ReadonlyArray<readonly [what: string, text: string, total: number]> = [
  ['items', '{"a":1}\n{"a":{"b":[{},{}]}}\n', 2],
  ['blank lines around, no line feed at the end', '\n \r\n{"a":1}\n\n{"b":2}', 2],
  ['brackets and quotes in strings', '{"a":"}{","b":"\\"}{[","c":"\\\\"}\r\n{"a":"x] [y"}\n', 2],
  ['a line that is not closed, which only the service judges', '{ no json\n{"a":"\n{"a":1\n', 3],
  ['a long first line', `{"a":[${'1, '.repeat(40_000)}1]}\n{"b":1}\n`, 2],
  ['items named as the members of a batch', '{"idempotency_key":"items","body":{"items":[]}}\n', 1],
];
const refused: ReadonlyArray<readonly [what: string, text: string, message: RegExp]> = [
  ['an array', '[{"a":1},{"a":2}]\n', /JSON array, not one item a line\n.*jq -c '\.\[\]'/],
  ['an array over lines', '\n  [\n{"a":1},\n{"a":2}\n]\n', /JSON array/],
  ['an array behind a byte order mark', '\ufeff[\n{"a":1}\n]\n', /JSON array/],
  ['a batch', '{ "items": [{"a":1}] }', /a batch as JSON.*\n.*jq -c '\.items\[\]'/],
  ['a batch with defaults, over lines', '{"defaults" : {},\n"items":[\n{"a":1}\n]}\n', /a batch as JSON/],
  ['an item over lines', '{\n"a":1\n}\n', /line 1 holds only the start of a JSON text\n.*jq -c '\.'/],
  ['two items on the first line', '{"a":1} {"a":2}\n', /line 1 holds more than one JSON text/],
  ['no line feeds', '{"a":1}\r{"a":2}\r', /line 1 holds more than one JSON text/],
  ['a long array', `[{"a":"${long}"}]`, /JSON array/],
  ['nothing', '', /has no lines/],
  ['blanks', ' \n\r\n\t', /has no lines/],
];

t.test('lines go out as they are, from a file and from a pipe', async (t) => {
  const path = join(await useFolder(t), 'a');
  for (const [what, text, total] of taken) {
    await writeFile(path, text);
    const file = await openLines(path, none);
    t.equal(file.total, total, what);
    t.equal(await sentOf(file.lines), text, what);
    for (const bytes of [1, 7, 200_000]) {
      if (text.length / bytes > 10_000) continue;
      const pipe = await openLines('-', pipeOf(text, bytes));
      t.equal((await sentOf(pipe.lines)).trimStart(), text.trimStart(), `${what}, in pieces of ${bytes}`);
    }
  }
});

t.test('what is not one item a line is refused, from a file and from a pipe', async (t) => {
  const path = join(await useFolder(t), 'a');
  for (const [what, text, message] of refused) {
    await writeFile(path, text);
    await isUsage(t, openLines(path, none), message, what);
    for (const bytes of [1, 200_000]) {
      if (text.length / bytes > 10_000) continue;
      await isUsage(t, openLines('-', pipeOf(text, bytes)), message, `${what}, in pieces of ${bytes}`);
    }
  }
  await writeFile(path, `${'{"a":1}\n'.repeat(20_000)}\n{"a":1},{"a":2}\n`);
  await isUsage(t, openLines(path, none), /line 20002 holds more than one JSON text/);
});

t.test('blank lines before the first are counted and let go of; numbers are those of the pipe', async (t) => {
  const input = await openLines('-', pipeOf('\n\n{"a":1}\n\n{"a":2}\n', 1));
  t.equal(await sentOf(input.lines), '{"a":1}\n\n{"a":2}\n');
  t.same([input.lineNumber(0), input.lineNumber(1)], [3, 5]);
});

t.test('what cannot be read is a matter of usage, also half way', async (t) => {
  const folder = await useFolder(t);
  await isUsage(t, openLines(folder, none), /^cannot read .*: it is a directory$/);
  await isUsage(t, openLines(join(folder, 'none'), none), /^cannot read .*ENOENT/);
  const failing = Readable.from(
    (async function* () {
      yield Buffer.from('{"a":1}\n');
      throw new Error('EIO: the disk is gone');
    })(),
  );
  const input = await openLines('-', failing);
  await isUsage(t, sentOf(input.lines), /^cannot read stdin: EIO: the disk is gone$/);
});

t.test('an interrupt ends the wait for a pipe that says nothing', async (t) => {
  const stop = new AbortController();
  const silent = new Readable({ read: () => undefined });
  const opening = openLines('-', silent, stop.signal);
  stop.abort(new Error('enough'));
  await t.rejects(opening);
  t.ok(silent.destroyed);
});
