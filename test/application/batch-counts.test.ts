/** What readers of batches cost, and that none of them is shown what was before it asked. */
import t from 'tap';
import { BatchCounts } from '../../src/application/batch-counts.ts';
import { cancelBatch } from '../../src/application/cancel.ts';
import type { Database } from '../../src/postgres/database.ts';
import { systemClock as clock } from '../../src/system/clock.ts';
import { waitFor } from '../support/client.ts';
import { defaults, useIntake } from '../support/intake.ts';

const tenant = 'default';

/** Statements that read a batch's row, of which each count has one, wait behind a gate, once they have been counted. */
function gated(database: Database) {
  const held: (() => void)[] = [];
  let begun = 0;
  let open = false;
  const query: Database['query'] = async (text, values, name, options) => {
    if (name === 'read-batch') {
      begun += 1;
      if (!open) await new Promise<void>((resolve) => held.push(resolve));
    }
    return database.query(text, values, name, options);
  };
  return {
    database: { ...database, query },
    begun: async () => begun,
    next: () => held.shift()?.(),
    openAll() {
      open = true;
      for (const go of held.splice(0)) go();
    },
  };
}

t.test('all who ask while a batch is counted share the next count, and see what has happened since', async (t) => {
  const { post, database } = await useIntake(t);
  const { batch_id } = (await post({ defaults, items: [{ idempotency_key: 'a' }] })).body;
  const gate = gated(database);
  const counts = new BatchCounts({ database: gate.database, clock });
  const first = counts.read(tenant, batch_id);
  await waitFor(gate.begun, (n) => n === 1, 5_000);
  // The first count has begun, so whoever asks after this must not get it.
  await cancelBatch({ database }, tenant, batch_id);
  const later = Array.from({ length: 20 }, () => counts.read(tenant, batch_id));
  const stranger = counts.read('another', batch_id).catch((error: unknown) => error);
  gate.openAll();
  await first;
  for (const { status } of await Promise.all(later)) t.equal(status, 'cancelled');
  t.match(await stranger, { code: 'not_found' });
  t.equal(await gate.begun(), 3, 'one, one for the twenty, and one for the other tenant');
});

t.test('two batches are counted at once; who waits too long for a turn is told to come back', async (t) => {
  const { post, database } = await useIntake(t);
  const ids: string[] = [];
  for (const key of ['a', 'b', 'c', 'd']) {
    ids.push((await post({ defaults, items: [{ idempotency_key: key }] })).body.batch_id);
  }
  const gate = gated(database);
  const counts = new BatchCounts({ database: gate.database, clock });
  const two = [counts.read(tenant, ids[0]!), counts.read(tenant, ids[1]!)];
  await waitFor(gate.begun, (n) => n === 2, 5_000);
  const patient = counts.read(tenant, ids[3]!);
  await t.rejects(counts.read(tenant, ids[2]!, 10), { code: 'overloaded', retryAfterSeconds: 2 });
  t.equal(await gate.begun(), 2);
  gate.openAll();
  await Promise.all(two);
  t.match(await patient, { batchId: ids[3], status: 'processing' });
  t.equal(await gate.begun(), 3, 'the one that nobody waits for is not counted');
  t.match(await counts.read(tenant, ids[2]!), { batchId: ids[2] }, 'and can be asked for again');
});

t.test("a count that fails is nobody else's failure", async (t) => {
  const { post, database } = await useIntake(t);
  const { batch_id } = (await post({ defaults, items: [{ idempotency_key: 'a' }] })).body;
  let fail = true;
  const query: Database['query'] = (text, values, name, options) =>
    fail ? Promise.reject(new Error('broken')) : database.query(text, values, name, options);
  const counts = new BatchCounts({ database: { ...database, query }, clock });
  await t.rejects(counts.read(tenant, batch_id), { message: 'broken' });
  fail = false;
  t.match(await counts.read(tenant, batch_id), { batchId: batch_id });
});
