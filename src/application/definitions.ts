/**
 * The definitions in force, kept in memory and never older than what the caller has seen: one cheap query tells whether they
 * have changed.
 */
import type { Definitions } from '../domain/definitions.ts';
import type { Database } from '../postgres/database.ts';
import { readDefinitions, readDefinitionVersion } from '../postgres/definitions.ts';

export class DefinitionStore {
  readonly #database: Database;
  #cached: Definitions | undefined;
  /** Callers that need a newer version wait for the same read; one that began earlier may have missed the change. */
  #reading: Promise<Definitions> | undefined;

  constructor(database: Database) {
    this.#database = database;
  }

  /** As they are now. Throws DatabaseUnavailableError. */
  async current(): Promise<Definitions> {
    const version = await readDefinitionVersion(this.#database);
    // Not "at least": a database that was restored may be behind what is in memory.
    return this.#cached?.version === version ? this.#cached : this.#reload(version);
  }

  /** As they were when they were last read, here: for whom it is enough to be told later that they have changed. Throws DatabaseUnavailableError. */
  async lastKnown(): Promise<Definitions> {
    return this.#cached ?? this.current();
  }

  /** As they were at this version or later: from memory where that is new enough. Throws DatabaseUnavailableError. */
  async atLeast(version: number): Promise<Definitions> {
    return this.#cached !== undefined && this.#cached.version >= version ? this.#cached : this.#reload(version);
  }

  async #reload(version: number): Promise<Definitions> {
    while (this.#reading !== undefined) {
      const joined = await this.#reading;
      if (joined.version >= version) return joined;
    }
    this.#reading = readDefinitions(this.#database);
    try {
      this.#cached = await this.#reading;
      return this.#cached;
    } finally {
      this.#reading = undefined;
    }
  }
}
