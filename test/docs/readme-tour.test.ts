/**
 * The tour of the README, step by step against a real service and a real upstream: every command does what it says, and every
 * answer shown is what comes back.
 */
import t from 'tap';
import type { UpstreamOptions } from '../../src/simulator/upstream.ts';
import { waitFor } from '../support/client.ts';
import { createTestDatabase } from '../support/database.ts';
import { fences, readDocument, section } from '../support/documents.ts';
import { startService } from '../support/service.ts';
import { type CurlRequest, curlRequest, shellCommands } from '../support/shell-commands.ts';
import { differences, type Ids, parseShown, textAt } from '../support/shown-answer.ts';
import { useUpstream } from '../support/upstream.ts';

t.setTimeout(120_000);

const readme = readDocument('README.md');
const tour = fences(section(readme, '## A tour'));
/** Addresses in the README. */
const documented = { service: 'http://127.0.0.1:3000', upstream: 'http://127.0.0.1:4000' } as const;
/** What a reader may wait for between two commands takes less. */
const patienceMs = 20_000;

async function send({ method, url, headers, body }: CurlRequest): Promise<unknown> {
  const response = await fetch(url, { method, headers, body });
  const text = await response.text();
  if (!response.ok) throw new Error(`${method} ${url} answered ${response.status}: ${text}`);
  return JSON.parse(text);
}

/** The options that the README starts the practice API with, but for its port. */
function upstreamOptions(): UpstreamOptions {
  for (const { language, text } of tour) {
    if (language !== 'sh') continue;
    for (const { words } of shellCommands(text)) {
      if (words[1]?.(new Map()) !== 'dist/simulator/main.js') continue;
      const { port, ...options } = JSON.parse(words[2]?.(new Map()) ?? '') as UpstreamOptions;
      t.equal(`http://127.0.0.1:${port}`, documented.upstream, 'the practice API listens where the tour calls it');
      return options;
    }
  }
  throw new Error('the tour does not start the practice API');
}

t.test('every command of the tour works, and every answer is as shown', async (t) => {
  const [{ connectionString }, upstream] = await Promise.all([
    createTestDatabase(t),
    useUpstream(t, upstreamOptions()),
  ]);
  const service = await startService(t, { databaseUrl: connectionString });
  const here = (text: string) =>
    text.replaceAll(documented.service, service.url).replaceAll(documented.upstream, upstream.url);

  const files = new Map<string, string>();
  const variables = new Map<string, string>();
  const ids: Ids = new Map();
  let last: CurlRequest | undefined;
  let answer: unknown;
  let shown = 0;
  for (const { language, text } of tour) {
    if (language === 'json') {
      shown += 1;
      if (last === undefined) throw new Error('an answer is shown before there is a request');
      const request = last;
      const expected = parseShown(here(text));
      const read = async () => {
        // Asked again until the work is where the reader finds it; what changes something is sent once.
        if (request.method === 'GET') answer = await send(request);
        return differences(expected, answer, ids);
      };
      const what = `${request.method} ${new URL(request.url).pathname}`;
      const wrong = await waitFor(read, (found) => found.length === 0 || request.method !== 'GET', patienceMs);
      t.same(wrong, [], what);
      continue;
    }
    for (const command of shellCommands(here(text))) {
      const words = command.words.map((word) => word(variables));
      const assignment = /^(\w+)=/.exec(words[0] as string)?.[1];
      if (assignment !== undefined) {
        variables.set(assignment, textAt(answer, command.comment.split(' ')[0] as string));
      } else if (words[0] === 'cat' && command.input !== null) {
        files.set(words[2] as string, command.input);
      } else if (words[0] === 'curl') {
        last = curlRequest(words, files);
        answer = await send(last);
      } else if (!['npm', 'node'].includes(words[0] as string)) {
        throw new Error(`the tour has a command that this test does not know: ${words.join(' ')}`);
      }
    }
  }
  t.ok(shown >= 10, `${shown} answers compared`);
});

t.test('a wrong field, a missing one, an id of another, a shorter list: each is told', (t) => {
  const shown = parseShown('{ "a": "01a229d4-e66d-73fe-857a-c3bdc3a1c844", "b": [1, …], "c": { "d": …, … }, "e": 1 }');
  const id = '01a229d4-0000-73fe-857a-c3bdc3a1c844';
  const right = { a: id, b: [1, 2], c: { d: null, x: 1 }, e: 1 };
  const ids: Ids = new Map();
  t.same(differences(shown, right, ids), []);
  t.equal(differences(shown, { ...right, e: 2 }, ids).length, 1);
  t.equal(differences(shown, { ...right, f: 2 }, ids).length, 1);
  t.equal(differences(shown, { ...right, b: [] }, ids).length, 2);
  t.equal(differences(shown, { ...right, a: id.replace('0000', '1111') }, ids).length, 1);
  t.equal(differences(shown, { ...right, c: [] }, ids).length, 1);
  t.end();
});
