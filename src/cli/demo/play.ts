/**
 * The demo's acts in order: set up, a batch with all four verdicts, the main batch, the proof. Sets up through the stage and
 * leaves it to its caller to clear that.
 */

import { type BatchAnswer, type BatchInput, type BatchItem, SluiceClient } from '../../client/index.ts';
import type { UpstreamProcess } from '../../simulator/upstream-process.ts';
import { systemClock } from '../../system/clock.ts';
import { displayFor, watchBatch } from './progress.ts';
import { prove } from './proof.ts';
import type { Environment, Replica } from './replica.ts';
import { proofTable, spreadTable, verdictTable } from './report.ts';
import type { Scenario } from './scenario.ts';
import * as scenes from './scenario.ts';
import { callsByWorker } from './spread.ts';
import type { Stage } from './stage.ts';

export interface PlayOptions {
  readonly stage: Stage;
  readonly databaseUrl: string | undefined;
  readonly environment: Environment;
  readonly out: NodeJS.WriteStream;
  /** Aborts between steps and during every wait. */
  readonly signal: AbortSignal;
}

interface Cast {
  readonly upstream: UpstreamProcess;
  readonly replicas: readonly Replica[];
  /** One client per replica. */
  readonly apis: readonly [SluiceClient, ...SluiceClient[]];
}

/** Whether the proof holds. Rejects when aborted, and where something did not start or answer. */
export async function play(scenario: Scenario, options: PlayOptions): Promise<boolean> {
  const { out, signal } = options;
  const say = (text: string) => out.write(`${text}\n`);
  const startedMs = systemClock.monotonicMs();

  say(
    `Sluice demo: ${counted(scenario.items, 'call')}, at most ${scenario.limit} a second, ${counted(scenario.replicas, 'replica')}\n`,
  );
  const cast = await setUp(scenario, options, say);
  const [api] = cast.apis;
  const submit = (batch: BatchInput | string) => api.submitBatch(batch, { signal });
  say(`  ready      after ${secondsSince(startedMs)}\n`);

  say('A batch with all four verdicts');
  const verdicts = await submit(JSON.stringify(scenes.verdictBatch(scenario)));
  say(`${verdictTable(verdicts)}\n`);

  const main = await submit(scenes.mainBatch(scenario));
  say(`The main batch: ${main.counts.accepted} of ${counted(scenario.items, 'item')} accepted`);
  const longestMs = scenes.longestRunMs(scenario);
  const display = displayFor(out, scenario.items);
  const mainStartedMs = systemClock.monotonicMs();
  const watch = { limit: scenario.name, longestMs, signal };
  const last = await watchBatch(api, { ...watch, batchId: main.batch_id, display });
  say(`  ${last.status} after ${secondsSince(mainStartedMs)}\n`);
  await watchBatch(api, { ...watch, batchId: verdicts.batch_id });

  const items = [...(await allItems(api, verdicts, signal)), ...(await allItems(api, main, signal))];
  const log = await cast.upstream.log();
  const proof = prove(items, log, scenario.limit, scenes.periodSeconds * 1000);
  say("By the upstream's own books");
  say(proofTable(proof, log));
  if (scenario.replicas > 1) {
    const jobIds = items.filter(({ verdict }) => verdict === 'accepted').map(({ job_id }) => job_id as string);
    say(`\nCalls by worker\n${spreadTable(await callsByWorker(cast.apis, jobIds, signal), cast.replicas)}`);
  }
  say(`\n${proof.passed ? 'Passed' : 'FAILED'} in ${secondsSince(startedMs)}`);
  return proof.passed;
}

async function setUp(scenario: Scenario, options: PlayOptions, say: (text: string) => void): Promise<Cast> {
  const { stage, databaseUrl, environment, signal } = options;
  const [upstream, database] = await Promise.all([stage.startUpstream(), databaseUrl ?? stage.startDatabase()]);
  signal.throwIfAborted();
  say(`  database   ${databaseUrl === undefined ? 'an embedded PostgreSQL, for this run' : 'the one of DATABASE_URL'}`);
  say(`  upstream   ${upstream.url} with ${scenes.faultsInWords}`);

  const replicas = await stage.startReplicas(scenario.replicas, database, environment);
  signal.throwIfAborted();
  say(`  service    ${replicas.map(({ url }) => url).join(', ')}`);

  const [first, ...others] = replicas.map(({ url }) => new SluiceClient({ baseUrl: url }));
  if (first === undefined) throw new RangeError('a demo needs at least one replica');
  const { name } = scenario;
  await first.admin.upstreams.put(name, scenes.upstreamDefinition(upstream.url), { signal });
  await first.admin.rateLimits.put(name, scenes.rateLimitDefinition(scenario), { signal });
  return { upstream, replicas, apis: [first, ...others] };
}

async function allItems(api: SluiceClient, batch: BatchAnswer, signal: AbortSignal): Promise<BatchItem[]> {
  const items: BatchItem[] = [];
  for await (const item of api.batchItems(batch.batch_id, {}, { signal })) items.push(item);
  return items;
}

function counted(count: number, what: string): string {
  return `${count} ${what}${count === 1 ? '' : 's'}`;
}

function secondsSince(startMs: number): string {
  return `${((systemClock.monotonicMs() - startMs) / 1000).toFixed(1)} s`;
}
