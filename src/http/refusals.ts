/**
 * Which refusals an operation has, for the OpenAPI document: by its nature (a body may be too large, a key may not be known), and
 * of its own (`own`). Held by the fuzz run of the document: an answer with a status that is not listed fails it.
 */
import type { ProblemCode } from '../domain/errors.ts';
import { problems } from './problem-details.ts';

export interface OperationTraits {
  readonly id: string;
  readonly open: boolean;
  /** Its method can have a body, be it that the operation takes none. */
  readonly mayHaveBody: boolean;
  /** Names something in its path. */
  readonly namesOne: boolean;
}

const definition: readonly ProblemCode[] = ['invalid_definition'];
const stateful: readonly ProblemCode[] = ['conflict'];

const own: Readonly<Record<string, readonly ProblemCode[]>> = {
  getReadiness: ['not_ready'],
  putUpstream: definition,
  putRateLimit: definition,
  putQueue: definition,
  deleteUpstream: ['in_use'],
  deleteQueue: ['in_use'],
  submitBatch: [
    'conflict',
    'stream_in_progress',
    'too_many_items',
    'idempotency_key_reused',
    'empty_batch',
    'too_many_requests',
    'not_ready',
  ],
  cancelBatch: stateful,
  closeBatch: stateful,
  resumeBatch: stateful,
  cancelJob: stateful,
  retryJob: stateful,
  getReceipt: ['not_found'],
  putReceipt: ['not_found', 'conflict'],
  putReceiptByPath: stateful,
};

/** Codes by status, in the order of the statuses. */
export function refusalsOf({ id, open, mayHaveBody, namesOne }: OperationTraits): ReadonlyMap<number, ProblemCode[]> {
  const codes: ProblemCode[] = [
    'invalid_request',
    ...(mayHaveBody ? (['malformed_json', 'payload_too_large', 'unsupported_media_type'] as const) : []),
    ...(open ? [] : (['unauthorized', 'forbidden', 'database_unavailable', 'overloaded'] as const)),
    ...(namesOne ? (['not_found'] as const) : []),
    ...(own[id] ?? []),
    'shutting_down',
  ];
  const byStatus = new Map<number, ProblemCode[]>();
  for (const code of [...new Set(codes)].sort((a, b) => problems[a].status - problems[b].status)) {
    const { status } = problems[code];
    byStatus.set(status, [...(byStatus.get(status) ?? []), code]);
  }
  return byStatus;
}

/** `Something depends on it (`in_use`)`. */
export function refusalText(codes: readonly ProblemCode[]): string {
  return codes.map((code) => `${problems[code].title} (\`${code}\`)`).join('. ');
}
