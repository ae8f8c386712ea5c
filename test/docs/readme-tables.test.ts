/** The README's tables and diagram say what the code says: states, variables, definitions. */
import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import t from 'tap';
import type { z } from 'zod';
import { createProgram } from '../../src/cli/program.ts';
import { type Config, loadConfig } from '../../src/config.ts';
import { checkConfigFile } from '../../src/domain/check-definitions.ts';
import { queueSchema, rateLimitSchema, retryPolicySchema, upstreamSchema } from '../../src/domain/definitions.ts';
import { transitions } from '../../src/domain/state-machine.ts';
import { fences, readDocument, section, tableRows } from '../support/documents.ts';

const readme = readDocument('README.md');

t.test('the table of states is the table of transitions', (t) => {
  const documented = tableRows(section(readme, '## States of a job'));
  t.same(
    documented,
    transitions.map(({ from, to, when }) => [from ?? '', to, when]),
  );
  t.end();
});

t.test('the diagram has an arrow for each transition, once', (t) => {
  const diagram = fences(section(readme, '## States of a job')).find(({ language }) => language === 'mermaid');
  const arrows = [...(diagram?.text ?? '').matchAll(/^ {2}(\S+) --> (\w+)$/gm)].map(([, from, to]) => `${from} ${to}`);
  const expected = new Set(transitions.map(({ from, to }) => `${from ?? '[*]'} ${to}`));
  t.same([...arrows].sort(), [...expected].sort());
  t.end();
});

/** What the process makes of each variable that is not set, as the table writes it. */
const defaults: Readonly<Record<string, (config: Config) => string>> = {
  DATABASE_URL: ({ databaseUrl }) => databaseUrl ?? 'embedded',
  SLUICE_DATA_DIR: ({ dataDir }) => (dataDir === resolve('.sluice') ? './.sluice' : dataDir),
  HOST: ({ host }) => host,
  PORT: ({ port }) => String(port),
  SLUICE_CONFIG: ({ configFile }) => configFile ?? './sluice.json if present',
  SLUICE_SECRETS: ({ secrets }) => (secrets.size === 0 ? 'none' : [...secrets].join()),
  SLUICE_ROLES: ({ roles }) => [...roles].join(),
  SLUICE_ADMIN_KEY: ({ adminKey }) => adminKey ?? 'none',
  SLUICE_CONCURRENCY: ({ concurrency }) => String(concurrency),
  SLUICE_LEASE_SECONDS: ({ leaseSeconds }) => String(leaseSeconds),
  SLUICE_SHUTDOWN_SECONDS: ({ shutdownSeconds }) => String(shutdownSeconds),
  SLUICE_POOL_MAX: ({ poolMax }) => String(poolMax),
  SLUICE_RETENTION_DAYS: ({ retentionDays }) => String(retentionDays),
  SLUICE_KEY_RETENTION_DAYS: ({ keyRetentionDays }) => String(keyRetentionDays),
  SLUICE_INTAKE_PER_MINUTE: ({ intakePerMinute }) => String(intakePerMinute ?? 'none'),
  SLUICE_SHED_DELAY_MS: ({ shedDelayMs }) => String(shedDelayMs ?? 'never'),
  LOG_LEVEL: ({ logLevel }) => logLevel,
};

t.test('the table of variables has every variable, with its default', (t) => {
  const config = loadConfig({});
  const documented = tableRows(section(readme, '## Configuration')).map(([name, value]) => [name, value]);
  t.same(
    documented,
    Object.entries(defaults).map(([name, read]) => [name, read(config)]),
  );
  const source = readFileSync(new URL('../../src/config.ts', import.meta.url), 'utf8');
  const known = [...source.matchAll(/^ {2}([A-Z][A-Z_]+): /gm)].map(([, name = '']) => name);
  t.ok(known.includes('SLUICE_POOL_MAX'), 'variables are found in the source');
  const words = new Set(section(readme, '## Configuration').split(/\W+/));
  t.same(
    known.filter((name) => !words.has(name)),
    [],
    'and none is left out, be it only for tests',
  );
  t.end();
});

/** Fields with their defaults, as the table writes them. */
function fieldsOf(schema: z.ZodObject, prefix = ''): string[][] {
  return Object.entries(schema.shape).flatMap(([name, field]) => {
    if (name === 'retry') return fieldsOf(retryPolicySchema, 'retry.');
    const { success, data } = (field as z.ZodType).safeParse(undefined);
    return [[`${prefix}${name}`, success ? JSON.stringify(data) : 'required']];
  });
}

for (const [heading, schema] of [
  ['**Upstream**', upstreamSchema],
  ['**Rate limit**', rateLimitSchema],
  ['**Queue**', queueSchema],
] as const) {
  t.test(`the table below ${heading} has every field, with its default`, (t) => {
    const definitions = section(readme, '### Definitions');
    const at = definitions.indexOf(`\n${heading}\n`);
    t.not(at, -1, 'it is there');
    const documented = tableRows(definitions.slice(at)).map(([name, value]) => [name, value]);
    t.same(documented, fieldsOf(schema));
    t.end();
  });
}

t.test('what is said to be absent is absent, and routes that the README names elsewhere are there', (t) => {
  const { paths } = JSON.parse(readDocument('openapi/openapi.json')) as {
    paths: Record<string, Record<string, unknown>>;
  };
  const routes = new Set(
    Object.entries(paths).flatMap(([path, methods]) => Object.keys(methods).map((method) => `${method} ${path}`)),
  );
  const isThere = (route: string) => routes.has(route.replace(/^[A-Z]+/, (method) => method.toLowerCase()));
  const named = (text: string) =>
    [...text.matchAll(/`((?:GET|PUT|POST|DELETE) \/[^`\s?]*)(?:\?[^`]*)?`/g)].map(([, route = '']) => route);
  const absent = section(readme, '## Not there yet');
  t.ok(named(absent).length > 0, 'routes are found in the section');
  t.same(named(absent).filter(isThere), [], 'said to be absent, but there');
  t.same(
    named(readme.replace(absent, '')).filter((route) => !isThere(route)),
    [],
    'named, but not there',
  );
  const commands = createProgram({ version: '', startService: never, migrateDatabase: never }).commands.map((each) =>
    each.name(),
  );
  const absentCommands = [...absent.matchAll(/`sluice (\w+)`/g)].map(([, name = '']) => name);
  t.same(
    absentCommands.filter((name) => commands.includes(name)),
    [],
    'commands said to be absent, but there',
  );
  t.end();
});

function never(): never {
  throw new Error('nothing is run here');
}

t.test('the example of a definitions file has no faults', (t) => {
  const example = fences(section(readme, '### Definitions')).find(({ language }) => language === 'json');
  const faults = checkConfigFile(JSON.parse(example?.text ?? ''), { secrets: new Set(['STRIPE_KEY']) });
  t.same(faults, []);
  t.end();
});
