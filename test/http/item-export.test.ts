/** GET /v1/batches/{batch_id}/items with `Accept: application/x-ndjson`. */
import { get } from 'node:http';
import t, { type Test } from 'tap';
import type { Database } from '../../src/postgres/database.ts';
import { createTestApp } from '../support/app.ts';
import { waitFor } from '../support/client.ts';
import { defaults, type Intake, type Problem, useIntake } from '../support/intake.ts';
import { countStatements } from '../support/statement-counts.ts';

interface Exporting extends Intake {
  export(
    batchId: string,
    query?: string,
    accept?: string,
  ): Promise<{ type: unknown; lines: Record<string, unknown>[] }>;
}

async function useExporting(t: Test, options: Parameters<typeof useIntake>[1] = {}): Promise<Exporting> {
  const intake = await useIntake(t, options);
  return {
    ...intake,
    async export(batchId, query = '', accept = 'application/x-ndjson') {
      const answer = await intake.app.app.inject({
        url: `/v1/batches/${batchId}/items${query}`,
        headers: { accept },
      });
      t.equal(answer.statusCode, 200);
      const lines = answer.payload.split('\n').filter(Boolean);
      return { type: answer.headers['content-type'], lines: lines.map((line) => JSON.parse(line)) };
    },
  };
}

/** Items with long keys, straight into the table; gives the batch. */
async function fill({ post, database }: Intake, count: number): Promise<string> {
  const { batch_id } = (await post({ defaults, items: [{ idempotency_key: 'first' }] })).body;
  await database.query(
    `insert into sluice.stored_items (batch_id, index, idempotency_key, verdict, errors)
     select $1, n, rpad('k' || n, 250, 'x'), 'rejected', '[]' from generate_series(1, $2::int - 1) n`,
    [batch_id, count],
  );
  await database.query('update sluice.batches set total = $2::int, rejected = $2::int - 1 where id = $1', [
    batch_id,
    count,
  ]);
  return batch_id;
}

t.test('an export has every item once, in order, and each as a page has it', async (t) => {
  const { post, get, export: exportItems } = await useExporting(t);
  const items = Array.from({ length: 2_500 }, (_, i) =>
    i % 5 === 0 ? { idempotency_key: 'same' } : i % 7 === 0 ? { cost: 0 } : { idempotency_key: `k${i}` },
  );
  const { batch_id } = (await post({ defaults, items })).body;
  const { type, lines } = await exportItems(batch_id);
  t.equal(type, 'application/x-ndjson');
  const paged: unknown[] = [];
  for (let cursor = ''; paged.length < 2_500; ) {
    const page = (
      await get<{ items: unknown[]; next_cursor: string }>(`/v1/batches/${batch_id}/items?limit=1000${cursor}`)
    ).body;
    paged.push(...page.items);
    cursor = `&cursor=${page.next_cursor}`;
  }
  t.same(lines, paged);

  const duplicates = await exportItems(batch_id, '?verdict=duplicate');
  t.equal(duplicates.lines.length, 499);
  t.ok(duplicates.lines.every(({ verdict, idempotency_key: key }) => verdict === 'duplicate' && key === 'same'));
  t.same((await exportItems(batch_id, '?state=running')).lines, []);
  t.equal((await exportItems(batch_id, '?limit=10')).lines.length, 2_500, 'the size of a page does not matter');
});

t.test('who asks for JSON, or for anything, gets pages', async (t) => {
  const { app, post } = await useExporting(t);
  const { batch_id } = (await post({ defaults, items: [{ idempotency_key: 'k' }] })).body;
  const typeFor = async (accept: string | undefined) =>
    (await app.app.inject({ url: `/v1/batches/${batch_id}/items`, headers: accept === undefined ? {} : { accept } }))
      .headers['content-type'];
  for (const accept of [
    undefined,
    '*/*',
    'application/json',
    'application/json, application/x-ndjson;q=0.5',
    'application/x-ndjson;q=0',
    'text/html',
  ]) {
    t.match(await typeFor(accept), /^application\/json/, accept ?? 'none');
  }
  for (const accept of [
    'application/x-ndjson',
    'application/x-ndjson, */*;q=0.1',
    'Application/X-NDJSON; q=0.9, application/json;q=0.8',
  ]) {
    t.equal(await typeFor(accept), 'application/x-ndjson', accept);
  }
});

t.test('what is wrong is told before it begins; a HEAD has no body', async (t) => {
  const { app, post } = await useExporting(t);
  const { batch_id } = (await post({ defaults, items: [{ idempotency_key: 'k' }] })).body;
  const ask = (path: string, method: 'GET' | 'HEAD' = 'GET') =>
    app.app.inject({ method, url: `/v1/batches/${path}`, headers: { accept: 'application/x-ndjson' } });
  const unknown = await ask('01890000-0000-7000-8000-000000000000/items');
  t.match(unknown.headers['content-type'], /problem\+json/);
  t.match(unknown.json<Problem>(), { status: 404, code: 'not_found' });
  t.match((await ask(`${batch_id}/items?cursor=MA`)).json<Problem>(), {
    status: 400,
    errors: [{ pointer: '/query/cursor' }],
  });
  t.equal((await ask(`${batch_id}/items?verdict=maybe`)).statusCode, 400);
  const head = await ask(`${batch_id}/items`, 'HEAD');
  t.match(head, { statusCode: 200, payload: '' });
});

t.test('an export that cannot go on says so in its last line', async (t) => {
  const intake = await useExporting(t, { breaks: 'all' });
  const id = await fill(intake, 5_000);
  let pages = 0;
  const failing: Database = {
    ...intake.database,
    query: async (text, values, name, options) => {
      if (name === 'read-batch-items' && ++pages === 3) throw new Error('a fault in mid-stream');
      return intake.database.query(text, values, name, options);
    },
  };
  const { app, logText } = await createTestApp(t, failing);
  const answer = await app.inject({ url: `/v1/batches/${id}/items`, headers: { accept: 'application/x-ndjson' } });
  const lines = answer.payload
    .split('\n')
    .filter(Boolean)
    .map((line) => JSON.parse(line) as { index?: number; error?: Problem });
  t.equal(lines.length, 2_001);
  t.match(lines.at(-1), { error: { status: 500, code: 'internal_error', request_id: /./ } });
  t.notMatch(answer.payload, /mid-stream/);
  t.match(logText(), /a fault in mid-stream/);
});

t.test('a reader that does not read is waited for', async (t) => {
  const intake = await useExporting(t, { breaks: 'all' });
  const pages = 60;
  const id = await fill(intake, pages * 1_000);
  const counted = countStatements(intake.database);
  const { app } = await createTestApp(t, counted.database);
  const url = await app.listen({ host: '127.0.0.1', port: 0 });
  const client = get(`${url}/v1/batches/${id}/items`, { headers: { accept: 'application/x-ndjson' } });
  t.teardown(() => client.destroy());
  const response = await new Promise<import('node:http').IncomingMessage>((resolve, reject) => {
    client.on('response', resolve);
    client.on('error', reject);
  });
  // Other requests go on meanwhile: so much time has passed when the count stands still.
  let before = -1;
  const stood = await waitFor(
    async () => {
      for (let i = 0; i < 20; i += 1) await fetch(`${url}/v1/batches/${id}`);
      return counted.count('read-batch-items');
    },
    (n) => {
      const same = n === before;
      before = n;
      return same;
    },
    60_000,
  );
  t.ok(stood > 0 && stood < pages, `${stood} of ${pages} pages were read for a reader that reads nothing`);
  response.setEncoding('utf8');
  let lines = 0;
  for await (const piece of response) lines += String(piece).split('\n').length - 1;
  t.equal(lines, pages * 1_000);
});
