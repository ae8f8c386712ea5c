/** Verdicts in order at the reader's pace, with little in memory. */
import t from 'tap';
import { VerdictQueue } from '../../src/application/verdict-queue.ts';
import type { ItemVerdict } from '../../src/domain/submission.ts';
import { systemClock } from '../../src/system/clock.ts';

function verdicts(from: number, count: number): ItemVerdict[] {
  return Array.from({ length: count }, (_, i) => ({
    index: from + i,
    key: null,
    keySource: null,
    verdict: 'rejected',
    jobId: null,
    jobState: null,
    faults: [],
  }));
}

function setup() {
  const reads: Array<readonly [number, number]> = [];
  const queue = new VerdictQueue({
    clock: systemClock,
    read: async (from, most) => {
      reads.push([from, most]);
      return verdicts(from, most);
    },
  });
  return { queue, reads };
}

async function indexes(queue: VerdictQueue): Promise<number[]> {
  const all: number[] = [];
  for await (const items of queue.take()) all.push(...items.map(({ index }) => index));
  return all;
}

t.test('a reader that keeps up is served from memory', async (t) => {
  const { queue, reads } = setup();
  const taking = queue.take();
  for (let from = 0; from < 20_000; from += 1_000) {
    queue.add(verdicts(from, 1_000));
    const { value } = await taking.next();
    t.equal(value?.[0]?.index, from);
  }
  queue.end();
  t.ok((await taking.next()).done);
  t.same(reads, []);
});

t.test('what there is no room for is read again, in its place', async (t) => {
  const { queue, reads } = setup();
  for (let from = 0; from < 9_500; from += 500) queue.add(verdicts(from, 500));
  queue.end();
  t.same(await indexes(queue), [...Array(9_500).keys()]);
  t.equal(reads[0]?.[0], 2_000, 'the first ones are in memory');
  t.ok(reads.every(([, most]) => most <= 1_000));
});

t.test('a gap is filled from the store, and what came after it is in memory', async (t) => {
  const { queue, reads } = setup();
  const taking = queue.take();
  for (let from = 0; from < 3_000; from += 1_000) queue.add(verdicts(from, 1_000));
  await taking.next();
  queue.add(verdicts(3_000, 1_000));
  queue.end();
  const rest: number[] = [];
  for await (const items of taking) rest.push(...items.map(({ index }) => index));
  t.same(
    rest,
    Array.from({ length: 3_000 }, (_, i) => 1_000 + i),
  );
  t.same(reads, [[2_000, 1_000]]);
});

t.test('a reader waits for what comes, and for the end', async (t) => {
  const { queue } = setup();
  const all = indexes(queue);
  queue.add([]);
  queue.add(verdicts(0, 2));
  queue.end();
  t.same(await all, [0, 1]);
});
