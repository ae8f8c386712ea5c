/**
 * The environment, read once at the start and checked as a whole: every fault is told at once, with the variable's name and
 * what is allowed. A variable that is set but empty is a fault, since it would otherwise mean something that nobody wrote.
 * The only place that reads process.env. Values that may be secret are never repeated in a message.
 */
import { existsSync } from 'node:fs';
import { isIP } from 'node:net';
import { resolve } from 'node:path';
import { z } from 'zod';
import { nearName } from './domain/near-name.ts';
import { type FaultPlan, parseFaultPlan } from './system/fault-points.ts';

export type Environment = Readonly<Record<string, string | undefined>>;
export type Role = 'api' | 'worker';

export interface Config {
  /** undefined: the embedded PostgreSQL. */
  readonly databaseUrl: string | undefined;
  readonly dataDir: string;
  readonly host: string;
  /** 0: a free one. */
  readonly port: number;
  /** Path of the file with definitions; undefined: there is none. */
  readonly configFile: string | undefined;
  /** Names of environment variables that headers of upstreams may use. */
  readonly secrets: ReadonlySet<string>;
  /** The value of one of `secrets`, read now; undefined: not allowed or not set. */
  readonly readSecret: (name: string) => string | undefined;
  readonly roles: ReadonlySet<Role>;
  /** undefined: everything is open, on a loopback address only. */
  readonly adminKey: string | undefined;
  readonly concurrency: number;
  readonly leaseSeconds: number;
  readonly shutdownSeconds: number;
  readonly poolMax: number;
  readonly retentionDays: number;
  readonly keyRetentionDays: number;
  /** Submissions a minute of one key or address; undefined: any number. */
  readonly intakePerMinute: number | undefined;
  /** Mean delay of the event loop from which dear requests are refused, in milliseconds; undefined: they never are. */
  readonly shedDelayMs: number | undefined;
  readonly logLevel: string;
  /** For tests: where this process is to break (system/fault-points.ts); undefined: nowhere. */
  readonly faultPlan: FaultPlan | undefined;
  /** npm or npx started this process, through a shell that does not pass signals on. */
  readonly startedByNpm: boolean;
  /** Things that are no fault but worth a line in the log. */
  readonly warnings: readonly string[];
}

/** The environment does not do; each fault is one line for people. */
export class ConfigError extends Error {
  readonly faults: readonly string[];

  constructor(faults: readonly string[]) {
    super(faults.join('\n'));
    this.name = 'ConfigError';
    this.faults = faults;
  }
}

const roles = ['api', 'worker'] as const;
const logLevels = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'] as const;
const defaultConfigFile = 'sluice.json';

/** Only digits: what `Number` makes of "", " ", "0x10" or "1e3" is not what was meant. */
const integer = (min: number, max: number) =>
  z
    .string()
    .refine((text) => /^\d{1,9}$/.test(text) && Number(text) >= min && Number(text) <= max, {
      error: `must be an integer from ${min} to ${max}`,
    })
    .transform(Number);

const text = (check: (value: string) => boolean, error: string) => z.string().refine(check, { error });

const list = (isItem: (item: string) => boolean, error: string) =>
  z
    .string()
    .transform((value) => value.split(',').map((item) => item.trim()))
    .refine((items) => items.every(isItem), { error });

const secretNames = z.preprocess(
  // The one variable that may be empty: no names is a list too.
  (value) => (typeof value === 'string' && value.trim() === '' ? undefined : value),
  list(
    (name) => /^[A-Za-z_][A-Za-z0-9_]*$/.test(name),
    'must be a comma list of names of environment variables',
  ).default([]),
);

const schema = z.object({
  DATABASE_URL: text(
    (value) => /^postgres(ql)?:\/\//.test(value) && URL.canParse(value),
    'must be a URL like postgresql://user:password@host:5432/database, special characters in the password percent-encoded',
  ).optional(),
  SLUICE_DATA_DIR: text((value) => value.trim() !== '', 'must be the path of a folder').default('./.sluice'),
  HOST: text(isHost, 'must be an IP address or a host name').default('127.0.0.1'),
  PORT: integer(0, 65_535).default(3000),
  SLUICE_CONFIG: text((path) => path !== '' && existsSync(path), 'must be the path of a file that exists').optional(),
  SLUICE_SECRETS: secretNames,
  SLUICE_ROLES: list((item) => roles.some((role) => role === item), `must be a comma list of ${roles.join(', ')}`)
    .transform((items) => items as Role[])
    .default([...roles]),
  SLUICE_ADMIN_KEY: text(
    (value) => /^[\x21-\x7e]+$/.test(value),
    'must be one or more visible ASCII characters without spaces; leave it out to run open on a loopback HOST',
  ).optional(),
  SLUICE_CONCURRENCY: integer(1, 10_000).default(32),
  SLUICE_LEASE_SECONDS: integer(1, 86_400).default(30),
  SLUICE_SHUTDOWN_SECONDS: integer(0, 86_400).default(25),
  SLUICE_POOL_MAX: integer(1, 1_000).default(10),
  SLUICE_RETENTION_DAYS: integer(0, 36_500).default(30),
  SLUICE_KEY_RETENTION_DAYS: integer(0, 36_500).default(7),
  SLUICE_INTAKE_PER_MINUTE: integer(1, 1_000_000).optional(),
  SLUICE_SHED_DELAY_MS: integer(0, 600_000).default(2000),
  LOG_LEVEL: text(
    (value) => logLevels.some((level) => level === value),
    `must be one of ${logLevels.join(', ')}`,
  ).default('info'),
  SLUICE_FAULT_POINTS: z
    .string()
    .transform((value, context): FaultPlan => {
      const plan = parseFaultPlan(value);
      if (typeof plan !== 'string') return plan;
      context.addIssue({ code: 'custom', message: plan });
      return z.NEVER;
    })
    .optional(),
});

const visible = /^[\x21-\x7e]+$/;

/** Variables of the commands that speak with a running service. */
const clientSchema = z.object({
  SLUICE_URL: text(
    (value) => /^https?:\/\//i.test(value) && URL.canParse(value),
    'must be a URL like http://127.0.0.1:3000',
  ).optional(),
  SLUICE_API_KEY: text((value) => visible.test(value), 'must be visible ASCII characters without spaces').optional(),
});
const clientVariables = Object.keys(clientSchema.shape);
const mayBeSecret = new Set(['DATABASE_URL', 'SLUICE_ADMIN_KEY', 'SLUICE_API_KEY', 'SLUICE_URL']);

/** Checks the environment. Throws a ConfigError with every fault in it. */
export function loadConfig(env: Environment = process.env): Config {
  const parsed = schema.safeParse(env);
  const faults = parsed.success ? [] : parsed.error.issues.map((issue) => describe(issue, env));
  const { misspelt, unknown } = strangers(env);
  faults.push(...misspelt);
  const openHost = openHostFault(env);
  if (openHost !== undefined) faults.push(openHost);
  if (env.SLUICE_FAULT_POINTS !== undefined && env.NODE_ENV !== 'test') {
    faults.push('SLUICE_FAULT_POINTS: breaks the process on purpose, so it is taken only with NODE_ENV=test');
  }
  if (!parsed.success || faults.length > 0) throw new ConfigError(faults);

  const found = parsed.data;
  const secrets = new Set(found.SLUICE_SECRETS);
  return {
    databaseUrl: found.DATABASE_URL,
    dataDir: resolve(found.SLUICE_DATA_DIR),
    host: found.HOST,
    port: found.PORT,
    configFile: found.SLUICE_CONFIG ?? (existsSync(defaultConfigFile) ? defaultConfigFile : undefined),
    secrets,
    readSecret: secretReader(secrets, env),
    roles: new Set(found.SLUICE_ROLES),
    adminKey: found.SLUICE_ADMIN_KEY,
    concurrency: found.SLUICE_CONCURRENCY,
    leaseSeconds: found.SLUICE_LEASE_SECONDS,
    shutdownSeconds: found.SLUICE_SHUTDOWN_SECONDS,
    poolMax: found.SLUICE_POOL_MAX,
    retentionDays: found.SLUICE_RETENTION_DAYS,
    keyRetentionDays: found.SLUICE_KEY_RETENTION_DAYS,
    intakePerMinute: found.SLUICE_INTAKE_PER_MINUTE,
    shedDelayMs: found.SLUICE_SHED_DELAY_MS === 0 ? undefined : found.SLUICE_SHED_DELAY_MS,
    logLevel: found.LOG_LEVEL,
    faultPlan: found.SLUICE_FAULT_POINTS,
    startedByNpm: env.npm_lifecycle_event !== undefined,
    warnings: [...unknown, ...shortKeyWarning(found.SLUICE_ADMIN_KEY)],
  };
}

/** The part of the environment that `check` needs, so that it works where the rest is not set up. */
export function loadSecrets(env: Environment = process.env): Pick<Config, 'secrets' | 'readSecret'> {
  const parsed = schema.pick({ SLUICE_SECRETS: true }).safeParse(env);
  if (!parsed.success) throw new ConfigError(parsed.error.issues.map((issue) => describe(issue, env)));
  const secrets = new Set(parsed.data.SLUICE_SECRETS);
  return { secrets, readSecret: secretReader(secrets, env) };
}

/** The part of the environment that the commands need which speak with a running service. */
export function loadClientConfig(env: Environment = process.env): {
  url: string | undefined;
  apiKey: string | undefined;
} {
  const parsed = clientSchema.safeParse(env);
  if (!parsed.success) throw new ConfigError(parsed.error.issues.map((issue) => describe(issue, env)));
  return { url: parsed.data.SLUICE_URL, apiKey: parsed.data.SLUICE_API_KEY };
}

/** All of it, for processes that are started from this one. */
export function inheritedEnvironment(): Environment {
  return process.env;
}

function secretReader(secrets: ReadonlySet<string>, env: Environment): (name: string) => string | undefined {
  return (name) => (secrets.has(name) ? env[name] : undefined);
}

function describe(issue: z.core.$ZodIssue, env: Environment): string {
  const name = String(issue.path[0]);
  const value = env[name] ?? '';
  if (value === '') return `${name}: ${issue.message}; it is set, but empty`;
  return `${name}: ${issue.message}${mayBeSecret.has(name) ? '' : `, not ${JSON.stringify(value.slice(0, 100))}`}`;
}

/** Shorter ones can be found by trying. */
const shortestGoodKey = 16;

/** A word and no fault, since on a machine of one's own any key does. The key itself is never repeated. */
function shortKeyWarning(key: string | undefined): string[] {
  if (key === undefined || key.length >= shortestGoodKey) return [];
  return [
    `SLUICE_ADMIN_KEY: has fewer than ${shortestGoodKey} characters, so it may be guessed; better: openssl rand -hex 32`,
  ];
}

/** Without keys everybody who reaches the port may do everything, so only this machine may reach it. */
function openHostFault(env: Environment): string | undefined {
  const host = env.HOST ?? '127.0.0.1';
  if (env.SLUICE_ADMIN_KEY !== undefined || !isHost(host) || isLoopback(host)) return undefined;
  return `SLUICE_ADMIN_KEY: must be set where HOST is not a loopback address (127.0.0.1, ::1, localhost), and HOST is ${JSON.stringify(host)}`;
}

function isHost(host: string): boolean {
  return isIP(host) !== 0 || /^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$/i.test(host);
}

function isLoopback(host: string): boolean {
  return /^localhost$/i.test(host) || host === '::1' || (isIP(host) === 4 && host.startsWith('127.'));
}

const prefix = 'SLUICE_';
/** What Kubernetes puts into every container where there is a Service of the name `sluice`. */
const ofKubernetes = /^SLUICE_(SERVICE|PORT)(_|$)/;

/** Variables that look like ours and are not: misspelt ones are faults, others are worth a word. */
function strangers(env: Environment): { misspelt: string[]; unknown: string[] } {
  const known = [...Object.keys(schema.shape), ...clientVariables].filter((name) => name.startsWith(prefix));
  const ends = known.map((name) => name.slice(prefix.length));
  const secrets = new Set((env.SLUICE_SECRETS ?? '').split(',').map((name) => name.trim()));
  const misspelt: string[] = [];
  const unknown: string[] = [];
  for (const name of Object.keys(env)) {
    if (!name.startsWith(prefix) || known.includes(name) || secrets.has(name) || ofKubernetes.test(name)) continue;
    // Compared without the prefix, which would make everything alike.
    const near = nearName(name.slice(prefix.length), ends);
    if (near === undefined) unknown.push(`${name}: there is no such variable, so it does nothing`);
    else misspelt.push(`${name}: there is no such variable (did you mean ${prefix}${near}?)`);
  }
  return { misspelt, unknown };
}
