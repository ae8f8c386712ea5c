/** Intake without workers: an app on a database of its own, an upstream `api`, and requests as a client makes them. */
import type { Test } from 'tap';
import { putDefinition } from '../../src/application/manage-definitions.ts';
import { type ReadSubmission, readSubmission } from '../../src/http/read-submission.ts';
import type { Database } from '../../src/postgres/database.ts';
import type { BatchToInsert } from '../../src/postgres/insert-batch-rows.ts';
import { createTestApp, type TestApp } from './app.ts';
import type { BatchAnswer, VerdictItem } from './client.ts';
import { createTestDatabase, type TestDatabaseOptions } from './database.ts';
import { definitionDependencies } from './definitions.ts';

export interface Answer<T> {
  readonly status: number;
  readonly headers: Readonly<Record<string, unknown>>;
  readonly body: T;
}

/** As in RFC 9457, with the members of this service. */
export interface Problem {
  readonly status: number;
  readonly code: string;
  readonly detail: string;
  readonly errors: ReadonlyArray<{ readonly pointer?: string; readonly code: string; readonly message: string }>;
}

export type Item = Readonly<Record<string, unknown>>;

export interface Intake {
  readonly database: Database;
  readonly connectionString: string;
  readonly app: TestApp;
  putUpstream(name: string, definition?: object): Promise<void>;
  putLimit(name: string, definition: object): Promise<void>;
  putQueue(name: string, definition: object): Promise<void>;
  /** POST /v1/batches; text and bytes go as they are. */
  post<T = BatchAnswer>(body: unknown, headers?: Readonly<Record<string, string>>): Promise<Answer<T>>;
  /** Items whose calls go to POST /charges of `api` unless they say otherwise; gives the verdicts. */
  submit(items: readonly unknown[], more?: object): Promise<readonly VerdictItem[]>;
  get<T>(path: string): Promise<Answer<T>>;
  /** Rows of a table in `sluice`. */
  count(table: string): Promise<number>;
}

export const defaults = { upstream: 'api', path: '/charges' } as const;

export async function useIntake(t: Test, options: TestDatabaseOptions = {}): Promise<Intake> {
  const { database, connectionString } = await createTestDatabase(t, { max: 4, ...options });
  const deps = definitionDependencies(database);
  const app = await createTestApp(t, database);
  const intake: Intake = {
    database,
    connectionString,
    app,
    async putUpstream(name, definition = {}) {
      await putDefinition(deps, 'upstreams', name, { base_url: 'https://api.example.test', ...definition });
    },
    async putLimit(name, definition) {
      await putDefinition(deps, 'rate_limits', name, definition);
    },
    async putQueue(name, definition) {
      await putDefinition(deps, 'queues', name, definition);
    },
    async post<T>(body: unknown, headers: Readonly<Record<string, string>> = {}) {
      const payload = typeof body === 'string' || Buffer.isBuffer(body) ? body : JSON.stringify(body);
      const answer = await app.app.inject({
        method: 'POST',
        url: '/v1/batches',
        headers: { 'content-type': 'application/json', ...headers },
        payload,
      });
      return { status: answer.statusCode, headers: answer.headers, body: answer.json<T>() };
    },
    async submit(items, more = {}) {
      const { status, body } = await intake.post({ defaults, items, ...more });
      if (status !== 202) throw new Error(`answered ${status}: ${JSON.stringify(body)}`);
      return body.items;
    },
    async get<T>(path: string) {
      const answer = await app.app.inject(path);
      return { status: answer.statusCode, headers: answer.headers, body: answer.json<T>() };
    },
    async count(table) {
      const [row] = await database.query<{ count: number }>(`select count(*)::int as count from sluice.${table}`);
      return row!.count;
    },
  };
  await intake.putUpstream('api');
  return intake;
}

/** A submission as the HTTP side reads it, for tests of what is below. */
export function submissionOf(items: readonly unknown[], more: object = {}): ReadSubmission['submission'] {
  return readSubmission(JSON.stringify({ defaults, items, ...more })).submission;
}

/** The same as the store takes it, checked against the definitions that are in force. */
export async function batchOf(
  database: Database,
  items: readonly unknown[],
  requestKey: string | null = null,
): Promise<BatchToInsert> {
  const [row] = await database.query<{ version: number }>('select version from sluice.definition_version');
  const key = requestKey === null ? null : { key: requestKey, fingerprint: '00'.repeat(32) };
  return { tenant: 'default', requestKey: key, definitionsVersion: row!.version, ...submissionOf(items) };
}

/** Codes of an item's errors. */
export function codesOf(item: VerdictItem | undefined): string[] {
  return item?.errors?.map(({ code }) => code) ?? [];
}
