/**
 * Tells when permits keep running out before requests can be sent: the claim's round trip to PostgreSQL, or the opening of a
 * connection to the upstream, takes longer than a permit is good for. Such jobs go back unspent and are tried again, so
 * nothing else would show it.
 */
import { permitMs } from '../domain/rate-window.ts';
import type { Clock } from '../system/clock.ts';
import type { Logger } from '../system/logger.ts';

/** That many in a row, of any upstream, are no accident. */
const suspicious = 20;
const silenceMs = 30_000;

export class PermitWatch {
  readonly #clock: Clock;
  readonly #logger: Logger;
  #inRow = 0;
  #claimMs = 0;
  #nextWarningMs = 0;

  constructor({ clock, logger }: { readonly clock: Clock; readonly logger: Logger }) {
    this.#clock = clock;
    this.#logger = logger;
  }

  /** How long the last claim took, in milliseconds. */
  claimed(claimMs: number): void {
    this.#claimMs = claimMs;
  }

  /** A call under a permit was made. */
  used(): void {
    this.#inRow = 0;
  }

  /** A permit ran out before its call. */
  expired(upstream: string): void {
    this.#inRow += 1;
    const now = this.#clock.monotonicMs();
    if (this.#inRow < suspicious || now < this.#nextWarningMs) return;
    this.#nextWarningMs = now + silenceMs;
    this.#logger.warn(
      { upstream, in_row: this.#inRow, claim_ms: Math.round(this.#claimMs), permit_ms: permitMs },
      'permits run out before requests can be sent: PostgreSQL or the upstream is too far away, or this process too busy',
    );
  }
}
