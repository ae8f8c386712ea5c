/**
 * Who may do what: scopes, and on whose behalf a request acts. A key has exactly the scopes that it lists, none implies
 * another. Tenants separate batches, jobs, keys, receipts and lanes; definitions, windows and workers are of the whole.
 */

/** `submit`: bring work and steer it; `read`: look at it; `receipts`: put evidence; `admin`: everything under `/admin`. */
export const scopes = ['submit', 'read', 'receipts', 'admin'] as const;
export type Scope = (typeof scopes)[number];

/** Tenant of everything that no key separates. */
export const defaultTenant = 'default';

export interface Principal {
  readonly tenant: string;
  readonly scopes: ReadonlySet<Scope>;
  /** Id of the stored key that was sent, `bootstrap` for the one of the environment; null: none was. */
  readonly key: string | null;
}
