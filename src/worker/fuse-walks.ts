/**
 * Moves the jobs of batches whose fuse has blown out of the claims' way, and back where a resume was broken off or is large.
 * Each process walks by itself; where two walk the same batch, the second finds less to do. Decides nothing about what is held
 * (postgres/fuses.ts).
 */
import { fuseStepSize } from '../application/resume.ts';
import type { Database } from '../postgres/database.ts';
import { type FuseMove, findFuseMoves, moveBehindFuse } from '../postgres/fuses.ts';
import type { Clock } from '../system/clock.ts';
import type { Logger } from '../system/logger.ts';

/** Batches looked at in one turn. */
const mostBatches = 20;
/** Steps of one turn end after this long: whoever waits for other maintenance waits no longer for it. */
const turnMs = 1_000;

export interface FuseWalkOptions {
  readonly database: Database;
  readonly clock: Clock;
  readonly logger: Logger;
}

export class FuseWalks {
  readonly #options: FuseWalkOptions;
  /** Where the walk of each move goes on. */
  #places = new Map<string, { readonly after: string; readonly moved: number }>();

  constructor(options: FuseWalkOptions) {
    this.#options = options;
  }

  /** Some steps, where there is something to move. Gives whether there is more. */
  async turn(): Promise<boolean> {
    const { database, clock } = this.#options;
    const startMs = clock.monotonicMs();
    const moves = await findFuseMoves(database, null, mostBatches);
    const names = new Set(moves.map(nameOf));
    this.#places = new Map([...this.#places].filter(([name]) => names.has(name)));
    for (const move of moves) {
      for (let isOver = false; !isOver; ) {
        if (clock.monotonicMs() - startMs >= turnMs) return true;
        isOver = await this.#step(move);
      }
    }
    return moves.length === mostBatches;
  }

  async #step(move: FuseMove): Promise<boolean> {
    const { database, logger } = this.#options;
    const name = nameOf(move);
    const place = this.#places.get(name);
    const { after, moved } = await moveBehindFuse(database, move, place?.after ?? null, fuseStepSize);
    const all = (place?.moved ?? 0) + moved;
    if (after !== null) {
      this.#places.set(name, { after, moved: all });
      return false;
    }
    this.#places.delete(name);
    if (move.state === 'holding') {
      logger.warn({ batch_id: move.batchId, jobs: all }, 'a fuse has blown: the rest of the batch is held');
    } else {
      logger.info({ batch_id: move.batchId, jobs: all }, 'a batch that a fuse held goes on');
    }
    return true;
  }
}

function nameOf({ batchId, state, sinceUs }: FuseMove): string {
  return `${batchId}/${state}/${sinceUs}`;
}
