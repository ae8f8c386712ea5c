/**
 * The legal transitions of a job, in one table: stores move jobs along it, tests and the documented diagram follow it.
 * Where a job's state is kept (which table its row is in) is the store's; what makes it move is `settle.ts` and the use
 * cases.
 */
import type { EndedState, JobState } from './job.ts';

export interface Transition {
  /** null: the job comes into being. */
  readonly from: JobState | null;
  readonly to: JobState;
  readonly when: string;
}

const ended: ReadonlySet<JobState> = new Set(['succeeded', 'failed', 'cancelled', 'expired'] satisfies EndedState[]);
const waiting = ['scheduled', 'ready', 'held'] as const satisfies readonly JobState[];

export const transitions: readonly Transition[] = [
  { from: null, to: 'ready', when: 'accepted' },
  { from: null, to: 'scheduled', when: 'accepted with run_at in the future' },
  { from: null, to: 'held', when: 'accepted into a batch that a fuse holds' },
  { from: 'scheduled', to: 'ready', when: 'its time has come' },
  { from: 'ready', to: 'running', when: 'claimed: every window had room and a worker a slot' },
  { from: 'ready', to: 'failed', when: 'cost_exceeds_limit' },
  { from: 'running', to: 'ready', when: 'throttled, handed back, or its permit or lease expired' },
  { from: 'running', to: 'scheduled', when: 'failed in a way that may pass: waits for its next attempt' },
  {
    from: 'running',
    to: 'succeeded',
    when: 'the upstream answered with a success, or said when asked that it was applied, or the receiver put a receipt',
  },
  { from: 'running', to: 'failed', when: 'rejected_by_upstream, attempts_exhausted, throttled_too_long' },
  { from: 'running', to: 'held', when: 'outcome_unknown, fuse' },
  { from: 'scheduled', to: 'held', when: 'upstream_changed, fuse, or expired while its outcome is unknown' },
  { from: 'ready', to: 'held', when: 'upstream_changed, fuse, or expired while its outcome is unknown' },
  { from: 'scheduled', to: 'expired', when: 'expires_at passed before a start' },
  { from: 'ready', to: 'expired', when: 'expires_at passed before a start' },
  { from: 'held', to: 'ready', when: 'a person retries, redrives or resumes it' },
  { from: 'held', to: 'scheduled', when: 'a person retries, redrives or resumes it before its time' },
  ...waiting.map((from) => ({ from, to: 'cancelled', when: 'cancelled by a person' }) as const),
  ...waiting.map((from) => ({ from, to: 'succeeded', when: 'the receiver put a receipt' }) as const),
  { from: 'failed', to: 'ready', when: 'a person retries or redrives it' },
  { from: 'failed', to: 'scheduled', when: 'a person retries or redrives it before its run_at' },
  // No dead letters: nobody sends them again in bulk.
  ...(['cancelled', 'expired'] as const).flatMap((from) => [
    { from, to: 'ready', when: 'a person retries it' } as const,
    { from, to: 'scheduled', when: 'a person retries it before its run_at' } as const,
  ]),
];

export function isLegalTransition(from: JobState | null, to: JobState): boolean {
  return transitions.some((transition) => transition.from === from && transition.to === to);
}

export function isEnded(state: JobState): state is EndedState {
  return ended.has(state);
}
