/**
 * Thousands of requests, made from the OpenAPI document: fitting, nearly fitting, hostile. Never a 500; every refusal is the
 * documented problem with a status that the operation lists; every answer fits its schema. FUZZ_SEED and FUZZ_RUNS change it.
 */
import fc from 'fast-check';
import type { LightMyRequestResponse } from 'fastify';
import t from 'tap';
import { hostileTexts, type Pools, valueFor } from '../support/hostile.ts';
import { type Intake, useIntake } from '../support/intake.ts';
import { type Parameter, type Route, readOpenApi } from '../support/openapi.ts';

t.setTimeout(240_000);

const seed = Number(process.env.FUZZ_SEED ?? 20_261_130);
/** Requests per operation. */
const runs = Number(process.env.FUZZ_RUNS ?? 60);
/** An operation that takes so much has more to try. */
const moreRuns: Readonly<Record<string, number>> = { submitBatch: 6 };
/** Longest that one operation is tried, in milliseconds for each request of it; a slow machine makes fewer. */
const longestMsEach = 40;

const ndjson = 'application/x-ndjson';
const openApi = await readOpenApi();

interface Request {
  readonly url: string;
  readonly headers: Record<string, string>;
  readonly payload: string | Buffer | undefined;
}

/** Bodies that are not what a schema could give. */
const rawBodies: ReadonlyArray<string | Buffer> = [
  '',
  ' ',
  '{',
  'null',
  '[]',
  '"text"',
  '{"__proto__":{"a":1}}',
  '{"items":[{"__proto__":1}]}',
  '{"items":[{"idempotency_key":"a","body":1e999}]}',
  '{"items":[{"idempotency_key":"a","body":123456789012345678901234567890}]}',
  '['.repeat(50_000),
  `{"items":[{"body":${'['.repeat(5_000)}${']'.repeat(5_000)}}]}`,
  '{"a":"\ud800"}',
  '{"a":"\\ud800","b":"\\u0000"}',
  Buffer.from([0xff, 0xfe, 0x00]),
  '\ufeff{"items":[]}',
  '{"items":[]}\n{"items":[]}',
];

const mediaTypes = ['application/json', ndjson, 'application/json; charset=utf-16', 'text/plain', 'nonsense', ''];

/** A header's value: Node refuses to send what HTTP cannot carry. */
const headerTexts = hostileTexts.filter((text) => /^[\x21-\xff]?[\x20-\xff]*$/.test(text));

async function useTarget(
  t: Parameters<typeof useIntake>[0],
): Promise<{ intake: Intake; pools: Pools; doneBatch: string }> {
  const intake = await useIntake(t);
  await intake.putQueue('line', { ordering: 'fifo' });
  await intake.putLimit('quota', { limit: 5, per: 60, upstreams: ['api'], max_in_flight: 2 });
  await intake.putLimit('each', { limit: 5, per: 1, by_partition: true, upstreams: ['api'] });
  await intake.putLimit('bucket', { limit: 5, per: 1, algorithm: 'token_bucket', queues: ['line'] });
  const items = Array.from({ length: 6 }, (_, n) => ({
    idempotency_key: `k-${n}`,
    partition_key: `p-${n % 2}`,
    body: n,
  }));
  const defaults = { upstream: 'api', path: '/charges' };
  const open = await intake.post({ defaults, items, correlation_id: 'c-1' });
  const other = await intake.post({ defaults, items: [{ idempotency_key: 'z' }] });
  const done = await intake.post({ items: [{}] });
  const jobIds = [...open.body.items, ...other.body.items].map((item) => item.job_id as string);
  const unknown = '01a229d4-e66d-73fe-857a-c3bdc3a1c844';
  const keys = ['k-0', 'k-1', 'k-2', 'k-3', 'z', 'none'];
  return {
    intake,
    doneBatch: done.body.batch_id,
    pools: {
      batch_id: [open.body.batch_id, other.body.batch_id, done.body.batch_id, unknown],
      job_id: [...jobIds, unknown],
      job_ids: [jobIds, [jobIds[0]]],
      key: keys,
      keys: [keys, []],
      idempotency_key: keys,
      name: ['api', 'default', 'line', 'quota', 'each', 'made-up'],
      limit: ['quota', 'each', 'bucket', 'made-up'],
      partition_key: ['p-0', 'p-1', null],
      upstream: ['api', 'made-up'],
      upstreams: [['api'], ['made-up'], []],
      queue: ['default', 'line', 'made-up'],
      queues: [['default'], ['line'], []],
      path: ['/charges', '/charges?a=1', 'charges', '//x', '/a/../b', '/\\x'],
    },
  };
}

/** Requests to a route. What would wait is kept short: `wait`, and events of a batch that is not over. */
function requestOf(route: Route, pools: Pools, doneBatch: string): fc.Arbitrary<Request> {
  const { parameters = [], requestBody } = route.operation;
  const own: Pools = {
    ...pools,
    ...(route.path.endsWith('/events') && { batch_id: [doneBatch, ...hostileTexts.slice(0, 10)] }),
  };
  const parametersIn = (place: Parameter['in']) => parameters.filter((each) => each.in === place);
  const inPath = fc.tuple(
    ...parametersIn('path').map(({ name, schema }) =>
      route.path.endsWith('/events')
        ? fc.constantFrom(...(own.batch_id as string[]))
        : valueFor(openApi, schema, own, name),
    ),
  );
  const inQuery = fc.tuple(
    ...parametersIn('query').map(({ name, schema, required }) => {
      const value =
        name === 'wait' ? fc.constantFrom('0', '-1', '0.5', 'x', '99999') : valueFor(openApi, schema, own, name);
      return now(required ? 12 : 0.25, value);
    }),
  );
  const extra = now(
    0.1,
    fc.constantFrom('surprise=1', 'limit=1&limit=2', '%', '%ff=%ff', '=', 'a[b]=c', '__proto__=1'),
  );
  const headers = fc
    .tuple(
      now(0.1, fc.constantFrom('', 'Bearer', 'Bearer nonsense', 'Basic eDp5')),
      now(0.3, fc.constantFrom('*/*', 'application/json', ndjson, 'text/event-stream', 'image/png', 'nonsense')),
      now(0.2, fc.constantFrom('wait=0', 'wait=-1', 'wait=x', 'respond-async', ';;,')),
      now(0.5, fc.oneof(fc.constantFrom('r-1', 'r-2', '"quoted"', '"'), fc.constantFrom(...headerTexts))),
      now(0.3, fc.constantFrom(...headerTexts)),
      now(0.1, fc.constantFrom(...mediaTypes)),
    )
    .map((values) => {
      const names = ['authorization', 'accept', 'prefer', 'idempotency-key', 'last-event-id', 'content-type'];
      return Object.fromEntries(names.flatMap((name, at) => (values[at] === undefined ? [] : [[name, values[at]]])));
    });
  const body = requestBody === undefined ? now(0.1, fc.constantFrom('{}', 'x')) : bodyOf(route, own);
  return fc.tuple(inPath, inQuery, extra, headers, body).map(([path, query, more, head, payload]) => {
    const names = parametersIn('path').map(({ name }) => name);
    const url = names.reduce((text, name, at) => text.replace(`{${name}}`, encode(path[at])), route.path);
    const pairs = parametersIn('query').flatMap(({ name }, at) =>
      query[at] === undefined ? [] : [`${name}=${encode(query[at])}`],
    );
    const text = [...pairs, ...(more === undefined ? [] : [more])].join('&');
    const given = typeof payload === 'object' && payload !== null && 'text' in payload ? payload : { text: payload };
    const type: Record<string, string> =
      'type' in given
        ? { 'content-type': String(given.type) }
        : given.text === undefined
          ? {}
          : { 'content-type': 'application/json' };
    return {
      url: text === '' ? url : `${url}?${text}`,
      headers: { ...type, ...(head as Record<string, string>) },
      payload: given.text as string | Buffer | undefined,
    };
  });
}

/** Present so often for once that it is not. */
function now<T>(odds: number, value: fc.Arbitrary<T>): fc.Arbitrary<T | undefined> {
  const weight = Math.round(odds * 100);
  return fc.oneof({ weight, arbitrary: value }, { weight: 100, arbitrary: fc.constant(undefined) });
}

function bodyOf(route: Route, pools: Pools): fc.Arbitrary<unknown> {
  const { content } = route.operation.requestBody!;
  const forms = Object.entries(content).map(([type, { schema = {} }]) => {
    const value = valueFor(openApi, schema, pools);
    const lines = fc.array(value, { maxLength: 5 }).map((all) => all.map((each) => JSON.stringify(each)).join('\n'));
    const text = type === ndjson ? lines : value.map((each) => JSON.stringify(each));
    return { weight: 6, arbitrary: text.map((each) => ({ text: each, type })) };
  });
  return fc.oneof(
    ...forms,
    { weight: 2, arbitrary: fc.constantFrom(...rawBodies) },
    { weight: 1, arbitrary: fc.constant(undefined) },
  );
}

/** As part of an address; what has no such form (lone surrogates) becomes a replacement character. */
function encode(value: unknown): string {
  const text = typeof value === 'string' ? value : value === undefined ? '' : JSON.stringify(value);
  return encodeURIComponent(text.replaceAll(/\p{Surrogate}/gu, '\ufffd'));
}

/** What is wrong with an answer, in words; null: nothing. */
function judge(route: Route, answer: LightMyRequestResponse): string | null {
  const { statusCode: status } = answer;
  const listed = route.operation.responses[String(status)];
  if (status >= 500) return `answered ${status}: ${answer.body}`;
  if (listed === undefined) return `answered ${status}, which is not listed: ${answer.body}`;
  const type = String(answer.headers['content-type'] ?? '')
    .split(';')[0]!
    .trim();
  if (listed.content === undefined) return answer.body === '' ? null : `a ${status} with a body: ${answer.body}`;
  const schema = listed.content[type]?.schema;
  if (schema === undefined) return `a ${status} as ${JSON.stringify(type)}, which is not listed`;
  if (type === 'text/event-stream') return null;
  const texts = type === ndjson ? answer.body.split('\n').filter(Boolean) : [answer.body];
  for (const text of texts) {
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch {
      return `a ${status} that is no JSON: ${text}`;
    }
    const wrong = openApi.check(schema, value);
    if (wrong !== null) return `a ${status} that does not fit: ${wrong}: ${text}`;
    if (status >= 400 && (value as { status: number }).status !== status)
      return `the problem says another status: ${text}`;
  }
  return null;
}

t.test('no request makes a 500, and every answer is what the document says', async (t) => {
  const { intake, pools, doneBatch } = await useTarget(t);
  const counts = new Map<number, number>();
  let total = 0;
  for (const route of openApi.routes) {
    const property = fc.asyncProperty(requestOf(route, pools, doneBatch), async ({ url, headers, payload }) => {
      const answer = await intake.app.app.inject({
        method: route.method as 'GET',
        url,
        headers,
        ...(payload === undefined ? {} : { payload }),
      });
      total += 1;
      counts.set(answer.statusCode, (counts.get(answer.statusCode) ?? 0) + 1);
      const wrong = judge(route, answer);
      if (wrong !== null) throw new Error(wrong);
    });
    const numRuns = runs * (moreRuns[route.operation.operationId] ?? 1);
    const interruptAfterTimeLimit = numRuns * longestMsEach;
    const result = await fc.check(property, { seed, numRuns, interruptAfterTimeLimit });
    if (result.failed && result.counterexample !== null) {
      const [request] = result.counterexample;
      t.fail(`${route.name}: ${String((result.errorInstance as Error)?.message).slice(0, 1000)}`, { seed, request });
    } else {
      t.pass(route.name);
    }
  }
  t.comment(
    `${total} requests, seed ${seed}: ${[...counts]
      .sort()
      .map(([status, count]) => `${status}: ${count}`)
      .join(', ')}`,
  );
  // A run that is refused all the time tries nothing.
  for (const status of [200, 202, 400, 404, 409, 422]) t.ok(counts.has(status), `some are answered ${status}`);
  const faults = intake.app.logLines().filter(({ level }) => (level as number) >= 50);
  t.same(faults, [], 'and the log has no error');
});
