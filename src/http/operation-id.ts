/**
 * Names of the operations in the OpenAPI document, which generators of clients turn into names of functions: made from method
 * and path, so that a new route has one without saying it. Where the rule gives a bad name the table has a better one.
 */

const named: Readonly<Record<string, string>> = {
  'GET /livez': 'getLiveness',
  'GET /readyz': 'getReadiness',
  'GET /metrics': 'getMetrics',
  'GET /admin/stats': 'getStats',
  'GET /admin/dead-letter': 'listDeadLetters',
  'POST /admin/dead-letter/redrive': 'redriveDeadLetters',
  'POST /admin/rate-windows/{limit}/cooldown': 'coolDownRateWindow',
  'GET /admin/rate-windows/{limit}/audit': 'auditRateWindow',
  'POST /v1/batches': 'submitBatch',
  'GET /v1/batches/{batch_id}/items': 'listBatchItems',
  'GET /v1/batches/{batch_id}/events': 'followBatch',
  'GET /v1/jobs/{job_id}/explain': 'explainJob',
  'GET /v1/receipts': 'getReceipt',
  'PUT /v1/receipts': 'putReceipt',
  'GET /v1/receipts/{key}': 'getReceiptByPath',
  'PUT /v1/receipts/{key}': 'putReceiptByPath',
  'POST /v1/receipts/lookup': 'lookUpReceipts',
};

/** `listBatches`, `getBatch`, `cancelBatch`, … for a path with its parameters as `:name` or `{name}`. */
export function operationId(method: string, url: string): string {
  const path = url.replaceAll(/:(\w+)/g, '{$1}');
  const given = named[`${method} ${path}`];
  if (given !== undefined) return given;
  const parts = path.split('/').filter((part) => part !== '' && part !== 'v1' && part !== 'admin');
  const words = parts.filter((part) => !part.startsWith('{')).map(pascal);
  const last = words.at(-1) ?? 'Root';
  const things = words.slice(0, -1).map(singular).join('');
  if (method === 'POST' && things !== '') return `${last.charAt(0).toLowerCase()}${last.slice(1)}${things}`;
  const ofOne = parts.at(-1)?.startsWith('{') ?? false;
  const one = `${things}${singular(last)}`;
  if (method === 'POST') return `create${one}`;
  if (method === 'GET' && !ofOne) return things === '' ? `list${last}` : `get${things}${last}`;
  return `${method.toLowerCase()}${one}`;
}

function pascal(part: string): string {
  return part.replaceAll(/(?:^|-)(\w)/g, (_all, letter: string) => letter.toUpperCase());
}

function singular(word: string): string {
  return word.replace(/(ch|s)es$/, '$1').replace(/([^s])s$/, '$1');
}
