/**
 * A batch as it was sent, read and checked for shape, before anything is known of definitions and stored keys. Each item
 * stands alone: what is wrong with one is told in its own faults and touches no other.
 */
import type { Fault } from './errors.ts';
import type { JobState, KeySource, Method, Verdict } from './job.ts';

/** Most items in one JSON batch. */
export const maxItems = 10_000;
/** The queue of items that name none. */
export const defaultQueue = 'default';
/** Deeper JSON is refused as a whole (RFC 8259 section 9 leaves the bound to us); far beyond any use, far below the stack. */
export const maxNesting = 512;

/** The call that an item asks for, with the batch's defaults filled in. */
export interface RequestedJob {
  readonly key: string;
  readonly keySource: KeySource;
  /** Hex SHA-256 of the call; see domain/idempotency.ts. */
  readonly fingerprint: string;
  readonly upstream: string;
  readonly queue: string;
  readonly method: Method;
  readonly path: string;
  /** Names in lower case; null: none. */
  readonly headers: Readonly<Record<string, string>> | null;
  /** JSON text of the body, or of the text to send as a JSON string; null: no body. */
  readonly body: string | null;
  readonly bodyIsText: boolean;
  readonly partitionKey: string | null;
  /** Higher first. */
  readonly priority: number;
  /** RFC 3339 in UTC; null: now. */
  readonly runAt: string | null;
  /** RFC 3339 in UTC; null: never. */
  readonly expiresAt: string | null;
  readonly cost: number;
  /** null: the upstream's. */
  readonly maxAttempts: number | null;
  readonly payloadVersion: string | null;
}

/** What the definitions have a say in. */
export type JobTerms = Pick<RequestedJob, 'upstream' | 'queue' | 'cost' | 'priority' | 'headers'>;

/** One item, in its place. */
export interface SubmittedItem {
  /** null: none was given and none derived, or it is not a legal key. */
  readonly key: string | null;
  readonly keySource: KeySource | null;
  /** null exactly where the shape is at fault. */
  readonly job: RequestedJob | null;
  /** Of an item without a job, as far as they can be read, so that all that is wrong with it is told at once. */
  readonly terms?: JobTerms | undefined;
  /** What is wrong, with pointers from the root of what was sent. */
  readonly faults: readonly Fault[];
}

export interface Submission {
  readonly correlationId: string | null;
  readonly items: readonly SubmittedItem[];
}

/** The request's own idempotency, from its `Idempotency-Key` header. */
export interface RequestKey {
  readonly key: string;
  /** Hex SHA-256 of the RFC 8785 form of the body. */
  readonly fingerprint: string;
}

/** What became of one item. */
export interface ItemVerdict {
  readonly index: number;
  readonly key: string | null;
  readonly keySource: KeySource | null;
  readonly verdict: Verdict;
  readonly jobId: string | null;
  /** Of the job at the time of the verdict; null: there is none, or its rows are gone. */
  readonly jobState: JobState | null;
  readonly faults: readonly Fault[];
}

/** What became of a batch: the answer to its submission, in full. */
export interface BatchVerdict {
  readonly batchId: string;
  readonly createdAt: Date;
  readonly correlationId: string | null;
  readonly items: readonly ItemVerdict[];
}
