/**
 * What operators do with definitions. Each change is one transaction: check against what is stored, write, work out the lane
 * groups again, announce. Once a change has answered, nothing is admitted by the old definition any more.
 */
import { checkDefinition, checkDefinitions, definitionKinds, schemas } from '../domain/check-definitions.ts';
import type { DefinitionKind, Upstream } from '../domain/definitions.ts';
import { ProblemError } from '../domain/errors.ts';
import { permitMs } from '../domain/rate-window.ts';
import { faultsInWords } from '../domain/schema-faults.ts';
import { defaultQueue } from '../domain/submission.ts';
import type { Database } from '../postgres/database.ts';
import {
  announceChange,
  type DefinitionOf,
  highestRevision,
  listStored,
  lockDefinitions,
  readDefinitions,
  readStored,
  removeStored,
  type Stored,
  writeStored,
} from '../postgres/definitions.ts';
import { refreshLaneGroups } from '../postgres/lane-groups.ts';
import { inTransaction, type TransactionClient } from '../postgres/transaction.ts';
import { hasUnfinishedJobs, moveTarget } from '../postgres/unfinished-jobs.ts';
import { readUpstreamCooldowns, type UpstreamCooldown } from '../postgres/upstream-cooldowns.ts';
import type { Clock } from '../system/clock.ts';

export interface DefinitionDependencies {
  readonly database: Database;
  readonly clock: Clock;
  /** Environment variables that headers may use. */
  readonly secrets: ReadonlySet<string>;
}

/** How messages name one of a kind. */
const words: Readonly<Record<DefinitionKind, string>> = {
  upstreams: 'upstream',
  rate_limits: 'rate limit',
  queues: 'queue',
};

/** Throws ProblemError `not_found`. */
export async function getDefinition<K extends DefinitionKind>(
  { database }: DefinitionDependencies,
  kind: K,
  name: string,
): Promise<Stored<K>> {
  return found(await readStored(database, kind, name), kind);
}

/** By name, after `after`; `next` is what to pass as `after` for the rest, null where there is none. */
export async function listDefinitions<K extends DefinitionKind>(
  { database }: DefinitionDependencies,
  kind: K,
  { after, limit }: { after: string; limit: number },
): Promise<{ items: Stored<K>[]; next: string | null }> {
  const items = await listStored(database, kind, after, limit + 1);
  if (items.length <= limit) return { items, next: null };
  items.pop();
  return { items, next: items.at(-1)!.name };
}

/** The live cooldowns of these upstreams, of each those that end last first. */
export function listCooldowns(
  { database }: Pick<DefinitionDependencies, 'database'>,
  upstreams: readonly string[],
): Promise<UpstreamCooldown[]> {
  return readUpstreamCooldowns(database, upstreams);
}

/** Creates or replaces. Throws ProblemError `invalid_definition` with every fault, pointers into `definition`. */
export async function putDefinition<K extends DefinitionKind>(
  deps: DefinitionDependencies,
  kind: K,
  name: string,
  definition: unknown,
): Promise<{ created: boolean; stored: Stored<K> }> {
  return change(deps, async (client) => {
    const faults = checkDefinition(kind, name, definition, await readDefinitions(client), { secrets: deps.secrets });
    if (faults.length > 0) {
      const detail = `the ${words[kind]} ${JSON.stringify(name.slice(0, 80))}: ${faultsInWords(faults)}`;
      throw new ProblemError('invalid_definition', detail, { errors: faults });
    }
    const before = await readStored(client, kind, name);
    const parsed = schemas[kind].parse(definition) as DefinitionOf[K];
    const stored = await write(client, kind, name, parsed, before, await highestRevision(client));
    await publish(client, kind === 'rate_limits' ? [name] : []);
    return { created: before === undefined, stored };
  });
}

/**
 * Throws ProblemError `not_found`, or `in_use` while jobs depend on an upstream or a queue; the queue `default` always has
 * whoever names none depending on it.
 */
export async function deleteDefinition(
  deps: DefinitionDependencies,
  kind: DefinitionKind,
  name: string,
): Promise<void> {
  await change(deps, async (client) => {
    if (kind === 'queues' && name === defaultQueue) {
      throw new ProblemError(
        'in_use',
        `the queue "${defaultQueue}" stays: every item that names no queue goes there; pause it to stop its jobs`,
      );
    }
    found(await readStored(client, kind, name), kind);
    if (kind !== 'rate_limits' && (await hasUnfinishedJobs(client, kind, name))) {
      throw new ProblemError(
        'in_use',
        `jobs that are not done depend on the ${words[kind]} "${name}"; pause it to stop them`,
      );
    }
    await removeStored(client, kind, name);
    await publish(client, []);
  });
}

/** Pauses or resumes an upstream or a queue; one that is so already stays so. Throws ProblemError `not_found`. */
export async function setPaused<K extends 'upstreams' | 'queues'>(
  deps: DefinitionDependencies,
  kind: K,
  name: string,
  paused: boolean,
): Promise<Stored<K>> {
  return change(deps, async (client) => {
    const before = found(await readStored(client, kind, name), kind);
    if (before.definition.paused === paused) return before;
    const stored = await write(
      client,
      kind,
      name,
      { ...before.definition, paused },
      before,
      await highestRevision(client),
    );
    await publish(client, []);
    return stored;
  });
}

/** What a config file did, by pointer, and what it left as it was. */
export interface FileReport {
  readonly created: string[];
  readonly overwritten: string[];
  readonly kept: string[];
}

/**
 * Applies a config file: creates names that are missing, and overwrites stored ones only where its revision (0 where it has
 * none) is higher than theirs, so that a restart never undoes what an operator changed since. All of it or nothing.
 * Throws ProblemError `invalid_definition` with every fault, pointers into the file.
 */
export async function applyConfigFile(deps: DefinitionDependencies, json: unknown): Promise<FileReport> {
  return inTransaction(deps.database, async (client) => {
    await lockDefinitions(client);
    const faults = checkDefinitions(json, await readDefinitions(client), { secrets: deps.secrets });
    if (faults.length > 0) {
      throw new ProblemError('invalid_definition', 'the config file has faults', { errors: faults });
    }
    const file = json as { revision?: number } & Partial<Record<DefinitionKind, Record<string, unknown>>>;
    const revision = file.revision ?? 0;
    const report: FileReport = { created: [], overwritten: [], kept: [] };
    const touchedLimits: string[] = [];
    for (const kind of definitionKinds) {
      for (const [name, definition] of Object.entries(file[kind] ?? {})) {
        const before = await readStored(client, kind, name);
        const fate = before === undefined ? 'created' : before.revision < revision ? 'overwritten' : 'kept';
        report[fate].push(`/${kind}/${name}`);
        if (fate === 'kept') continue;
        await write(client, kind, name, schemas[kind].parse(definition), before, revision);
        if (kind === 'rate_limits') touchedLimits.push(name);
      }
    }
    if (report.created.length + report.overwritten.length > 0) await publish(client, touchedLimits);
    return report;
  });
}

/**
 * Runs a change under the definitions' lock, and then waits until nothing starts any more that was claimed under the old
 * ones: what a worker has claimed starts within `permitMs`, or goes back.
 */
async function change<T>(
  { database, clock }: DefinitionDependencies,
  work: (client: TransactionClient) => Promise<T>,
): Promise<T> {
  const result = await inTransaction(database, async (client) => {
    await lockDefinitions(client);
    return work(client);
  });
  await clock.sleep(permitMs);
  return result;
}

async function write<K extends DefinitionKind>(
  client: TransactionClient,
  kind: K,
  name: string,
  definition: DefinitionOf[K],
  before: Stored<K> | undefined,
  revision: number,
): Promise<Stored<K>> {
  const stored = await writeStored(client, kind, name, definition, revision);
  if (kind === 'upstreams' && before !== undefined) {
    const [from, to] = [before.definition, definition] as [Upstream, Upstream];
    if (targetOf(from) !== targetOf(to)) await moveTarget(client, name);
  }
  return stored;
}

/** What decides whether the other side would recognise a key that it has seen before. */
function targetOf({ base_url, idempotency_header }: Upstream): string {
  return JSON.stringify([new URL(base_url).href.replace(/\/+$/, ''), idempotency_header?.toLowerCase() ?? null]);
}

async function publish(client: TransactionClient, touchedLimits: readonly string[]): Promise<void> {
  await refreshLaneGroups(client, touchedLimits);
  await announceChange(client);
}

function found<K extends DefinitionKind>(stored: Stored<K> | undefined, kind: K): Stored<K> {
  if (stored === undefined) throw new ProblemError('not_found', `there is no ${words[kind]} of this name`);
  return stored;
}
