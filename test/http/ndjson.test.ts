/** POST /v1/batches as a stream, over real sockets: verdicts as it goes, any pace, cuts and resumption. */
import t from 'tap';
import { cancelBatch } from '../../src/application/cancel.ts';
import type { FaultPoints } from '../../src/system/fault-points.ts';
import type { BatchStatus, VerdictItem } from '../support/client.ts';
import { eventually } from '../support/eventually.ts';
import { codesOf, defaults, type Intake, type Problem, useIntake } from '../support/intake.ts';
import { linesOf, listen, type StreamAnswer, sendStream } from '../support/stream-client.ts';

const verdictsOf = ({ verdicts }: StreamAnswer) => verdicts.map(({ verdict }) => verdict);
const indexesOf = ({ verdicts }: StreamAnswer) => verdicts.map(({ index }) => index);
const upTo = (count: number) => [...Array(count).keys()];

async function itemsOf({ get }: Intake, batchId: string): Promise<VerdictItem[]> {
  const items: VerdictItem[] = [];
  let cursor: string | null = '';
  while (cursor !== null) {
    const from: string = cursor === '' ? '' : `&cursor=${cursor}`;
    const path = `/v1/batches/${batchId}/items?limit=1000${from}`;
    const { body } = await get<{ items: VerdictItem[]; next_cursor: string | null }>(path);
    items.push(...body.items);
    cursor = body.next_cursor;
  }
  return items;
}

async function statusOf({ get }: Intake, batchId: string): Promise<BatchStatus> {
  return (await get<BatchStatus>(`/v1/batches/${batchId}`)).body;
}

t.test('every line gets its verdict in order, whatever is wrong with it, and the stream goes on', async (t) => {
  const intake = await useIntake(t);
  const stream = await listen(t, intake);
  const long = `{"idempotency_key":"long","body":"${'x'.repeat(1_048_576)}"}`;
  const data = Buffer.concat([
    Buffer.from('{"idempotency_key":"K1","body":{"a":1,"b":2}}\r\n\r\n  \n'),
    Buffer.from('{"idempotency_key":"K1","body":{"b":2,"a":1}}\n{"idempotency_key":"K1","body":3}\n'),
    Buffer.from('{"idempotency_key":"K2",\n'),
    Buffer.from('{"idempotency_key":"K\xff"}\n', 'latin1'),
    Buffer.from(`${long}\n`),
    Buffer.from('{"idempotency_key":"K3","method":"TEAPOT"}\n[1]\n{"idempotency_key":"K4","__proto__":{}}\n'),
    Buffer.from('{"idempotency_key":"K5","body":{"id":9007199254740993}}\n'),
    Buffer.from('{"idempotency_key":"K6","upstream":"nowhere"}\n'),
    Buffer.from(`{"idempotency_key":"K8","${'x'.repeat(1_000)}":1}\n`),
    Buffer.from('{"idempotency_key":"K7","path":"/other","cost":2}'),
  ]);
  const answer = await sendStream(stream({ query: '?upstream=api&path=/charges&correlation_id=c&priority=3' }), data);
  t.equal(answer.status, 202);
  t.equal(answer.headers['content-type'], 'application/x-ndjson');
  const id = String(answer.headers['sluice-batch-id']);
  t.equal(answer.headers.location, `/v1/batches/${id}`);
  t.same(indexesOf(answer), upTo(13));
  t.same(
    answer.verdicts.map((item) => [item.idempotency_key, item.verdict, ...codesOf(item)]),
    [
      ['K1', 'accepted'],
      ['K1', 'duplicate'],
      ['K1', 'conflict', 'idempotency_key_reused'],
      [null, 'rejected', 'malformed_json'],
      [null, 'rejected', 'malformed_json'],
      [null, 'rejected', 'line_too_long'],
      ['K3', 'rejected', 'invalid'],
      [null, 'rejected', 'invalid'],
      [null, 'rejected', 'forbidden_member'],
      ['K5', 'rejected', 'unsafe_number'],
      ['K6', 'rejected', 'unknown_upstream'],
      ['K8', 'rejected', 'unknown_field'],
      ['K7', 'accepted'],
    ],
  );
  t.equal(answer.verdicts[6]?.errors?.[0]?.pointer, '/items/6/method');
  t.equal(answer.verdicts[9]?.errors?.[0]?.pointer, '/items/9/body/id');
  t.equal(answer.verdicts[11]?.errors?.[0]?.pointer, '/items/11', 'without a name that is longer than any of ours');
  t.match(answer.summary, {
    batch_id: id,
    status: 'processing',
    correlation_id: 'c',
    counts: { total: 13, accepted: 2, duplicate: 1, conflict: 1, rejected: 9 },
    jobs: { ready: 2 },
  });
  t.same(answer.summary, await statusOf(intake, id), 'what GET gives');
  const items = await itemsOf(intake, id);
  t.same(
    items.map(({ index, verdict, job_id = null, errors }) => ({ index, verdict, job_id, errors })),
    answer.verdicts.map(({ index, verdict, job_id = null, errors = [] }) => ({ index, verdict, job_id, errors })),
  );
  const { body: job } = await intake.get(`/v1/jobs/${answer.verdicts[12]?.job_id}`);
  t.match(job, { path: '/other', cost: 2, priority: 3, correlation_id: 'c', upstream: 'api' });
});

t.test('the head comes at once, and verdicts while the request is under way', async (t) => {
  const intake = await useIntake(t);
  const client = (await listen(t, intake))();
  const { statusCode, headers } = await client.head;
  t.equal(statusCode, 202, 'before any line is sent');
  const id = String(headers['sluice-batch-id']);
  t.match(await statusOf(intake, id), { status: 'incomplete', completed_at: null, counts: { total: 0 } });
  const lines = client.lines();
  for (const at of [0, 1, 2]) {
    await client.write(linesOf('k', 1, at));
    t.match((await lines.next()).value, { index: at, verdict: 'accepted' });
    t.match(await statusOf(intake, id), { status: 'incomplete', counts: { total: at + 1, accepted: at + 1 } });
  }
  client.end();
  t.match((await lines.next()).value, { summary: { status: 'processing', counts: { total: 3 } } });
  t.ok((await lines.next()).done);
});

t.test('a client that reads only after it has sent everything gets it all, with one connection', async (t) => {
  const intake = await useIntake(t, { max: 1 });
  const client = (await listen(t, intake))();
  // Each verdict is more than 500 bytes, in all more than sockets and memory take in.
  const wrong = { method: 1, priority: 'x', cost: 0, run_at: 1, max_attempts: 0, payload_version: 1 };
  const count = 15_000;
  for (let at = 0; at < count; at += 500) {
    const lines = Array.from({ length: 500 }, (_, i) => JSON.stringify({ idempotency_key: `k-${at + i}`, ...wrong }));
    await client.write(`${lines.join('\n')}\n`);
  }
  client.end();
  const id = String((await client.head).headers['sluice-batch-id']);
  await eventually('all is stored, with nothing read', async () => {
    const { status, counts } = await statusOf(intake, id);
    return status === 'completed' && counts.total === count;
  });
  const answer = await client.answer();
  t.same(indexesOf(answer), upTo(count));
  t.ok(answer.verdicts.every(({ errors }) => (errors?.length ?? 0) > 0));
  t.match(answer.summary, { counts: { total: count, rejected: count } });
});

t.test('cut at any line and sent again: the same batch, nothing doubled', async (t) => {
  const intake = await useIntake(t);
  const stream = await listen(t, intake);
  const count = 3_000;
  const all = linesOf('k', count);
  let id: string | undefined;
  let before = 0;
  for (const cutAt of [1 + Math.floor(Math.random() * 1_200), 1_300 + Math.floor(Math.random() * 1_200)]) {
    const client = stream({ key: 'K' });
    const end = all.split('\n', cutAt).join('\n').length;
    // The last line is cut in its middle.
    await client.write(all.slice(0, end + 9));
    const lines = client.lines();
    for (let n = 0; n < Math.min(cutAt, before + 10); n += 1) await lines.next();
    client.cut();
    id ??= String((await client.head).headers['sluice-batch-id']);
    t.equal(String((await client.head).headers['sluice-batch-id']), id);
    await lines.return(undefined).catch(() => undefined);
    const { total } = await eventually('the service has noticed', async () => {
      const [held] = await intake.database.query<{ held: boolean }>(
        'select held_until > clock_timestamp() as held from sluice.batch_streams',
      );
      return held?.held === false && (await statusOf(intake, id!)).counts;
    });
    t.ok(total >= before && total <= cutAt, `cut at ${cutAt}, has ${total}`);
    t.match(await statusOf(intake, id), {
      status: 'incomplete',
      counts: { total, accepted: total },
      jobs: { ready: total },
    });
    t.same(
      (await itemsOf(intake, id)).map(({ index }) => index),
      upTo(total),
    );
    before = total;
  }
  const bad = intake.app.logLines().filter(({ level }) => (level as number) >= 50);
  t.same(bad, [], 'a cut is no error of the service');

  const stored = await itemsOf(intake, id!);
  const answer = await sendStream(stream({ key: '"K"' }), all);
  t.equal(answer.headers['sluice-batch-id'], id);
  t.same(indexesOf(answer), upTo(count));
  t.ok(verdictsOf(answer).every((verdict) => verdict === 'accepted'));
  t.same(
    answer.verdicts.map(({ replayed }) => replayed ?? false),
    upTo(count).map((index) => index < before),
  );
  t.same(
    answer.verdicts.slice(0, before).map(({ job_id }) => job_id),
    stored.map(({ job_id }) => job_id),
    'first verdicts',
  );
  t.match(answer.summary, { batch_id: id, status: 'processing', counts: { total: count, accepted: count } });
  t.equal(await intake.count('jobs'), count);
  t.equal(await intake.count('batch_streams'), 0);

  const again = await sendStream(stream({ key: 'K' }), all.trimEnd());
  t.same(indexesOf(again), upTo(count));
  t.ok(again.verdicts.every(({ replayed }) => replayed === true));
  t.same(again.summary, answer.summary);
});

t.test('what is sent again must be what is stored', async (t) => {
  const intake = await useIntake(t);
  const stream = await listen(t, intake);
  const first = await sendStream(stream({ key: 'K' }), `${linesOf('k', 3)}no json\n`);
  t.match(first.summary, { counts: { total: 4, rejected: 1 } });

  const lines = linesOf('k', 3).split('\n');
  const spelled = [lines[0], '{"body": {"number": 1}, "idempotency_key": "k-1"}', lines[2], 'no json'].join('\r\n');
  t.equal((await sendStream(stream({ key: 'K' }), spelled)).error, undefined, 'spelling does not matter');

  for (const [what, data, verdicts] of [
    ['another line', `${lines[0]}\n${lines[2]}\n`, 1],
    ['another priority, of the same call', `${lines[0]}\n${lines[1]!.replace('{', '{"priority":1,')}\n`, 1],
    ['what is no JSON, in another way', `${linesOf('k', 3)}no  json\n`, 3],
    ['fewer lines', linesOf('k', 2), 2],
    ['more lines', `${linesOf('k', 3)}no json\n${linesOf('more', 1)}`, 4],
  ] as const) {
    const answer = await sendStream(stream({ key: 'K' }), data);
    t.match(answer.error, { code: 'resume_mismatch', status: 422 }, what);
    t.equal(answer.verdicts.length, verdicts, what);
    t.equal(answer.summary, undefined, what);
  }
  t.equal(await intake.count('stored_items'), 4);

  const other = await sendStream(stream({ key: 'K', query: '?upstream=api&path=/refunds' }), linesOf('k', 3));
  t.match(other, { status: 422, error: { code: 'idempotency_key_reused' } });
  const json = await intake.post<Problem>({ defaults, items: [{ idempotency_key: 'j' }] }, { 'idempotency-key': 'K' });
  t.match(json, { status: 422, body: { code: 'idempotency_key_reused' } });
  await intake.post({ defaults, items: [{ idempotency_key: 'j' }] }, { 'idempotency-key': 'J' });
  const streamed = await sendStream(stream({ key: 'J' }), '{"idempotency_key":"j"}\n');
  t.match(streamed, { status: 422, error: { code: 'idempotency_key_reused' } });
});

t.test('a mismatch before the end leaves an incomplete batch that can be resumed', async (t) => {
  const intake = await useIntake(t);
  const stream = await listen(t, intake);
  const broken = stream({ key: 'K' });
  await broken.write(linesOf('k', 5));
  const lines = broken.lines();
  for (let n = 0; n < 5; n += 1) await lines.next();
  broken.cut();
  await lines.return(undefined).catch(() => undefined);
  // Far more than sockets take in: the rest must be read for the client to get to the answer.
  for (const connection of ['keep-alive', 'close']) {
    const client = stream({ key: 'K', headers: { connection } });
    const wrong = await sendStream(client, linesOf('k', 4) + linesOf('other', 100_000));
    t.match(wrong.error, { code: 'resume_mismatch' });
    t.equal(wrong.verdicts.length, 4);
  }
  const right = await sendStream(stream({ key: 'K' }), linesOf('k', 7));
  t.match(right.summary, { status: 'processing', counts: { total: 7, accepted: 7 } });
});

t.test('one stream of a key at a time', async (t) => {
  const intake = await useIntake(t, { max: 1 });
  const stream = await listen(t, intake);
  const first = stream({ key: 'K' });
  const lines = first.lines();
  await first.write(linesOf('k', 1));
  await lines.next();
  const second = await sendStream(stream({ key: 'K' }), linesOf('k', 1));
  t.match(second, { status: 409, error: { code: 'stream_in_progress' } });
  t.match(second.headers['retry-after'], /^\d+$/);
  t.equal((await sendStream(stream({ key: 'L' }), linesOf('l', 1))).status, 202, 'another key is another batch');
  await first.write(linesOf('k', 1, 1));
  t.match((await lines.next()).value, { index: 1, verdict: 'accepted' }, 'the first one goes on');
  first.end();
  t.match((await lines.next()).value, { summary: { counts: { total: 2 } } });
});

t.test('an incomplete batch can be closed, also under a stream', async (t) => {
  const intake = await useIntake(t);
  const stream = await listen(t, intake);
  const client = stream({ key: 'K' });
  const lines = client.lines();
  await client.write(linesOf('k', 2));
  await lines.next();
  await lines.next();
  const id = String((await client.head).headers['sluice-batch-id']);
  const close = () => intake.app.app.inject({ method: 'POST', url: `/v1/batches/${id}/close` });
  const closed = await close();
  t.equal(closed.statusCode, 200);
  t.match(closed.json(), { status: 'processing', counts: { total: 2 } });
  t.same((await close()).json(), closed.json(), 'again: as it is');
  await client.write(linesOf('k', 1, 2));
  t.match((await lines.next()).value, { error: { code: 'conflict', status: 409 } });
  t.ok((await lines.next()).done);
  client.cut();

  t.match((await sendStream(stream({ key: 'K' }), linesOf('k', 2))).summary, { counts: { total: 2 } });
  const more = await sendStream(stream({ key: 'K' }), linesOf('k', 3));
  t.match(more, { error: { code: 'resume_mismatch' }, verdicts: [{ replayed: true }, { replayed: true }] });
  const unknown = await intake.app.app.inject({ method: 'POST', url: '/v1/batches/nothing/close' });
  t.equal(unknown.statusCode, 404);
});

t.test('a batch that is cancelled takes no more lines', async (t) => {
  const intake = await useIntake(t);
  const client = (await listen(t, intake))({ key: 'K' });
  const lines = client.lines();
  await client.write(linesOf('k', 2));
  await lines.next();
  await lines.next();
  const id = String((await client.head).headers['sluice-batch-id']);
  await cancelBatch({ database: intake.database }, 'default', id);
  t.match(await statusOf(intake, id), { status: 'cancelled' });
  await client.write(linesOf('k', 1, 2));
  t.match((await lines.next()).value, { error: { code: 'conflict', state: 'cancelled' } });
  t.match(await statusOf(intake, id), { status: 'cancelled', counts: { total: 2 }, jobs: { cancelled: 2 } });
});

t.test('what PostgreSQL refuses in mid-stream ends it with a problem, and it can be resumed', async (t) => {
  let broken = false;
  const faultPoints: FaultPoints = {
    async pass(point) {
      if (broken && point === 'intake.before_commit')
        throw Object.assign(new Error('shutting down'), { code: '57P01' });
    },
  };
  const intake = await useIntake(t, { faultPoints });
  const stream = await listen(t, intake);
  const client = stream({ key: 'K' });
  const lines = client.lines();
  await client.write(linesOf('k', 1));
  t.match((await lines.next()).value, { index: 0 });
  broken = true;
  await client.write(linesOf('k', 1, 1));
  // Told although the client is silent now.
  t.match((await lines.next()).value, { error: { code: 'database_unavailable', status: 503, request_id: String } });
  t.ok((await lines.next()).done);
  broken = false;
  client.cut();
  await intake.database.query(`update sluice.batch_streams set held_until = clock_timestamp()`);
  const answer = await sendStream(stream({ key: 'K' }), linesOf('k', 3));
  t.match(answer, { summary: { counts: { total: 3, accepted: 3 } }, verdicts: [{ replayed: true }] });
  t.equal(answer.verdicts[1]?.replayed, undefined);
});

t.test('a process that shuts down says so, and lets go of the batch', async (t) => {
  const intake = await useIntake(t);
  const client = (await listen(t, intake))({ key: 'K' });
  const lines = client.lines();
  await client.write(linesOf('k', 1));
  await lines.next();
  const closed = intake.app.app.close();
  t.match((await lines.next()).value, { error: { code: 'shutting_down', status: 503 } });
  t.ok((await lines.next()).done);
  client.cut();
  await closed;
  const [row] = await intake.database.query('select held_until <= clock_timestamp() as free from sluice.batch_streams');
  t.same(row, { free: true });
});

t.test('a stream without lines is a batch without items', async (t) => {
  const intake = await useIntake(t);
  const stream = await listen(t, intake);
  for (const data of ['', '\n \r\n']) {
    t.match(await sendStream(stream(), data), { status: 202, summary: { status: 'completed', counts: { total: 0 } } });
  }
  const empty = await intake.app.app.inject({
    method: 'POST',
    url: '/v1/batches',
    headers: { 'content-type': 'application/x-ndjson' },
  });
  t.match(JSON.parse(empty.payload), { summary: { status: 'completed' } });
});

t.test('parameters are checked before anything is taken, and are for streams only', async (t) => {
  const intake = await useIntake(t);
  const stream = await listen(t, intake);
  for (const [query, name] of [
    ['?upstream=Not+A+Name', 'upstream'],
    ['?priority=1e3', 'priority'],
    ['?run_at=tomorrow', 'run_at'],
    ['?derive_keys=yes', 'derive_keys'],
    ['?cost=', 'cost'],
    ['?correlation_id=', 'correlation_id'],
    ['?headers=x', 'headers'],
  ] as const) {
    const answer = await sendStream(stream({ query }), linesOf('k', 1));
    t.match(answer, { status: 400, error: { code: 'invalid_request' } }, query);
    t.match(JSON.stringify(answer.error), name);
  }
  const badKey = await sendStream(stream({ key: '' }), linesOf('k', 1));
  t.match(badKey, { status: 400, error: { code: 'invalid_request' } });
  const json = await intake.app.app.inject({
    method: 'POST',
    url: '/v1/batches?queue=default',
    headers: { 'content-type': 'application/json' },
    payload: { defaults, items: [{ idempotency_key: 'k' }] },
  });
  t.match(json.json(), { code: 'invalid_request', errors: [{ pointer: '/query/queue' }] });
  t.equal(await intake.count('batches'), 0);

  const derived = await sendStream(stream({ query: '?upstream=api&path=/charges&derive_keys=true' }), '{"body":1}\n');
  t.match(derived.verdicts[0], {
    verdict: 'accepted',
    key_source: 'derived',
    idempotency_key: /^sluice-[0-9a-f]{64}$/,
  });
});
