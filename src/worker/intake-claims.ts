/**
 * What this worker has of intakes of its own process, in the commit that stores the jobs (postgres/claim-at-intake.ts): slots are kept
 * from before the statement leaves until it is known what became of it, and the jobs count as known here all that time.
 */
import type { ClaimedJob } from '../domain/job.ts';
import type { IntakeClaimer, ReservedSlots } from '../postgres/intake-reservation.ts';
import { type Clock, endOfTurn } from '../system/clock.ts';
import type { Slots } from './slots.ts';

export interface IntakeClaimsOptions {
  readonly clock: Clock;
  readonly workerId: string;
  readonly slots: Pick<Slots<unknown>, 'free' | 'reserve' | 'release'>;
  /** Whether jobs that come now are this worker's next. */
  readonly isOpen: () => boolean;
  /** Takes over the jobs, and the slots that are kept for them, at once; resolves when their calls have begun. */
  readonly onClaim: (claim: ClaimAtIntake) => Promise<void>;
  /** Slots that were kept are free again. */
  readonly onFreed: () => void;
  /** The jobs may be leased to this worker, and nobody will say so. */
  readonly onLost: () => void;
}

export interface ClaimAtIntake {
  readonly jobs: readonly ClaimedJob[];
  readonly definitionsVersion: number;
  /** Before the statement left, by both clocks. */
  readonly startedAtMs: number;
  readonly startedWallMs: number;
}

export class IntakeClaims implements IntakeClaimer {
  readonly workerId: string;
  readonly #options: IntakeClaimsOptions;
  readonly #underWay = new Set<readonly string[]>();
  #onEnd: (() => void) | undefined;

  constructor(options: IntakeClaimsOptions) {
    this.#options = options;
    this.workerId = options.workerId;
  }

  /** Jobs that the store may know as this worker's before it does itself. */
  get jobIds(): string[] {
    return [...this.#underWay].flat();
  }

  reserve(jobIds: readonly string[]): ReservedSlots | null {
    const { clock, slots, isOpen, onClaim, onFreed, onLost } = this.#options;
    if (!isOpen() || slots.free < jobIds.length) return null;
    const startedAtMs = clock.monotonicMs();
    const startedWallMs = clock.wallMs();
    const release = () => {
      slots.release(jobIds.length);
      onFreed();
    };
    slots.reserve(jobIds.length);
    this.#underWay.add(jobIds);
    return {
      claimed: async (jobs, definitionsVersion) => {
        const begun = onClaim({ jobs, definitionsVersion, startedAtMs, startedWallMs });
        this.#ended(jobIds);
        await begun;
        // undici writes to a socket that has been idle only at the end of this turn.
        await endOfTurn();
      },
      unused: () => {
        release();
        this.#ended(jobIds);
      },
      lost: () => {
        release();
        onLost();
        this.#ended(jobIds);
      },
    };
  }

  /** Resolves when none is under way. */
  async ended(): Promise<void> {
    if (this.#underWay.size === 0) return;
    await new Promise<void>((resolve) => {
      this.#onEnd = resolve;
    });
  }

  #ended(jobIds: readonly string[]): void {
    this.#underWay.delete(jobIds);
    if (this.#underWay.size === 0) this.#onEnd?.();
  }
}
