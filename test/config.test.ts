import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import t from 'tap';
import { ConfigError, type Environment, loadConfig, loadSecrets } from '../src/config.ts';

/** The faults of an environment; none: it is accepted. */
function faultsOf(env: Environment): readonly string[] {
  try {
    loadConfig(env);
    return [];
  } catch (error) {
    if (error instanceof ConfigError) return error.faults;
    throw error;
  }
}

t.test('an empty environment gives the defaults', async (t) => {
  const { readSecret, secrets, roles, dataDir, ...rest } = loadConfig({});
  t.same(rest, {
    databaseUrl: undefined,
    host: '127.0.0.1',
    port: 3000,
    configFile: undefined,
    adminKey: undefined,
    concurrency: 32,
    leaseSeconds: 30,
    shutdownSeconds: 25,
    poolMax: 10,
    retentionDays: 30,
    keyRetentionDays: 7,
    intakePerMinute: undefined,
    shedDelayMs: 2000,
    logLevel: 'info',
    faultPlan: undefined,
    startedByNpm: false,
    warnings: [],
  });
  t.same([...roles], ['api', 'worker']);
  t.same([...secrets], []);
  t.equal(readSecret('PATH'), undefined);
  t.equal(dataDir, join(process.cwd(), '.sluice'));
});

t.test('every variable is taken', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'sluice-config-'));
  t.teardown(() => rm(folder, { recursive: true }));
  const file = join(folder, 'mine.json');
  await writeFile(file, '{}');
  const config = loadConfig({
    DATABASE_URL: 'postgres://me:p%40ss@db:5432/sluice',
    SLUICE_DATA_DIR: '/var/lib/x',
    HOST: '0.0.0.0',
    PORT: '0',
    SLUICE_CONFIG: file,
    SLUICE_SECRETS: 'A_KEY, B_KEY',
    SLUICE_ROLES: 'worker',
    SLUICE_ADMIN_KEY: 'a-key-without-spaces',
    SLUICE_CONCURRENCY: '1',
    SLUICE_LEASE_SECONDS: '3',
    SLUICE_SHUTDOWN_SECONDS: '0',
    SLUICE_POOL_MAX: '1',
    SLUICE_RETENTION_DAYS: '1',
    SLUICE_KEY_RETENTION_DAYS: '2',
    SLUICE_INTAKE_PER_MINUTE: '1',
    SLUICE_SHED_DELAY_MS: '0',
    LOG_LEVEL: 'silent',
    SLUICE_URL: 'http://127.0.0.1:3000',
    SLUICE_API_KEY: 'k',
    npm_lifecycle_event: 'start',
  });
  const { secrets, roles, readSecret, ...rest } = config;
  t.same(rest, {
    databaseUrl: 'postgres://me:p%40ss@db:5432/sluice',
    dataDir: '/var/lib/x',
    host: '0.0.0.0',
    port: 0,
    configFile: file,
    adminKey: 'a-key-without-spaces',
    concurrency: 1,
    leaseSeconds: 3,
    shutdownSeconds: 0,
    poolMax: 1,
    retentionDays: 1,
    keyRetentionDays: 2,
    intakePerMinute: 1,
    shedDelayMs: undefined,
    logLevel: 'silent',
    faultPlan: undefined,
    startedByNpm: true,
    warnings: [],
  });
  t.same([...secrets], ['A_KEY', 'B_KEY']);
  t.same([...roles], ['worker']);
});

t.test('all faults are told at once, each with its variable and what is allowed', async (t) => {
  t.same(
    faultsOf({
      DATABASE_URL: 'mysql://root:hunter2@db/x',
      HOST: 'a b',
      PORT: '65536',
      SLUICE_CONFIG: '/no/such/file.json',
      SLUICE_SECRETS: 'GOOD,no-good',
      SLUICE_ROLES: 'api,cook',
      SLUICE_CONCURRENCY: '0',
      SLUICE_LEASE_SECONDS: '1.5',
      SLUICE_POOL_MAX: '-1',
      LOG_LEVEL: 'loud',
    }),
    [
      'DATABASE_URL: must be a URL like postgresql://user:password@host:5432/database, special characters in the password percent-encoded',
      'HOST: must be an IP address or a host name, not "a b"',
      'PORT: must be an integer from 0 to 65535, not "65536"',
      'SLUICE_CONFIG: must be the path of a file that exists, not "/no/such/file.json"',
      'SLUICE_SECRETS: must be a comma list of names of environment variables, not "GOOD,no-good"',
      'SLUICE_ROLES: must be a comma list of api, worker, not "api,cook"',
      'SLUICE_CONCURRENCY: must be an integer from 1 to 10000, not "0"',
      'SLUICE_LEASE_SECONDS: must be an integer from 1 to 86400, not "1.5"',
      'SLUICE_POOL_MAX: must be an integer from 1 to 1000, not "-1"',
      'LOG_LEVEL: must be one of fatal, error, warn, info, debug, trace, silent, not "loud"',
    ],
    'and the password in DATABASE_URL is not repeated',
  );
});

t.test('a variable that is set but empty is a fault and never a zero, a default or an open door', async (t) => {
  // colinhacks/zod#5501: coercing "" gives 0.
  t.match(faultsOf({ PORT: '' }), [/^PORT: must be an integer from 0 to 65535; it is set, but empty$/]);
  for (const name of [
    'DATABASE_URL',
    'SLUICE_DATA_DIR',
    'HOST',
    'SLUICE_CONFIG',
    'SLUICE_ROLES',
    'SLUICE_ADMIN_KEY',
    'SLUICE_CONCURRENCY',
    'SLUICE_LEASE_SECONDS',
    'SLUICE_SHUTDOWN_SECONDS',
    'SLUICE_POOL_MAX',
    'SLUICE_RETENTION_DAYS',
    'SLUICE_KEY_RETENTION_DAYS',
    'SLUICE_INTAKE_PER_MINUTE',
    'SLUICE_SHED_DELAY_MS',
    'LOG_LEVEL',
  ]) {
    t.match(faultsOf({ [name]: '' }), [new RegExp(`^${name}: .*it is set, but empty$`)], name);
  }
  t.same(faultsOf({ SLUICE_SECRETS: '' }), [], 'but no secrets is a list too');
});

t.test('numbers are digits and nothing else', async (t) => {
  for (const value of [' 80', '80 ', '0x50', '8e1', '+80', '80.0', '٣', 'NaN', 'Infinity', '99999999999']) {
    t.match(faultsOf({ PORT: value }), [/^PORT: must be an integer/], JSON.stringify(value));
  }
  t.equal(loadConfig({ PORT: '0080' }).port, 80);
});

t.test('without a key only this machine may reach it', async (t) => {
  for (const HOST of ['127.0.0.1', '127.8.9.1', '::1', 'localhost', 'LOCALHOST']) t.same(faultsOf({ HOST }), [], HOST);
  for (const HOST of ['0.0.0.0', '::', '10.0.0.1', 'example.test', '127.0.0.1.example.test', '127.evil.test']) {
    t.match(
      faultsOf({ HOST }),
      [/^SLUICE_ADMIN_KEY: must be set where HOST is not a loopback address.* HOST is/],
      HOST,
    );
    t.same(faultsOf({ HOST, SLUICE_ADMIN_KEY: 'key' }), [], `${HOST} with a key`);
  }
  t.match(faultsOf({ SLUICE_ADMIN_KEY: 'two words' }), [/^SLUICE_ADMIN_KEY: must be/]);
  t.notMatch(faultsOf({ SLUICE_ADMIN_KEY: 'two words' }).join(), 'two words', 'a key is never repeated');
});

t.test('a key that can be guessed is taken, with a warning that does not repeat it', async (t) => {
  const config = loadConfig({ SLUICE_ADMIN_KEY: 'x'.repeat(15) });
  t.equal(config.adminKey, 'x'.repeat(15));
  t.match(config.warnings, [/^SLUICE_ADMIN_KEY: has fewer than 16 characters/]);
  t.notMatch(config.warnings[0], /xx/);
  t.same(loadConfig({ SLUICE_ADMIN_KEY: 'x'.repeat(16) }).warnings, []);
});

t.test('names that nearly are ours', async (t) => {
  t.same(faultsOf({ SLUICE_CONCURENCY: '8', SLUICE_LEASE: '5' }), [
    'SLUICE_CONCURENCY: there is no such variable (did you mean SLUICE_CONCURRENCY?)',
    'SLUICE_LEASE: there is no such variable (did you mean SLUICE_LEASE_SECONDS?)',
  ]);

  t.test('others are only worth a warning', async (t) => {
    t.same(loadConfig({ SLUICE_THREADS: '8' }).warnings, [
      'SLUICE_THREADS: there is no such variable, so it does nothing',
    ]);
  });

  t.test('a secret may have such a name, and Kubernetes sets some', async (t) => {
    const config = loadConfig({
      SLUICE_SECRETS: 'SLUICE_CONFIGS',
      SLUICE_CONFIGS: 'value',
      SLUICE_SERVICE_HOST: '10.0.0.1',
      SLUICE_PORT: 'tcp://10.0.0.1:3000',
      SLUICE_PORT_3000_TCP_ADDR: '10.0.0.1',
    });
    t.same(config.warnings, []);
    t.equal(config.readSecret('SLUICE_CONFIGS'), 'value');
  });
});

t.test('secrets are read when they are asked for, and only those that are listed', async (t) => {
  const env: Record<string, string> = { SLUICE_SECRETS: 'API_KEY', API_KEY: 'old', OTHER: 'x' };
  const { readSecret } = loadConfig(env);
  env.API_KEY = 'new';
  t.equal(readSecret('API_KEY'), 'new');
  t.equal(readSecret('OTHER'), undefined);
});

t.test('the secrets alone can be had where the rest of the environment is wrong', async (t) => {
  const { secrets, readSecret } = loadSecrets({ PORT: 'x', SLUICE_SECRETS: 'API_KEY', API_KEY: 'v' });
  t.same([...secrets], ['API_KEY']);
  t.equal(readSecret('API_KEY'), 'v');
  t.throws(() => loadSecrets({ SLUICE_SECRETS: 'no-good' }), ConfigError);
});

t.test('fault points are taken in tests only', async (t) => {
  const plan = { SLUICE_FAULT_POINTS: 'settle.before=40001' };
  t.same(faultsOf(plan), [
    'SLUICE_FAULT_POINTS: breaks the process on purpose, so it is taken only with NODE_ENV=test',
  ]);
  t.same(faultsOf({ ...plan, NODE_ENV: 'production' }).length, 1);
  t.same(
    [...(loadConfig({ ...plan, NODE_ENV: 'test' }).faultPlan ?? [])],
    [['settle.before', [{ kind: 'fail', sqlState: '40001' }]]],
  );
  t.match(faultsOf({ SLUICE_FAULT_POINTS: 'settle.befor=kill', NODE_ENV: 'test' }), [
    /^SLUICE_FAULT_POINTS: has no point "settle.befor"; there are .*settle\.before/,
  ]);
});
