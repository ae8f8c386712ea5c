/** A method for every route: each is called, and what was asked for is compared with the OpenAPI document. */
import { readFileSync } from 'node:fs';
import t from 'tap';
import { SluiceClient } from '../../src/client/index.ts';

/** For probes; and those that do what `?key=` does, for fewer keys. */
const left = new Set(['GET /livez', 'GET /readyz', 'GET /v1/receipts/{}', 'PUT /v1/receipts/{}']);

t.test('every route of the document has a method, and no method asks for another', async (t) => {
  const { paths } = JSON.parse(readFileSync(new URL('../../openapi/openapi.json', import.meta.url), 'utf8')) as {
    paths: Record<string, Record<string, unknown>>;
  };
  const routes = new Set<string>();
  for (const [path, methods] of Object.entries(paths)) {
    for (const method of Object.keys(methods)) {
      const route = `${method.toUpperCase()} ${path.replaceAll(/\{\w+\}/g, '{}')}`;
      if (!left.has(route)) routes.add(route);
    }
  }

  const asked = new Set<string>();
  const client = new SluiceClient({
    attempts: 1,
    async fetch(input, init) {
      const { pathname } = new URL(String(input));
      asked.add(`${init?.method} ${pathname.replaceAll('ID', '{}')}`);
      return new Response(null, { status: 404 });
    },
  });
  const { admin } = client;
  const { upstreams, rateLimits, queues, apiKeys } = admin;
  const none = {} as never;
  const lists = [client.listBatches(), client.batchItems('ID'), client.exportItems('ID'), client.listJobs()];
  const adminLists = [upstreams.list(), rateLimits.list(), queues.list(), apiKeys.list()];
  const calls: Array<Promise<unknown>> = [
    ...[...lists, ...adminLists, admin.rateWindows(), admin.deadLetters(), admin.workers()].map((list) => list.next()),
    client.events('ID').next(),
    client.submitBatch({ items: [] }),
    client.dryRun({ items: [] }),
    client.submitLines(['{}']).end(),
    ...[client.getBatch('ID'), client.cancelBatch('ID'), client.closeBatch('ID'), client.resumeBatch('ID')],
    ...[client.getJob('ID'), client.explainJob('ID'), client.cancelJob('ID'), client.retryJob('ID')],
    client.getReceipt('ID'),
    client.putReceipt('ID'),
    client.lookUpReceipts(['ID']),
    ...[upstreams, rateLimits, queues].flatMap((kind) => [kind.get('ID'), kind.put('ID', none), kind.delete('ID')]),
    ...[upstreams, queues].flatMap((kind) => [kind.pause('ID'), kind.resume('ID')]),
    ...[apiKeys.get('ID'), apiKeys.create(none), apiKeys.delete('ID')],
    ...[admin.rateWindow('ID'), admin.auditRateWindow('ID'), admin.coolDownRateWindow('ID', none)],
    ...[admin.pauseRateWindow('ID'), admin.resumeRateWindow('ID'), admin.resetRateWindow('ID')],
    ...[admin.redriveDeadLetters(none), admin.stats()],
  ];
  for (const { status } of await Promise.allSettled(calls)) t.equal(status, 'rejected');
  t.same([...asked].sort(), [...routes].sort());
});
