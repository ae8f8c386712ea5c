/** What a test can hold of the way the code is laid out; CONTRIBUTING.md says why. */
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import t from 'tap';

const root = fileURLToPath(new URL('..', import.meta.url));

interface Source {
  /** From the root of the project, with slashes. */
  readonly path: string;
  readonly text: string;
  /** Without comments; strings stay as they are. Enough to look for calls. */
  readonly code: string;
  /** Files of the project that it imports, from the root; type-only imports too. */
  readonly imports: readonly string[];
}

/** All TypeScript files under a folder. */
function sourcesUnder(folder: string): Source[] {
  return readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.ts') && statSync(join(root, folder, name)).isFile())
    .map((name) => {
      const path = `${folder}/${name.replaceAll('\\', '/')}`;
      const text = readFileSync(join(root, path), 'utf8');
      const code = text.replace(/\/\*[\s\S]*?\*\//g, '').replace(/(^|[^:'"`])\/\/.*$/gm, '$1');
      return { path, text, code, imports: importsOf(path, code) };
    });
}

function importsOf(path: string, code: string): string[] {
  const specifiers = [...code.matchAll(/\b(?:from|import)\s*\(?\s*['"](\.{1,2}\/[^'"]+)['"]/g)].map(
    (match) => match[1]!,
  );
  return specifiers.map((specifier) => relative(root, join(root, dirname(path), specifier)).replaceAll('\\', '/'));
}

const src = sourcesUnder('src');
const bySource = new Map(src.map((source) => [source.path, source]));

/**
 * What each part may import besides itself and `system`. `cli` stands above `compose` only as the words the two share: the
 * composition gives the commands what they run.
 */
const allowed: Readonly<Record<string, readonly string[]>> = {
  main: ['compose', 'cli', 'config', 'postgres'],
  compose: ['config', 'http', 'worker', 'cli', 'application', 'postgres', 'outbound', 'domain'],
  http: ['application', 'postgres', 'domain'],
  worker: ['application', 'postgres', 'domain'],
  cli: ['config', 'client', 'application', 'postgres', 'simulator', 'domain'],
  // What a user's program imports: of the service it knows the OpenAPI document, and no code.
  client: [],
  application: ['postgres', 'outbound', 'domain'],
  postgres: ['domain'],
  outbound: ['domain'],
  simulator: ['domain'],
  config: ['domain'],
  domain: [],
  system: [],
};

function partOf(path: string): string {
  return path.split('/')[1]!.replace(/\.ts$/, '');
}

t.test('imports go down only', async (t) => {
  for (const { path, imports } of src) {
    const part = partOf(path);
    const may = allowed[part];
    if (may === undefined) {
      t.fail(`${path} is in no known part of the code`);
      continue;
    }
    const system = part === 'domain' ? [] : ['system'];
    const wrong = imports.filter((each) => ![part, ...system, ...may].includes(partOf(each)));
    t.same(wrong, [], path);
  }
});

t.test('the client brings nothing of the service along but the clock', async (t) => {
  for (const { path, imports } of src.filter((source) => partOf(source.path) === 'client')) {
    t.same(
      imports.filter((each) => partOf(each) !== 'client' && each !== 'src/system/clock.ts'),
      [],
      path,
    );
  }
});

t.test('HTTP touches no SQL: of postgres it knows the error and the types', async (t) => {
  for (const { path, code } of src.filter((source) => partOf(source.path) === 'http')) {
    const values = [...code.matchAll(/import (?!type )([^;]*?) from '[./]*\/postgres\/([\w-]+)\.ts'/g)];
    const wrong = values
      .filter(([, , file]) => file !== 'database')
      .filter(([, names]) =>
        names!
          .replace(/[{}]/g, '')
          .split(',')
          .some((name) => !/^\s*(type\b|$)/.test(name)),
      );
    t.same(
      wrong.map(([, , file]) => file),
      [],
      path,
    );
  }
});

t.test('statements of a transaction go one after the other', async (t) => {
  // One of many that fails leaves the others running, behind the ROLLBACK (kysely-org/kysely#1604). The transaction itself and
  // the intake have statements leave together: those run in the order in which they were sent, before the ROLLBACK, and what an
  // answer would still send after it is refused (transaction.test.ts).
  const together = ['src/postgres/transaction.ts', 'src/postgres/insert-batch.ts'];
  for (const { path, code } of src.filter((source) => partOf(source.path) === 'postgres')) {
    if (together.includes(path)) continue;
    if (/\bTransactionClient\b|\bwithClient\b/.test(code)) t.notMatch(code, /\bPromise\.(all|race|any)/, path);
  }
});

t.test('there are no cycles', async (t) => {
  const done = new Set<string>();
  const cycles: string[][] = [];
  const walk = (path: string, trail: string[]) => {
    if (trail.includes(path)) {
      cycles.push([...trail.slice(trail.indexOf(path)), path]);
      return;
    }
    if (done.has(path)) return;
    for (const next of bySource.get(path)?.imports ?? []) walk(next, [...trail, path]);
    done.add(path);
  };
  for (const { path } of src) walk(path, []);
  t.same(cycles, []);
});

t.test('every file of the code is used by the program', async (t) => {
  const entries = [
    'src/main.ts',
    // What a user's program imports.
    'src/client/index.ts',
    // A process of its own in the demo.
    'src/simulator/main.ts',
    // The table that tests hold the stores and the rules against; the moves themselves are SQL.
    'src/domain/state-machine.ts',
  ];
  const reached = new Set<string>();
  const walk = (path: string) => {
    if (reached.has(path)) return;
    reached.add(path);
    for (const next of bySource.get(path)?.imports ?? []) walk(next);
  };
  entries.forEach(walk);
  t.same(
    src.map(({ path }) => path).filter((path) => !reached.has(path)),
    [],
  );
});

/** A pattern that only some files may have, each with its reason. */
function only(name: string, pattern: RegExp, exceptions: Readonly<Record<string, string>>): void {
  t.test(name, async (t) => {
    const having = src.filter(({ code }) => pattern.test(code)).map(({ path }) => path);
    t.same(
      having.filter((path) => !(path in exceptions)),
      [],
    );
    t.same(
      Object.keys(exceptions).filter((path) => !having.includes(path)),
      [],
      'exceptions that are not needed any more',
    );
  });
}

only('the environment is read in one place', /\bprocess\.env\b/, { 'src/config.ts': 'checks it as a whole' });

only(
  'clocks and timers are in one place',
  /\b(Date\.now|performance\.now|new Date\(\)|setTimeout|setInterval|setImmediate|process\.hrtime)\b/,
  { 'src/system/clock.ts': 'is that place' },
);

t.test('the domain is pure: it waits for nothing, draws nothing, and knows no machine', async (t) => {
  for (const { path, code } of src.filter((source) => partOf(source.path) === 'domain')) {
    t.notMatch(code, /\b(await|async|Math\.random|randomBytes|randomUUID|process\.|fetch\()/, path);
    const modules = [...code.matchAll(/from '(node:[\w/]+|pg|undici|fastify|pino)'/g)].map((match) => match[1]);
    const pure = ['node:crypto', 'node:net', 'node:util', 'node:url'];
    t.same(
      modules.filter((name) => !pure.includes(name!)),
      [],
      path,
    );
  }
});

t.test('each file opens with what it is for', async (t) => {
  for (const { path, text } of src) t.match(text, /^(#!.*\n)?\/\*\*/, path);
});

t.test('no file is a drawer for everything', async (t) => {
  t.same(
    src.map(({ path }) => path).filter((path) => /\/(utils?|helpers?|common|misc|shared)\b/.test(path)),
    [],
  );
});

t.test('no test is switched off', async (t) => {
  for (const { path, code } of sourcesUnder('test')) {
    if (path === 'test/architecture.test.ts') continue;
    t.notMatch(code, /\bt\.(only|skip|todo)\b|\{ (skip|todo|only):(?! *\d)/, path);
  }
});
