/**
 * What things live in that have to be taken down again: a test of tap, or for a program of its own a list that is worked off
 * backwards.
 */

/** The part of a test that whoever starts something needs. */
export interface Scope {
  /** Called when the scope ends; what was added last goes first. */
  teardown(work: () => unknown): unknown;
}

export class OwnScope implements Scope {
  readonly #works: Array<() => unknown> = [];
  #closed: Promise<void> | undefined;

  teardown(work: () => unknown): void {
    this.#works.push(work);
  }

  /** Goes on where a work fails, and gives what failed. Called again it waits for the first time. */
  async close(onError: (error: unknown) => void): Promise<void> {
    this.#closed ??= this.#workOff(onError);
    await this.#closed;
  }

  async #workOff(onError: (error: unknown) => void): Promise<void> {
    for (let work = this.#works.pop(); work !== undefined; work = this.#works.pop()) {
      try {
        await work();
      } catch (error) {
        onError(error);
      }
    }
  }
}
