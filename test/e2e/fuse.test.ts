/** Credentials that have expired: three workers, one batch, and an upstream that lets nobody in until they are new. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import t, { type Test } from 'tap';
import type { WorkerPool } from '../../src/worker/worker-pool.ts';
import { eventually } from '../support/eventually.ts';
import { defaults, useIntake } from '../support/intake.ts';
import { startWorker } from '../support/worker.ts';

interface Guarded {
  readonly url: string;
  /** How many came with each authorization. */
  readonly calls: Map<string, number>;
  /** Effects by key: of a key that is known nothing more is done. */
  readonly effects: Map<string, number>;
}

/** An upstream that answers 401 to whoever does not come with this authorization. */
async function startGuarded(t: Test, authorization: string): Promise<Guarded> {
  const calls = new Map<string, number>();
  const effects = new Map<string, number>();
  const server = createServer((request, response) => {
    const given = request.headers.authorization ?? '';
    calls.set(given, (calls.get(given) ?? 0) + 1);
    request.resume().on('end', () => {
      if (given !== authorization) return response.writeHead(401, { 'www-authenticate': 'Bearer' }).end();
      const key = String(request.headers['idempotency-key']);
      effects.set(key, (effects.get(key) ?? 0) + 1);
      return response.end('{}');
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.teardown(() => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(resolve));
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, calls, effects };
}

t.test(
  'a 401 holds 1,000 items after at most the calls in flight, in all replicas; with new credentials a resume finishes them',
  async (t) => {
    const replicas = 3;
    const concurrency = 8;
    const upstream = await startGuarded(t, 'Bearer new-credential');
    const intake = await useIntake(t);
    await intake.putUpstream('api', {
      base_url: upstream.url,
      allow_private_addresses: true,
      headers: { authorization: 'Bearer ${API_KEY}' },
    });
    let secret = 'old-credential';
    const { connectionString } = intake;
    const workers: WorkerPool[] = [];
    for (let replica = 0; replica < replicas; replica += 1) {
      workers.push(await startWorker(t, { connectionString, concurrency, readSecret: () => secret }));
    }
    // As notifications do it in a service.
    const wake = () => workers.forEach((worker) => void worker.wake());
    const keys = Array.from({ length: 1_000 }, (_, i) => `k${i}`);
    const { body } = await intake.post({ defaults, items: keys.map((key) => ({ idempotency_key: key })) });
    wake();
    const path = `/v1/batches/${body.batch_id}`;
    const read = async () =>
      (await intake.get<{ jobs: { held: number }; status: string; held_by: unknown }>(path)).body;
    const resume = async () => {
      const { statusCode } = await intake.app.app.inject({ method: 'POST', url: `${path}/resume` });
      wake();
      return statusCode;
    };
    const held = () => eventually('all of it to be held', async () => (await read()).jobs.held === keys.length);

    await held();
    t.match(await read(), { status: 'processing', held_by: { reason: 'fuse', status: 401 } });
    const first = upstream.calls.get('Bearer old-credential')!;
    t.ok(first >= 1 && first <= replicas * concurrency, `${first} calls`);

    t.equal(await resume(), 200);
    await eventually('it to be refused again', async () => upstream.calls.get('Bearer old-credential')! > first);
    await held();
    const again = upstream.calls.get('Bearer old-credential')! - first;
    t.ok(again <= replicas * concurrency, `${again} calls after a resume with the old credentials`);

    secret = 'new-credential';
    t.equal(await resume(), 200);
    await eventually('the end of the batch', async () => (await read()).status === 'completed');
    t.match(await read(), { jobs: { succeeded: keys.length, held: 0 }, held_by: null });
    t.same([...upstream.effects.keys()].sort(), [...keys].sort());
    t.equal(upstream.calls.get('Bearer new-credential'), keys.length, 'none twice');
    t.same(await intake.database.query('select distinct attempts_used from sluice.done_jobs'), [{ attempts_used: 1 }]);
    t.match(await intake.database.query('select distinct charged, status from sluice.attempts order by status'), [
      { charged: 'attempt', status: 200 },
      { charged: 'none', status: 401 },
    ]);
  },
);
