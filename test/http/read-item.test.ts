/** Items that are not shown to their schema are none that it would find fault with, or change. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import t from 'tap';
import { readItem } from '../../src/http/read-item.ts';
import { itemSchema } from '../../src/http/schemas/batches.ts';

const context = {
  queue: 'default',
  deriveKeys: true,
  defaults: { upstream: 'api', path: '/charges' },
  unsafeIn: () => [],
};

t.test('property: an item of a key and a body is taken exactly where the schema takes it', async () => {
  const key = fc.oneof(fc.string({ unit: 'grapheme' }), fc.jsonValue());
  const record = fc.record({ idempotency_key: key, body: fc.jsonValue() }, { requiredKeys: [] });
  fc.assert(
    fc.property(record, (given) => {
      const item = JSON.parse(JSON.stringify(given)) as object;
      const { success, data } = itemSchema.safeParse(item);
      const { job, faults } = readItem(item, 0, context);
      if (!success) {
        assert.equal(job, null);
        assert.equal(faults[0]!.code, 'invalid_key');
        return;
      }
      assert.deepEqual(data, item);
      assert.ok(faults.every(({ message }) => !message.startsWith('must be a')));
    }),
  );
});

t.test('what has any other member is shown to it', async (t) => {
  const codes = (item: object) => readItem(item, 0, context).faults.map(({ pointer, code }) => `${pointer} ${code}`);
  t.same(codes({ idempotency_key: 'k', body: 1, bodies: 1 }), ['/items/0/bodies unknown_field']);
  t.same(codes({ idempotency_key: 'k', body_text: 1 }), ['/items/0/body_text invalid']);
  t.same(codes({ body: {}, path: 1 }), ['/items/0/path invalid']);
  t.same(codes([]), ['/items/0 invalid']);
});
