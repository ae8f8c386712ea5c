import fc from 'fast-check';
import t from 'tap';
import {
  type EventPosition,
  eventId,
  isVisible,
  parseEventId,
  parseSnapshot,
  type Snapshot,
  startPosition,
} from '../../src/domain/event-position.ts';

const transaction = fc.integer({ min: 3, max: 1_000_000 });
const snapshot: fc.Arbitrary<Snapshot> = fc
  .tuple(transaction, fc.array(fc.integer({ min: 0, max: 50 }), { maxLength: 5 }))
  .map(([xmin, steps]) => {
    const open = [...new Set(steps.map((step) => xmin + step))].sort((a, b) => a - b);
    return { xmin, xmax: (open.at(-1) ?? xmin - 1) + 1, open };
  });
const position: fc.Arbitrary<EventPosition> = fc.oneof(
  fc.record({ from: snapshot, round: fc.constant(null), done: fc.boolean() }),
  fc.record({
    from: snapshot,
    round: fc.record({ to: snapshot, index: fc.nat({ max: 2_147_483_647 }) }),
    done: fc.constant(false),
  }),
);

t.test('an id is read back as the position it was made from', async (t) => {
  fc.assert(
    fc.property(position, (given) => {
      t.same(parseEventId(eventId(given)), given);
    }),
    { numRuns: 200 },
  );
  t.same(parseEventId(eventId(startPosition)), startPosition);
});

t.test('what is no id is not taken for one', async (t) => {
  for (const text of ['', '1', 'x', '1:1', '2:1:', '1:1:x', '1:1:~', '1:1:~1:1:', '1:1:~1:1:~', '1:1:~1:1:~-1']) {
    t.equal(parseEventId(text), null, text);
  }
  for (const text of [
    '1:1:~1:1:~3~done',
    '1:1:~2:2:~1~0',
    '1:1:~done~done',
    '99999999999999999:99999999999999999:',
    '1:1: ',
  ]) {
    t.equal(parseEventId(text), null, text);
  }
  t.ok(parseEventId('1:1:~1:1:~3'), 'and what is one, is');
});

t.test('a snapshot shows what had ended, and nothing that was open or had not begun', (t) => {
  const at = parseSnapshot('10:15:12,13');
  t.same(
    [9, 10, 11, 12, 13, 14, 15, 16].filter((number) => isVisible(at, number)),
    [9, 10, 11, 14],
  );
  t.throws(() => parseSnapshot('none'), RangeError);
  t.end();
});
