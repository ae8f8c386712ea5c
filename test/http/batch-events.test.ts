/** GET /v1/batches/{batch_id}/events. */
import pg from 'pg';
import t, { type Test } from 'tap';
import { BatchCounts } from '../../src/application/batch-counts.ts';
import { followBatch } from '../../src/application/batch-events.ts';
import { BatchWatches } from '../../src/application/batch-watches.ts';
import { DefinitionStore } from '../../src/application/definitions.ts';
import { retryJob } from '../../src/application/retry.ts';
import { parseEventId, startPosition } from '../../src/domain/event-position.ts';
import { claimJobs } from '../../src/postgres/claim-jobs.ts';
import { settleJobs } from '../../src/postgres/settle-jobs.ts';
import { systemClock } from '../../src/system/clock.ts';
import { createTestApp } from '../support/app.ts';
import { newWorker, settleRow } from '../support/claims.ts';
import { waitFor } from '../support/client.ts';
import { EventClient, keysOf } from '../support/event-client.ts';
import { defaults, type Intake, useIntake } from '../support/intake.ts';
import { countStatements } from '../support/statement-counts.ts';

interface Followed extends Intake {
  readonly url: string;
  /** Claims up to `count` jobs and settles them as succeeded. */
  finish(count: number): Promise<string[]>;
  follow(batchId: string, options?: ConstructorParameters<typeof EventClient>[2]): EventClient;
}

async function useFollowed(t: Test): Promise<Followed> {
  const intake = await useIntake(t);
  const url = await intake.app.app.listen({ host: '127.0.0.1', port: 0 });
  const workerId = await newWorker(intake.database);
  return {
    ...intake,
    url,
    async finish(count) {
      const { jobs } = await claimJobs(intake.database, workerId, count);
      await settleJobs(
        intake.database,
        workerId,
        jobs.map((job) => settleRow(job, { status: 200 })),
      );
      return jobs.map(({ idempotencyKey }) => idempotencyKey);
    },
    follow(batchId, options) {
      const client = new EventClient(url, batchId, options);
      t.teardown(() => client.cut());
      return client;
    },
  };
}

function items(count: number): object[] {
  return Array.from({ length: count }, (_, i) => ({ idempotency_key: `k${i}` }));
}

t.test('tells where it stands, each job that ends, and the end; then the stream ends', async (t) => {
  const { post, follow, finish } = await useFollowed(t);
  const { body } = await post({
    defaults,
    items: [...items(3), { idempotency_key: 'k0' }, { idempotency_key: 'bad', cost: 0 }],
  });
  await finish(1);
  const client = follow(body.batch_id);
  const head = await client.head;
  t.equal(head.statusCode, 200);
  t.match(head.headers['content-type'], /^text\/event-stream/);
  t.match(head.headers['cache-control'], /no-cache/);
  await client.until((events) => keysOf(events).length === 1);
  await finish(2);
  const events = await client.all();
  t.equal(client.retryMs, 2000);
  t.equal(events[0]!.event, 'progress');
  t.match(events[0]!.data, { batch_id: body.batch_id, status: 'processing', progress: 1 / 3, jobs: { succeeded: 1 } });
  t.same(keysOf(events), ['k0', 'k1', 'k2'], 'each job once, that of the duplicate too');
  t.same(events.find(({ event }) => event === 'job')!.data, {
    job_id: body.items[0]!.job_id,
    index: 0,
    idempotency_key: 'k0',
    state: 'succeeded',
    reason: null,
    response_status: 200,
  });
  t.equal(events.at(-1)!.event, 'done');
  t.match(events.at(-1)!.data, { status: 'completed', progress: 1, jobs: { succeeded: 3 } });
  t.ok(events.every(({ id }) => id !== ''));
});

t.test(
  'taken up again by the last id, at another replica: nothing is told twice and nothing is left out',
  async (t) => {
    const followed = await useFollowed(t);
    const { post, follow, finish, database } = followed;
    const replica = await createTestApp(t, database);
    const other = await replica.app.listen({ host: '127.0.0.1', port: 0 });
    const { batch_id } = (await post({ defaults, items: items(40) })).body;
    await finish(10);
    const told: unknown[] = [];
    let lastEventId = '';
    // Cut after each of the first ids, in the midst of what is told at once, and between.
    for (const [round, most] of [1, 3, 2, 5, 1].entries()) {
      const url = round % 2 === 0 ? followed.url : other;
      const client = new EventClient(url, batch_id, lastEventId === '' ? {} : { lastEventId });
      await client.until((events) => keysOf(events).length >= most);
      client.cut();
      const jobs = client.events.filter(({ event }) => event === 'job').slice(0, most);
      told.push(...keysOf(jobs));
      lastEventId = jobs.at(-1)!.id;
      await finish(5);
    }
    await finish(100);
    const rest = await follow(batch_id, { lastEventId }).all();
    told.push(...keysOf(rest));
    t.equal(rest.at(-1)!.event, 'done');
    t.equal(told.length, 40);
    t.same(new Set(told), new Set(items(40).map((item) => (item as { idempotency_key: string }).idempotency_key)));

    const after = await fetch(`${other}/v1/batches/${batch_id}/events`, {
      headers: { 'last-event-id': rest.at(-1)!.id },
    });
    t.equal(after.status, 204, 'after its end: nothing more is to be told, and an EventSource stops');
  },
);

t.test('a job that ends in a transaction that commits late is told, live and after a break', async (t) => {
  const { post, follow, finish, connectionString } = await useFollowed(t);
  const { batch_id, items: verdicts } = (await post({ defaults, items: items(4) })).body;
  const slow = new pg.Client({ connectionString });
  await slow.connect();
  t.teardown(() => slow.end());
  const end = async (place: number) => {
    await slow.query(
      `with gone as (delete from sluice.ready_jobs where job_id = $1 returning *)
       insert into sluice.done_jobs (job_id, state, status, ended_at) select job_id, 'succeeded', 200, clock_timestamp() from gone`,
      [verdicts[place]!.job_id],
    );
  };
  await slow.query('begin');
  await end(0);
  // It has begun to end before k1 and k2, and is not there when they are told.
  const live = follow(batch_id);
  await live.until((events) => events.length > 0);
  await finish(2);
  await live.until((events) => keysOf(events).length === 2);
  t.same(keysOf(live.events), ['k1', 'k2']);
  const lastEventId = live.events.at(-1)!.id;
  t.not(parseEventId(lastEventId)!.from.open.length + (parseEventId(lastEventId)!.round?.to.open.length ?? 0), 0);
  await slow.query('commit');
  await live.until((events) => keysOf(events).length === 3);
  t.same(keysOf(live.events), ['k1', 'k2', 'k0']);
  const again = follow(batch_id, { lastEventId });
  await again.until((events) => keysOf(events).length === 1);
  t.same(keysOf(again.events), ['k0'], 'and nothing of what was told before');
  await finish(1);
  t.same(keysOf(await live.all()), ['k1', 'k2', 'k0', 'k3']);
  t.same(keysOf(await again.all()), ['k0', 'k3']);
});

t.test('what is held is told, and its end as well; so is the end of what a person has retried', async (t) => {
  const { post, follow, finish, database } = await useFollowed(t);
  const { batch_id, items: verdicts } = (await post({ defaults, items: items(2) })).body;
  const client = follow(batch_id);
  await database.query(
    `with gone as (delete from sluice.ready_jobs where job_id = $1 returning *)
     insert into sluice.parked_jobs (job_id, lane_id, rank, seq, state, reason, cost)
     select job_id, lane_id, rank, seq, 'held', 'outcome_unknown', cost from gone`,
    [verdicts[0]!.job_id],
  );
  await client.until((events) => keysOf(events).length === 1);
  t.match(client.events.at(-1), {
    event: 'job',
    data: { state: 'held', reason: 'outcome_unknown', response_status: null },
  });
  await database.query(
    `with gone as (delete from sluice.parked_jobs returning *)
     insert into sluice.done_jobs (job_id, state, reason, status, ended_at)
     select job_id, 'failed', 'rejected_by_upstream', 422, clock_timestamp() from gone`,
  );
  await client.until((events) => keysOf(events).length === 2);
  t.match(client.events.filter(({ event }) => event === 'job').at(-1), {
    data: { state: 'failed', reason: 'rejected_by_upstream', response_status: 422 },
  });
  const deps = { database, definitions: new DefinitionStore(database) };
  await retryJob(deps, 'default', verdicts[0]!.job_id!, { freshKey: false });
  await finish(2);
  const events = await client.all();
  t.same(keysOf(events).sort(), ['k0', 'k0', 'k0', 'k1']);
  t.match(events.at(-1), { event: 'done', data: { status: 'completed', jobs: { succeeded: 2 } } });
});

t.test('an item that comes later, in a stream, of a job that ended before, is told', async (t) => {
  const { post, follow, finish, app, database } = await useFollowed(t);
  await post({ defaults, items: [{ idempotency_key: 'ended' }] });
  await finish(1);
  const lines = (keys: string[]) => keys.map((key) => `${JSON.stringify({ idempotency_key: key })}\n`).join('');
  const stream = (payload: string) =>
    app.app.inject({
      method: 'POST',
      url: '/v1/batches?upstream=api&path=/charges',
      headers: { 'content-type': 'application/x-ndjson', 'idempotency-key': 'stream' },
      payload,
    });
  const batchId = (await stream(lines(['one']))).headers['sluice-batch-id'] as string;
  // As if its stream had broken off: it can be resumed.
  await database.query(
    `insert into sluice.batch_streams (batch_id, holder, held_until) values ($1, gen_random_uuid(), clock_timestamp())`,
    [batchId],
  );
  const client = follow(batchId);
  await finish(1);
  await client.until((events) => keysOf(events).length === 1);
  t.same(keysOf(client.events), ['one']);
  await stream(lines(['one', 'ended']));
  const events = await client.all();
  t.same(keysOf(events), ['one', 'ended']);
  t.equal(events.at(-1)!.event, 'done');
});

t.test('is refused before it begins: unknown batches, ids that are none; a HEAD has no body', async (t) => {
  const { post, url, app } = await useFollowed(t);
  const { batch_id } = (await post({ defaults, items: items(1) })).body;
  for (const id of ['01890000-0000-7000-8000-000000000000', 'no-id']) {
    const answer = await fetch(`${url}/v1/batches/${id}/events`);
    t.equal(answer.status, 404);
    t.match(answer.headers.get('content-type'), /^application\/problem\+json/);
    t.match(await answer.json(), { code: 'not_found' });
  }
  const wrong = await fetch(`${url}/v1/batches/${batch_id}/events`, { headers: { 'last-event-id': '17' } });
  t.match(await wrong.json(), {
    status: 400,
    code: 'invalid_request',
    errors: [{ pointer: '/headers/last-event-id' }],
  });
  const query = await fetch(`${url}/v1/batches/${batch_id}/events?since=1`);
  t.match(await query.json(), { status: 400, code: 'invalid_request' });
  const head = await fetch(`${url}/v1/batches/${batch_id}/events`, { method: 'HEAD' });
  t.equal(head.status, 200);
  t.match(head.headers.get('content-type'), /^text\/event-stream/);
  t.equal(await head.text(), '');
  const ended = await app.app.inject({
    url: `/v1/batches/${batch_id}/items`,
    headers: { accept: 'text/event-stream' },
  });
  t.equal(ended.statusCode, 200);
});

t.test('says now and then that it is still there', async (t) => {
  const { post, database } = await useFollowed(t);
  const { batch_id: batchId } = (await post({ defaults, items: items(1) })).body;
  const deps = { database, clock: systemClock };
  const following = new BatchWatches(deps, new BatchCounts(deps)).follow({ tenant: 'default', batchId });
  const stop = new AbortController();
  let silent = 0;
  for await (const events of followBatch(
    { following, clock: systemClock },
    { position: startPosition, heartbeatMs: 20 },
    stop.signal,
  )) {
    if (events.length === 0) silent += 1;
    if (silent === 3) stop.abort();
  }
  following.end();
  t.equal(silent, 3);
});

t.test('a process that stops ends the stream, and the client takes it up elsewhere', async (t) => {
  const { post, finish, database, follow } = await useFollowed(t);
  const replica = await createTestApp(t, database);
  const url = await replica.app.listen({ host: '127.0.0.1', port: 0 });
  const { batch_id } = (await post({ defaults, items: items(3) })).body;
  await finish(1);
  const client = new EventClient(url, batch_id);
  await client.until((events) => keysOf(events).length === 1);
  await replica.app.close();
  const events = await client.all();
  t.not(events.at(-1)!.event, 'done');
  await finish(2);
  const rest = await follow(batch_id, { lastEventId: events.at(-1)!.id }).all();
  t.same([...keysOf(events), ...keysOf(rest)], ['k0', 'k1', 'k2']);
});

t.test('a reader that does not read is waited for, and one that has gone costs nothing any more', async (t) => {
  const intake = await useIntake(t, { breaks: 'all' });
  const counted = countStatements(intake.database);
  const { app } = await createTestApp(t, counted.database);
  const url = await app.listen({ host: '127.0.0.1', port: 0 });
  const count = 40_000;
  const { batch_id } = (await intake.post({ defaults, items: items(1) })).body;
  // Long keys, so that what is told does not fit into the buffers of a socket.
  await intake.database.query(
    `with made as (
       insert into sluice.stored_items (batch_id, index, idempotency_key, key_source, verdict, job_id)
       select $1, n, rpad('k' || n, 250, 'x'), 'given', 'accepted', gen_random_uuid() from generate_series(1, $2::int) n
       returning job_id),
     job as (
       insert into sluice.jobs (id, tenant, batch_id, lane_id, rank, seq, queue, upstream, idempotency_key, key_source, method, path)
       select m.job_id, 'default', $1, j.lane_id, 0, 1000, j.queue, j.upstream, 'x', 'given', 'POST', '/'
         from made m cross join (select * from sluice.jobs limit 1) j)
     insert into sluice.done_jobs (job_id, state, ended_at) select job_id, 'succeeded', clock_timestamp() from made`,
    [batch_id, count],
  );
  await intake.database.query('update sluice.batches set total = $2::int + 1, accepted = $2::int + 1 where id = $1', [
    batch_id,
    count,
  ]);
  const client = new EventClient(url, batch_id, { read: false });
  t.teardown(() => client.cut());
  await client.head;
  const pages = async () => counted.count('batch-events');
  // As far as buffers go, and then it stands still, though the watcher goes on.
  let before = -1;
  const stood = await waitFor(
    async () => {
      const looks = counted.count('find-moved');
      await waitFor(
        async () => counted.count('find-moved'),
        (n) => n >= looks + 4,
        20_000,
      );
      return pages();
    },
    (n) => {
      const same = n === before;
      before = n;
      return same;
    },
    60_000,
  );
  t.ok(stood > 0 && stood < 35, `${stood} pages of 41 were read for a reader that reads nothing`);
  void client.read().catch(() => undefined);
  await client.until((events) => keysOf(events).length > 0.9 * count);
  client.cut();
  // Time is told by another process's watcher.
  const other = countStatements(intake.database);
  const beside = new EventClient(
    await (await createTestApp(t, other.database)).app.listen({ host: '127.0.0.1', port: 0 }),
    batch_id,
    { read: false },
  );
  t.teardown(() => beside.cut());
  await waitFor(
    async () => {
      const [own, looks] = [counted.count(), other.count('find-moved')];
      await waitFor(
        async () => other.count('find-moved'),
        (n) => n >= looks + 4,
        20_000,
      );
      return counted.count() - own;
    },
    (n) => n === 0,
    20_000,
  );
  t.pass('the watcher has stopped');
});

t.test('outlives the loss of its connections to the database', async (t) => {
  const { post, follow, finish, connectionString } = await useFollowed(t);
  const { batch_id } = (await post({ defaults, items: items(3) })).body;
  const client = follow(batch_id);
  await client.until((events) => events.length > 0);
  const other = new pg.Client({ connectionString });
  await other.connect();
  t.teardown(() => other.end());
  for (let i = 0; i < 5; i += 1) {
    await other.query(
      'select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()',
    );
  }
  await waitFor(
    () => finish(3).catch((): string[] => []),
    (keys) => keys.length === 3,
    10_000,
  );
  const events = await client.all();
  t.same(keysOf(events), ['k0', 'k1', 'k2']);
  t.equal(events.at(-1)!.event, 'done');
});
