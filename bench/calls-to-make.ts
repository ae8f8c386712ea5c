/** The calls that the benches submit: small JSON bodies as a payment API takes them, keys that never come twice. */

export interface BenchItem {
  readonly idempotency_key: string;
  readonly body: object;
}

export function items(prefix: string, count: number): BenchItem[] {
  return Array.from({ length: count }, (_, i) => ({
    idempotency_key: `${prefix}-${i}`,
    body: { amount: i, currency: 'eur', customer: `cus_${i}`, note: 'a note of some length, as such things have' },
  }));
}

/** Bodies of POST /v1/batches, ready to send: `count` items in batches of `size`, all to POST /charges of `upstream`. */
export function batches(
  upstream: string,
  prefix: string,
  count: number,
  { size = 1000, defaults = {} }: { size?: number; defaults?: object } = {},
): string[] {
  const all = items(prefix, count);
  const forAll = { upstream, method: 'POST', path: '/charges', ...defaults };
  return Array.from({ length: Math.ceil(count / size) }, (_, i) =>
    JSON.stringify({ defaults: forAll, items: all.slice(i * size, (i + 1) * size) }),
  );
}
