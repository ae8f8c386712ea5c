/** POST /v1/batches?dry_run=true: what a submission would be told, and nothing of it stored. */
import t, { type Test } from 'tap';
import { claimJobs } from '../../src/postgres/claim-jobs.ts';
import { settleJobs } from '../../src/postgres/settle-jobs.ts';
import { newWorker, settleRow } from '../support/claims.ts';
import type { BatchAnswer } from '../support/client.ts';
import { type Answer, defaults, type Intake, type Problem, useIntake } from '../support/intake.ts';

interface DryRun extends BatchAnswer {
  readonly dry_run: true;
  readonly created_at: string;
  readonly eta: { readonly at: string; readonly limited_by: string | null } | null;
}

interface Dry extends Intake {
  dryRun<T = DryRun>(body: unknown, headers?: Record<string, string>, query?: string): Promise<Answer<T>>;
  /** Everything that is stored, as one text. */
  stored(): Promise<string>;
}

async function useDry(t: Test): Promise<Dry> {
  const intake = await useIntake(t);
  return {
    ...intake,
    async dryRun<T>(body: unknown, headers: Record<string, string> = {}, query = '?dry_run=true') {
      const answer = await intake.app.app.inject({
        method: 'POST',
        url: `/v1/batches${query}`,
        headers: { 'content-type': 'application/json', ...headers },
        payload: typeof body === 'string' ? body : JSON.stringify(body),
      });
      return { status: answer.statusCode, headers: answer.headers, body: answer.json<T>() };
    },
    async stored() {
      const tables = await intake.database.query<{ name: string }>(
        `select tablename as name from pg_tables where schemaname = 'sluice' order by 1`,
      );
      const texts = [];
      for (const { name } of tables) {
        const rows = await intake.database.query<{ row: string }>(
          `select x::text as row from sluice.${name} x order by 1`,
        );
        texts.push(`${name}: ${rows.map(({ row }) => row).join('; ')}`);
      }
      const [sequence] = await intake.database.query('select last_value, is_called from sluice.job_seq');
      return `${texts.join('\n')}\n${JSON.stringify(sequence)}`;
    },
  };
}

t.test('gives the verdicts that a submission gets, and stores nothing', async (t) => {
  const { post, dryRun, stored, database, putQueue } = await useDry(t);
  await putQueue('other', {});
  await post({ defaults, items: [{ idempotency_key: 'known' }, { idempotency_key: 'failed' }] });
  const workerId = await newWorker(database);
  const { jobs } = await claimJobs(database, workerId, 2);
  const failed = jobs.find(({ idempotencyKey }) => idempotencyKey === 'failed')!;
  await settleJobs(database, workerId, [
    settleRow(failed, {
      next: { kind: 'done', state: 'failed', reason: 'rejected_by_upstream', evidence: 'response' },
    }),
  ]);
  const body = {
    defaults,
    correlation_id: 'c',
    items: [
      { idempotency_key: 'new' },
      { idempotency_key: 'new' },
      { idempotency_key: 'new', body: 'another' },
      { idempotency_key: 'known' },
      { idempotency_key: 'known', body: 'another' },
      { idempotency_key: 'failed' },
      { idempotency_key: 'later', run_at: '2099-01-01T00:00:00Z' },
      // A lane that is not there.
      { idempotency_key: 'elsewhere', queue: 'other', partition_key: 'p' },
      { idempotency_key: 'lost', queue: 'nowhere' },
      { idempotency_key: 'bad', cost: 0 },
      {},
    ],
  };
  const before = await stored();
  const dry = await dryRun(body, { 'idempotency-key': 'request-1' });
  t.equal(dry.status, 200);
  t.equal(dry.headers.location, undefined);
  t.equal(await stored(), before, 'no key, no lane, no batch, no request key: nothing');

  const real = await post(body, { 'idempotency-key': 'request-1' });
  t.equal(real.status, 202);
  t.equal(real.body.replayed, false);
  const { items, dry_run, batch_id, eta, created_at, ...others } = dry.body;
  t.equal(dry_run, true);
  t.equal(batch_id, null);
  t.match(created_at, /Z$/);
  t.equal(eta, null, 'what is due in 2099 under no limit: nobody knows');
  t.match(real.body, others, 'status, counts, correlation');
  const made = new Set(real.body.items.filter(({ verdict }) => verdict === 'accepted').map(({ job_id }) => job_id));
  t.same(
    items,
    real.body.items.map((item) => (made.has(item.job_id ?? null) ? { ...item, job_id: null } : item)),
    'the same verdicts, but that jobs which the batch would make have no id',
  );
  t.match(items[5], { verdict: 'duplicate', job_state: 'failed', needs_retry: true });

  const again = await dryRun(body, { 'idempotency-key': 'request-1' });
  t.equal(again.body.replayed, false, 'a dry run of what was submitted is no replay');
  t.same(again.body.counts, { total: 11, accepted: 0, duplicate: 6, conflict: 2, rejected: 3 });
});

t.test('refuses what a submission would be refused', async (t) => {
  const { dryRun, post } = await useDry(t);
  const submission = { defaults, items: [{ idempotency_key: 'a' }] };
  await post(submission, { 'idempotency-key': 'taken' });
  const other = await dryRun<Problem>({ defaults, items: [{ idempotency_key: 'b' }] }, { 'idempotency-key': 'taken' });
  t.match(other, { status: 422, body: { code: 'idempotency_key_reused' } });
  t.match(await dryRun<Problem>({ defaults, items: [] }), { status: 422, body: { code: 'empty_batch' } });
  t.match(await dryRun<Problem>('{'), { status: 400, body: { code: 'malformed_json' } });
  t.match(await dryRun<Problem>(submission, {}, '?dry_run=1'), {
    status: 400,
    body: { code: 'invalid_request', errors: [{ pointer: '/query/dry_run' }] },
  });
  const stream = await dryRun<Problem>('{"idempotency_key":"s"}\n', { 'content-type': 'application/x-ndjson' });
  t.match(stream, { status: 400, body: { code: 'invalid_request', errors: [{ pointer: '/query/dry_run' }] } });
  t.equal((await dryRun(submission, {}, '?dry_run=false')).status, 202, 'false: it is a submission');
});

t.test('tells when the batch would be done, behind what is there', async (t) => {
  const { dryRun, post, putLimit, database, stored } = await useDry(t);
  await putLimit('narrow', { limit: 10, per: 1, upstreams: ['api'] });
  const items = (prefix: string, count: number) =>
    Array.from({ length: count }, (_, i) => ({ idempotency_key: `${prefix}-${i}` }));
  const batch = { defaults, items: items('dry', 100) };
  t.equal((await dryRun(batch)).body.eta, null, 'no worker: nobody can say');
  await newWorker(database);
  const seconds = async (body: object) => {
    const { eta, created_at } = (await dryRun(body)).body;
    t.equal(eta?.limited_by, 'narrow');
    return (Date.parse(eta!.at) - Date.parse(created_at)) / 1000;
  };
  const alone = await seconds(batch);
  t.ok(alone > 9 && alone < 11, `${alone} s`);
  await post({ defaults, items: items('before', 200) });
  const before = await stored();
  const behind = await seconds(batch);
  t.ok(behind > 28 && behind < 33, `${behind} s`);
  t.ok((await seconds({ defaults, items: items('before', 200) })) > 18, 'of duplicates that are not done');
  t.equal(await stored(), before);
});
