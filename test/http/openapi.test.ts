import { readFile } from 'node:fs/promises';
import { Validator } from '@seriousme/openapi-schema-validator';
import t from 'tap';
import { openApiText } from '../../scripts/openapi.ts';
import { createTestApp, unreachableDatabase } from '../support/app.ts';

interface Operation {
  readonly summary?: string;
  readonly tags?: string[];
  readonly security?: object[];
  readonly parameters?: { name: string; in: string }[];
  readonly responses: Record<string, { description: string; content?: Record<string, { schema: object }> }>;
}
interface Document {
  readonly openapi: string;
  readonly tags: { name: string }[];
  readonly paths: Record<string, Record<string, Operation>>;
  readonly components: { schemas: Record<string, object> };
}

const text = await openApiText();
const document = JSON.parse(text) as Document;
const operations = Object.entries(document.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, operation]) => ({ name: `${method.toUpperCase()} ${path}`, path, operation })),
);

t.test('the document is valid OpenAPI 3.1, and the validator can tell', async (t) => {
  const result = await new Validator().validate(JSON.parse(text));
  t.ok(result.valid, JSON.stringify(result.errors));
  const broken = structuredClone(document) as unknown as { paths: Record<string, unknown> };
  broken.paths['/livez'] = { get: { responses: 'none' } };
  t.notOk((await new Validator().validate(broken)).valid);
});

t.test('the file in the repository is what the routes say', async (t) => {
  const file = await readFile(new URL('../../openapi/openapi.json', import.meta.url), 'utf8');
  // Not t.equal: a diff of the whole document helps nobody.
  t.ok(file === text, 'openapi/openapi.json is current; if not, run `npm run openapi`');
});

t.test('the same code gives the same bytes, and the service serves the same document', async (t) => {
  t.ok((await openApiText()) === text);
  const { app } = await createTestApp(t, unreachableDatabase(t));
  t.same((await app.inject({ url: '/openapi.json' })).json(), document);
  t.equal((await app.inject({ url: '/docs' })).statusCode, 200);
});

t.test('every operation says what it is, what it needs and how it refuses', async (t) => {
  t.ok(operations.length > 20);
  const tags = new Set(document.tags.map((tag) => tag.name));
  const open = new Set(['/livez', '/readyz', '/']);
  for (const { name, path, operation } of operations) {
    t.ok(operation.summary, `${name}: summary`);
    t.ok(operation.tags?.length && operation.tags.every((tag) => tags.has(tag)), `${name}: tags that are described`);
    t.same(operation.security, open.has(path) ? [] : [{ key: [] }], `${name}: security`);
    for (const status of ['4XX', '5XX']) {
      t.same(
        Object.keys(operation.responses[status]?.content ?? {}),
        ['application/problem+json'],
        `${name}: ${status}`,
      );
    }
    t.ok(
      Object.keys(operation.responses).some((status) => status.startsWith('2')),
      `${name}: an answer`,
    );
    for (const [status, response] of Object.entries(operation.responses)) {
      t.not(response.description, 'Default Response', `${name}: ${status} is described`);
    }
    for (const [, parameter] of path.matchAll(/\{(\w+)\}/g)) {
      t.ok(
        operation.parameters?.some((each) => each.in === 'path' && each.name === parameter),
        `${name}: ${parameter}`,
      );
    }
  }
});

// turkerdev/fastify-type-provider-zod#188: dates and transforms come out as {}.
t.test('no field of an answer is without a type, but those that may be any JSON', async (t) => {
  const anyJson = /\/(body|definition)$/;
  const look = (value: unknown, path: string): void => {
    if (typeof value !== 'object' || value === null) return;
    for (const [key, each] of Object.entries(value)) {
      if (key === 'properties') {
        for (const [name, schema] of Object.entries(each as object)) {
          const said = Object.keys(schema).filter((keyword) => keyword !== 'description' && keyword !== 'default');
          t.ok(said.length > 0 || anyJson.test(`${path}/${name}`), `${path}/${name}`);
        }
      }
      look(each, `${path}/${key}`);
    }
  };
  look(document.paths, 'paths');
  look(document.components.schemas, 'schemas');
});

t.test('each kind of definition has its paths', async (t) => {
  const paths = new Set(operations.map(({ name }) => name));
  for (const kind of ['upstreams', 'rate-limits', 'queues']) {
    for (const name of [
      `GET /admin/${kind}`,
      ...['GET', 'PUT', 'DELETE'].map((method) => `${method} /admin/${kind}/{name}`),
    ]) {
      t.ok(paths.has(name), name);
    }
  }
  for (const kind of ['upstreams', 'queues']) {
    for (const action of ['pause', 'resume']) t.ok(paths.has(`POST /admin/${kind}/{name}/${action}`));
  }
});
