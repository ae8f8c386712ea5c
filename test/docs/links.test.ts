/** What the documents point to is there: files, and headings of the same document. */
import { existsSync, readdirSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';
import t from 'tap';
import { readDocument } from '../support/documents.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));
const documents = [
  'README.md',
  ...readdirSync(join(root, 'docs'), { recursive: true, encoding: 'utf8' }).map((path) => `docs/${path}`),
].filter((path) => path.endsWith('.md'));

/** As a reader's browser names a heading. */
function anchors(text: string): Set<string> {
  const headings = [...text.matchAll(/^#+ (.*)$/gm)].map(([, heading = '']) => heading);
  return new Set(
    headings.map((heading) =>
      heading
        .toLowerCase()
        .replaceAll(/[^\w\- ]/g, '')
        .replaceAll(' ', '-'),
    ),
  );
}

for (const path of documents) {
  t.test(`every link of ${path} leads somewhere`, (t) => {
    const text = readDocument(path);
    const links = [...text.matchAll(/\]\(([^)\s]+)\)/g)].map(([, target = '']) => target);
    const broken = links.filter((link) => {
      if (/^https?:/.test(link)) return false;
      const [file = '', anchor] = link.split('#');
      const target = file === '' ? path : normalize(join(dirname(path), file));
      if (!existsSync(join(root, target))) return true;
      return anchor !== undefined && !anchors(readDocument(target)).has(anchor);
    });
    t.same(broken, []);
    t.end();
  });

  t.test(`every file that ${path} names in code is there`, (t) => {
    const named = [...readDocument(path).matchAll(/`((?:src|test|bench|docs|drizzle|scripts|openapi)\/[\w./-]*)`/g)];
    const missing = named.map(([, name = '']) => name).filter((name) => !existsSync(join(root, name)));
    t.same(missing, []);
    t.end();
  });
}
