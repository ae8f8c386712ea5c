/** What a person decides, from the request to the call at the upstream: retries with the same key and a fresh one, redrives, cancels. */
import t, { type Test } from 'tap';
import { eventually } from '../support/eventually.ts';
import { type Intake, useIntake } from '../support/intake.ts';
import { type Upstream, type UpstreamOptions, useUpstream } from '../support/upstream.ts';
import { startWorker } from '../support/worker.ts';

// biome-ignore lint/suspicious/noExplicitAny: JSON of any shape, compared by the tests.
type Json = any;

interface Setup extends Intake {
  readonly upstream: Upstream;
  /** Answer to a POST, which must be a 200. */
  act(path: string, body?: object): Promise<Json>;
  /** The job, once it is in this state. */
  jobIn(state: string, id: string): Promise<Json>;
  /** Keys of the calls so far, in their order. */
  keys(): Array<string | null>;
}

async function setup(t: Test, options: UpstreamOptions, definition: object = {}): Promise<Setup> {
  const upstream = await useUpstream(t, options);
  const intake = await useIntake(t);
  const retry = { max_attempts: 2, base_ms: 10, cap_ms: 20 };
  await intake.putUpstream('api', { base_url: upstream.url, allow_private_addresses: true, retry, ...definition });
  const worker = await startWorker(t, { connectionString: intake.connectionString, concurrency: 1 });
  return {
    ...intake,
    upstream,
    async act(path, body = {}) {
      const answer = await intake.app.app.inject({ method: 'POST', url: path, payload: body });
      if (answer.statusCode !== 200) throw new Error(`answered ${answer.statusCode}: ${answer.body}`);
      // It has no connection that listens: told here, it need not poll.
      worker.wake();
      return answer.json();
    },
    jobIn: (state, id) => {
      worker.wake();
      return eventually(`job ${id} is ${state}`, async () => {
        const { body } = await intake.get<Json>(`/v1/jobs/${id}`);
        return body.state === state && body;
      });
    },
    keys: () => upstream.log.requests.map(({ key }) => key),
  };
}

t.test('an API that replays its stored error: the same key meets it again, a fresh one does not', async (t) => {
  const { submit, act, jobIn, keys } = await setup(t, { rules: [{ key: 'ord-1', answer: { status: 500 } }] });
  const [item] = await submit([{ idempotency_key: 'ord-1', body: { amount: 5 } }]);
  const id = item!.job_id!;
  t.match(await jobIn('failed', id), { reason: 'attempts_exhausted', attempts_used: 2 });
  await act(`/v1/jobs/${id}/retry`);
  const again = await jobIn('failed', id);
  t.match(again, { attempts_used: 2, attempts: [{ number: 1 }, { number: 2 }, { number: 3 }, { number: 4 }] });
  await act(`/v1/jobs/${id}/retry`, { fresh_key: true });
  const done = await jobIn('succeeded', id);
  t.match(done, { idempotency_key: 'ord-1', attempts_used: 1, evidence: 'response' });
  const sent = keys();
  t.same(sent.slice(0, 4), ['ord-1', 'ord-1', 'ord-1', 'ord-1']);
  t.match(sent[4], /^sluice-[0-9a-f]{64}$/);
  t.equal(sent.length, 5);
});

t.test('a held call goes out again with its key when a person says so, and a redrive takes the rest', async (t) => {
  const rules = [{ times: 2, answer: { reset: 'after_effect' } as const }];
  const { submit, act, jobIn, keys, upstream } = await setup(t, { rules }, { on_unknown: 'hold' });
  const items = await submit([{ idempotency_key: 'a' }, { idempotency_key: 'b' }]);
  const [a, b] = items.map(({ job_id }) => job_id!) as [string, string];
  for (const id of [a, b]) t.match(await jobIn('held', id), { reason: 'outcome_unknown' });
  await act(`/v1/jobs/${a}/retry`);
  await jobIn('succeeded', a);
  t.same(await act('/admin/dead-letter/redrive', { filter: { state: 'held' } }), { redriven: 1, skipped: 0 });
  await jobIn('succeeded', b);
  t.same(keys(), ['a', 'b', 'a', 'b']);
  t.equal(upstream.log.doubles().length, 0, 'the upstream deduplicates by the key');
});

t.test('a cancelled batch: the call under way ends, fails, and is not made again; nothing else is', async (t) => {
  const { post, act, get, upstream } = await setup(t, { rules: [{ answer: { gate: 'slow', status: 500 } }] });
  const items = ['a', 'b', 'c'].map((key) => ({ idempotency_key: key }));
  const { batch_id: batch } = (await post({ defaults: { upstream: 'api', path: '/charges' }, items })).body;
  await eventually('a call is under way', () => upstream.log.requests.length === 1);
  t.match(await act(`/v1/batches/${batch}/cancel`), { status: 'processing', jobs: { running: 1, cancelled: 2 } });
  upstream.release('slow');
  const ended = await eventually('the batch is cancelled', async () => {
    const { body } = await get<Json>(`/v1/batches/${batch}`);
    return body.status === 'cancelled' && body;
  });
  t.match(ended, { jobs: { cancelled: 3 }, progress: 1 });
  t.equal(upstream.log.requests.length, 1);
});
