/**
 * A job as the worker holds it between claim and settle, and the words for its states. The legal transitions are in
 * `state-machine.ts`.
 */

export type JobState = 'scheduled' | 'ready' | 'running' | 'succeeded' | 'failed' | 'held' | 'cancelled' | 'expired';
export type EndedState = 'succeeded' | 'failed' | 'cancelled' | 'expired';
export type Verdict = 'accepted' | 'duplicate' | 'conflict' | 'rejected';
export type KeySource = 'given' | 'derived';
export type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';

/** What a job has spent and sent so far. */
export interface Ledger {
  readonly epoch: number;
  /** Calls started before this one. */
  readonly calls: number;
  readonly attemptsUsed: number;
  readonly throttles: number;
  /**
   * Milliseconds since the first call that may have had an effect, or since a person decided later that the key may go out
   * again, on the database's clock; null: none yet.
   */
  readonly firstSentAgeMs: number | null;
  readonly outcomeUnknown: boolean;
  /** Times in a row that the upstream was asked what became of a call and did not tell. */
  readonly reconcileFailures: number;
}

/** That of a job under its first lease. */
export const firstLedger: Ledger = {
  epoch: 1,
  calls: 0,
  attemptsUsed: 0,
  throttles: 0,
  firstSentAgeMs: null,
  outcomeUnknown: false,
  reconcileFailures: 0,
};

/** A job under a lease of this process, with the request to make. */
export interface ClaimedJob extends Ledger {
  readonly jobId: string;
  readonly batchId: string;
  readonly tenant: string;
  readonly queue: string;
  readonly upstream: string;
  readonly partitionKey: string | null;
  readonly idempotencyKey: string;
  readonly keySource: KeySource;
  /** How many times a person has asked for a new outbound key. */
  readonly freshKeys: number;
  readonly method: Method;
  readonly path: string;
  /** The item's own headers, names in lower case. */
  readonly headers: Readonly<Record<string, string>>;
  /** Bytes to send are exactly this text in UTF-8; null: no body. */
  readonly body: string | null;
  readonly bodyIsText: boolean;
  readonly payloadVersion: string | null;
  /** null: the upstream's `retry.max_attempts`. */
  readonly maxAttempts: number | null;
  readonly cost: number;
  /** How long after the claim query left the request may still be written, in milliseconds; null: no window covers it. */
  readonly permitMs: number | null;
  readonly slotWaitMs: number;
}
