/** The examples of the document: each fits its schema, and the service takes those of requests. */
import t from 'tap';
import { useIntake } from '../support/intake.ts';
import { type Media, readOpenApi, type Schema } from '../support/openapi.ts';

t.setTimeout(60_000);

const openApi = await readOpenApi();
const { schemas } = openApi.document.components as { schemas: Record<string, Schema> };

t.test('every example fits its schema, and a wrong one would be found', async (t) => {
  let count = 0;
  const holds = (schema: Schema, value: unknown, where: string) => {
    count += 1;
    t.equal(openApi.check(schema, value), null, where);
  };
  const look = (value: unknown, where: string): void => {
    if (typeof value !== 'object' || value === null) return;
    const { examples, example, schema } = value as Schema & Media;
    if (Array.isArray(examples)) for (const each of examples) holds(value as Schema, each, where);
    if (example !== undefined && schema !== undefined) holds(schema, example, where);
    for (const [key, each] of Object.entries(value)) if (!/^examples?$/.test(key)) look(each, `${where}/${key}`);
  };
  look(openApi.document.components, 'components');
  look(openApi.document.paths, 'paths');
  t.ok(count >= 30, `${count} examples`);
  t.ok(openApi.check(schemas.BatchProgress!, { ...(schemas.BatchProgress!.examples as object[])[0], progress: 2 }));
});

t.test('every field, every schema and every parameter says what it is', async (t) => {
  const look = (value: unknown, where: string): void => {
    if (typeof value !== 'object' || value === null) return;
    const { properties, parameters } = value as Record<string, Record<string, Schema>>;
    for (const [name, each] of Object.entries(properties ?? {})) {
      t.ok('description' in each || '$ref' in each, `${where}: ${name}`);
    }
    if (Array.isArray(parameters))
      for (const each of parameters as Schema[]) t.ok(each.description, `${where}: ${each.name}`);
    for (const [key, each] of Object.entries(value)) if (!/^examples?$/.test(key)) look(each, `${where}/${key}`);
  };
  look(schemas, 'schemas');
  look(openApi.document.paths, 'paths');
  for (const [name, schema] of Object.entries(schemas)) t.ok(schema.description, name);
});

t.test('every body has an example, and the service takes it', async (t) => {
  const intake = await useIntake(t);
  await intake.putUpstream('stripe');
  await intake.putLimit('per-account', { limit: 5, per: 1, by_partition: true, upstreams: ['stripe'] });
  const batch = await intake.post({ items: [{ upstream: 'stripe', path: '/x', idempotency_key: 'ord-0' }] });
  const jobId = batch.body.items[0]?.job_id as string;
  await intake.app.app.inject({ method: 'POST', url: `/v1/jobs/${jobId}/cancel` });
  const places: Record<string, string> = { name: 'made', limit: 'per-account', job_id: jobId, key: 'ord-2' };
  // Receipts are put for keys that a batch has brought, so batches go first.
  const routes = openApi.routes
    .filter(({ operation }) => operation.requestBody !== undefined)
    .sort((a, b) => Number(b.name === 'POST /v1/batches') - Number(a.name === 'POST /v1/batches'));
  for (const { name, method, path, operation } of routes) {
    for (const [type, { schema = {}, example }] of Object.entries(operation.requestBody!.content)) {
      const named = openApi.resolve(((schema.anyOf as Schema[] | undefined)?.[0] ?? schema) as Schema);
      const value = example ?? (named.examples as unknown[] | undefined)?.[0];
      t.ok(value, `${name}: an example`);
      const url = path.replace(/\{(\w+)\}/g, (_all, parameter: string) => places[parameter] ?? parameter);
      const query = operation.parameters?.some((each) => each.in === 'query' && each.name === 'key')
        ? '?key=ord-1'
        : '';
      const answer = await intake.app.app.inject({
        method: method as 'POST',
        url: url + query,
        headers: { 'content-type': type },
        payload: JSON.stringify(value),
      });
      t.ok(
        answer.statusCode >= 200 && answer.statusCode < 300,
        `${name}: ${answer.statusCode} ${answer.body.slice(0, 300)}`,
      );
      t.notMatch(answer.body, /"verdict":"rejected"/, `${name}: nothing of it is rejected`);
    }
  }
});
