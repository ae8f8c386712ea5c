/** The log lines that docs/operations.md explains are lines that the service writes, and it explains all of them. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import t from 'tap';
import { readDocument, section } from '../support/documents.ts';

const source = fileURLToPath(new URL('../../src/', import.meta.url));
const logSection = section(readDocument('docs/operations.md'), '## The log');
/** Between marks of code; `…` stands for a part that varies. */
const explained = [...logSection.matchAll(/^\| (.*?) \| \w+(?:, \w+)? \|/gm)].flatMap(([, cell = '']) =>
  [...cell.matchAll(/`([^`]+)`/g)].map(([, line = '']) => line.split('…')[0] as string),
);
/** Fastify's. */
const ofFramework = 'Server listening at ';

/** Every text in a call of a logger, of the service itself; variable parts cut it. */
function writtenLines(): string[] {
  const lines = new Set<string>();
  for (const path of readdirSync(source, { recursive: true, encoding: 'utf8' })) {
    if (!path.endsWith('.ts')) continue;
    const text = readFileSync(join(source, path), 'utf8');
    const calls = text.matchAll(/logger(?:\.\w+|\[\w+\])\(\s*(?:.*?,\s*)??(?:'([^']+)'|`([^`]+)`),?\s*\)/gs);
    for (const [, plain, template] of calls) lines.add((plain ?? template ?? '').split('${')[0] as string);
  }
  return [...lines];
}

t.test('every line that is explained is written, and every line that is written is explained', (t) => {
  const written = writtenLines();
  t.ok(written.length > 30 && written.includes('ready'), `${written.length} lines found in the source`);
  t.ok(explained.length > 30, `${explained.length} lines found in the table`);
  const words = logSection.replaceAll('`', '');
  t.same(
    written.filter((line) => !words.includes(line)),
    [],
    'written, not explained',
  );
  const sources = readdirSync(source, { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.ts'))
    .map((path) => readFileSync(join(source, path), 'utf8'))
    .join('\n');
  t.same(
    explained.filter((line) => line !== ofFramework && !sources.includes(line.replace(/\d+ s$/, ''))),
    [],
    'explained, not written',
  );
  t.end();
});
