/** Who may add to a batch that grows, and what becomes of one that nobody goes on with. */
import { randomUUID } from 'node:crypto';
import t from 'tap';
import { appendToBatch } from '../../src/postgres/append-to-batch.ts';
import {
  beginStream,
  closeSilentStreams,
  closeStream,
  endStream,
  releaseStream,
  renewStream,
} from '../../src/postgres/batch-streams.ts';
import { readVerdicts } from '../../src/postgres/read-replay.ts';
import { newRetentionCursor, retainOnce } from '../../src/postgres/retention.ts';
import { type Intake, submissionOf, useIntake } from '../support/intake.ts';

const tenant = 'default';
const requestKey = { key: 'K', fingerprint: 'ab'.repeat(32) };
const hour = 3_600;

function begin({ database }: Intake, holder: string, holdSeconds = hour) {
  return beginStream(database, { tenant, correlationId: 'c', requestKey, holder, holdSeconds });
}

/** Adds items with these keys after the first `first` of the batch. */
function append({ database }: Intake, batchId: string, holder: string, first: number, keys: readonly string[]) {
  const { items } = submissionOf(keys.map((key) => ({ idempotency_key: key })));
  const lines = keys.map((key) => Buffer.from(key.padEnd(32, '.')).toString('hex'));
  return appendToBatch(database, {
    batchId,
    tenant,
    correlationId: 'c',
    definitionsVersion: null,
    holder,
    holdSeconds: hour,
    first,
    items,
    lines,
  });
}

t.test('of streams that begin under one key at the same time one has it', async (t) => {
  const intake = await useIntake(t);
  const begun = await Promise.all(Array.from({ length: 8 }, () => begin(intake, randomUUID())));
  t.same(begun.map(({ kind }) => kind).sort(), [...Array(7).fill('busy'), 'held']);
  t.equal(new Set(begun.map(({ batchId }) => batchId)).size, 1);
  t.equal(await intake.count('batches'), 1);
  const other = { ...requestKey, fingerprint: 'cd'.repeat(32) };
  const reused = await beginStream(intake.database, {
    tenant,
    correlationId: null,
    requestKey: other,
    holder: randomUUID(),
    holdSeconds: hour,
  });
  t.match(reused, { kind: 'reused', batchId: begun[0]!.batchId });
});

t.test('a hold dies with its holder: another takes over, and the first one can add nothing more', async (t) => {
  const intake = await useIntake(t);
  const { database } = intake;
  const [first, second] = [randomUUID(), randomUUID()];
  const { batchId } = await begin(intake, first);
  t.match(await append(intake, batchId, first, 0, ['a', 'b']), {
    kind: 'appended',
    items: [{ index: 0 }, { index: 1 }],
  });
  t.match(await begin(intake, second), { kind: 'busy', leftSeconds: Number });
  await database.query(`update sluice.batch_streams set held_until = clock_timestamp() - interval '1 second'`);
  t.ok(await renewStream(database, { batchId, holder: first, holdSeconds: 0 }), 'late, but nobody else has it');
  t.match(await begin(intake, second), { kind: 'held', batchId, stored: 2 });
  t.same(await append(intake, batchId, first, 2, ['c']), { kind: 'not_held' });
  t.notOk(await renewStream(database, { batchId, holder: first, holdSeconds: hour }));
  t.notOk(await endStream(database, batchId, first));
  await releaseStream(database, batchId, first);
  t.match(await begin(intake, randomUUID()), { kind: 'busy' }, 'not the first one’s to let go');
  t.equal(await intake.count('jobs'), 2);
  t.match(await append(intake, batchId, second, 2, ['c']), { kind: 'appended', items: [{ index: 2 }] });
  t.ok(await endStream(database, batchId, second));
  t.match(await begin(intake, randomUUID()), { kind: 'ended', stored: 3 });
});

t.test('a chunk goes right after what is stored, once', async (t) => {
  const intake = await useIntake(t);
  const holder = randomUUID();
  const { batchId } = await begin(intake, holder);
  t.match(await append(intake, batchId, holder, 0, ['a']), { kind: 'appended' });
  t.same(await append(intake, batchId, holder, 0, ['x']), { kind: 'not_held' }, 'it was stored meanwhile');
  t.same(await append(intake, batchId, holder, 2, ['x']), { kind: 'not_held' }, 'one is missing');
  t.match(await append(intake, batchId, holder, 1, ['a', 'b', 'b']), {
    items: [
      { index: 1, verdict: 'duplicate', jobState: 'ready' },
      { index: 2, verdict: 'accepted' },
      { index: 3, verdict: 'duplicate' },
    ],
  });
  const stored = await readVerdicts(intake.database, batchId, { from: 1, most: 2 });
  t.same(
    stored.map(({ index, verdict, line }) => [index, verdict, Buffer.from(line!, 'hex').toString()[0]]),
    [
      [1, 'duplicate', 'a'],
      [2, 'accepted', 'b'],
    ],
  );
});

t.test('jobs of a late chunk begin to wait when it came, not when the batch was made', async (t) => {
  const intake = await useIntake(t);
  const holder = randomUUID();
  const { batchId } = await begin(intake, holder);
  await intake.database.query(`update sluice.batches set created_at = created_at - interval '1 hour'`);
  await append(intake, batchId, holder, 0, ['a']);
  const [row] = await intake.database.query(
    `select j.created_at > b.created_at + interval '59 minutes' as job, r.eligible_at = j.created_at as ready
       from sluice.jobs j join sluice.batches b on b.id = j.batch_id join sluice.ready_jobs r on r.job_id = j.id`,
  );
  t.same(row, { job: true, ready: true });
});

t.test('a chunk for an upstream that is gone is not stored', async (t) => {
  const intake = await useIntake(t);
  const holder = randomUUID();
  const { batchId } = await begin(intake, holder);
  await intake.database.query(`delete from sluice.upstreams`);
  t.same(await append(intake, batchId, holder, 0, ['a']), { kind: 'definitions_changed' });
  t.equal(await intake.count('idempotency_keys'), 0);
});

t.test('streams that are silent for a day are ended by themselves', async (t) => {
  const intake = await useIntake(t);
  const { database } = intake;
  const holder = randomUUID();
  const { batchId } = await begin(intake, holder);
  await append(intake, batchId, holder, 0, ['a']);
  const silentSeconds = 86_400;
  const since = (age: string) =>
    database.query(`update sluice.batch_streams set held_until = clock_timestamp() - $1::interval`, [age]);
  await since('86399 seconds');
  t.equal(await closeSilentStreams(database, { silentSeconds, most: 10 }), 0);
  await since('86401 seconds');
  t.equal(await closeSilentStreams(database, { silentSeconds, most: 0 }), 0);
  t.equal(await closeSilentStreams(database, { silentSeconds, most: 10 }), 1);
  t.same(await append(intake, batchId, holder, 1, ['b']), { kind: 'not_held' });
  t.equal((await intake.get<{ status: string }>(`/v1/batches/${batchId}`)).body.status, 'processing');
});

t.test('retention leaves a batch alone for as long as it may grow', async (t) => {
  const intake = await useIntake(t);
  const { database } = intake;
  const holder = randomUUID();
  const { batchId } = await begin(intake, holder);
  await append(intake, batchId, holder, 0, ['a']);
  await database.query(
    `with gone as (delete from sluice.ready_jobs returning *)
     insert into sluice.done_jobs (job_id, state, ended_at)
     select job_id, 'succeeded', clock_timestamp() - interval '90 days' from gone`,
  );
  await database.query(`update sluice.batches set created_at = created_at - interval '90 days'`);
  const retain = async () => {
    const cursor = newRetentionCursor();
    const policy = { retentionDays: 30, keyRetentionDays: 7 };
    while (!(await retainOnce(database, policy, cursor, { most: 100 })).roundOver);
  };
  await retain();
  t.equal(await intake.count('batches'), 1);
  t.equal(await intake.count('idempotency_keys'), 1);
  await closeStream(database, batchId);
  await retain();
  t.equal(await intake.count('batches'), 0);
  t.equal(await intake.count('idempotency_keys'), 0);
  t.equal(await intake.count('batch_items'), 0);
});
