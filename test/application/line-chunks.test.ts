/** What is stored together: bounded in lines, in bytes and in time, and never read far ahead. */
import t from 'tap';
import { chunkLines, type StreamLine } from '../../src/application/line-chunks.ts';
import { systemClock } from '../../src/system/clock.ts';
import { eventually } from '../support/eventually.ts';

function line(name: string, bytes = 10): StreamLine {
  return { sha256: name, bytes, item: () => ({ key: null, keySource: null, job: null, faults: [] }) };
}

const lines = (count: number, bytes?: number) => Array.from({ length: count }, (_, i) => line(`${i}`, bytes));

/** A source that gives these pieces and counts how many were taken from it. */
function sourceOf(pieces: ReadonlyArray<readonly StreamLine[]>) {
  const source = {
    taken: 0,
    async *[Symbol.asyncIterator]() {
      for (const piece of pieces) {
        source.taken += 1;
        yield piece;
      }
    },
  };
  return source;
}

async function sizesOf(pieces: ReadonlyArray<readonly StreamLine[]>): Promise<number[]> {
  const sizes: number[] = [];
  const names: string[] = [];
  for await (const chunk of chunkLines(sourceOf(pieces), {
    clock: systemClock,
    signal: new AbortController().signal,
  })) {
    sizes.push(chunk.length);
    names.push(...chunk.map(({ sha256 }) => sha256));
  }
  t.same(
    names,
    pieces.flat().map(({ sha256 }) => sha256),
    'all of them, in order',
  );
  return sizes;
}

t.test('at most 1,000 lines make a chunk, and at most 1 MiB', async (t) => {
  t.same(await sizesOf([lines(999)]), [999]);
  t.same(await sizesOf([lines(1_000)]), [1_000]);
  t.same(await sizesOf([lines(2_001)]), [1_000, 1_000, 1]);
  t.same(await sizesOf([lines(8, 349_525)]), [3, 3, 2]);
  t.same(await sizesOf([lines(4, 349_526)]), [2, 2]);
  t.same(await sizesOf([[line('large', 99_000_000), line('small')]]), [1, 1], 'one is always taken');
  t.same(await sizesOf([]), []);
});

t.test('a line is not kept waiting for others', async (t) => {
  let end: () => void = () => undefined;
  const ended = new Promise<void>((resolve) => {
    end = resolve;
  });
  const source = (async function* () {
    yield lines(3);
    await ended;
    yield lines(2);
  })();
  const chunks = chunkLines(source, { clock: systemClock, signal: new AbortController().signal });
  t.equal((await chunks.next()).value?.length, 3, 'while the source is open and silent');
  end();
  t.equal((await chunks.next()).value?.length, 2);
  t.ok((await chunks.next()).done);
});

t.test('while nobody takes chunks, little more than one is read', async (t) => {
  const source = sourceOf(Array.from({ length: 1_000 }, () => lines(300)));
  const chunks = chunkLines(source, { clock: systemClock, signal: new AbortController().signal });
  await chunks.next();
  // Everything that can go on without the source's or the taker's help has gone on by then.
  await systemClock.sleep(20);
  t.ok(source.taken <= 9, `${source.taken} pieces`);
  await chunks.return(undefined);
});

t.test('what came before a failure is given first', async (t) => {
  const source = (async function* () {
    yield lines(3);
    throw new Error('cut');
  })();
  const chunks = chunkLines(source, { clock: systemClock, signal: new AbortController().signal });
  t.equal((await chunks.next()).value?.length, 3);
  await t.rejects(chunks.next(), { message: 'cut' });
});

t.test('once it is stopped its reason is thrown, and the rest of the source is read and dropped', async (t) => {
  const stop = new AbortController();
  const source = sourceOf(Array.from({ length: 50 }, () => lines(1_000)));
  const chunks = chunkLines(source, { clock: systemClock, signal: stop.signal });
  await chunks.next();
  stop.abort(new Error('stopped'));
  await t.rejects(chunks.next(), { message: 'stopped' });
  await eventually('the source is read to its end', () => source.taken === 50);
});
