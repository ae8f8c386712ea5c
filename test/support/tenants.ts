/** Requests as tenants make them: with a key of their own, through an app in the test's process. */
import { createApiKey } from '../../src/application/api-keys.ts';
import { type Scope, scopes } from '../../src/domain/access.ts';
import type { Database } from '../../src/postgres/database.ts';
import type { TestApp } from './app.ts';
import type { Answer } from './intake.ts';

export interface TenantClient {
  readonly key: string;
  send<T>(
    method: 'GET' | 'POST' | 'PUT' | 'DELETE',
    url: string,
    options?: { readonly body?: unknown; readonly headers?: Readonly<Record<string, string>> },
  ): Promise<Answer<T>>;
}

/** With a new key of this tenant; it has all scopes unless they are named. */
export async function tenantClient(
  { database, app }: { readonly database: Database; readonly app: TestApp },
  tenant: string,
  its: readonly Scope[] = scopes,
): Promise<TenantClient> {
  const { key } = await createApiKey({ database }, { name: `of ${tenant}`, tenant, scopes: its });
  return withKey(app, key);
}

export function withKey({ app }: TestApp, key: string): TenantClient {
  return {
    key,
    async send<T>(
      method: 'GET' | 'POST' | 'PUT' | 'DELETE',
      url: string,
      { body, headers = {} }: { body?: unknown; headers?: Readonly<Record<string, string>> } = {},
    ) {
      const answer = await app.inject({
        method,
        url,
        headers: {
          authorization: `Bearer ${key}`,
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
          ...headers,
        },
        ...(body === undefined ? {} : { payload: typeof body === 'string' ? body : JSON.stringify(body) }),
      });
      const text = answer.body;
      return {
        status: answer.statusCode,
        headers: answer.headers,
        body: (/[/+]json\b/.test(String(answer.headers['content-type'])) ? JSON.parse(text) : text) as T,
      };
    },
  };
}
