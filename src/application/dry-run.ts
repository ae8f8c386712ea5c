/**
 * What would become of a batch, were it submitted now: the verdicts of its items and when it would be done. Nothing is stored,
 * locked or taken: no key, no lane, no batch, no window. It binds nobody: a moment later the answer may be another one.
 */
import { keyVerdicts } from '../domain/idempotency.ts';
import type { Verdict } from '../domain/job.ts';
import { isEnded } from '../domain/state-machine.ts';
import type { ItemVerdict, RequestKey, Submission, SubmittedItem } from '../domain/submission.ts';
import { reusedKey } from '../postgres/insert-batch.ts';
import { readClock } from '../postgres/read-clock.ts';
import { readKnownKeys } from '../postgres/take-keys.ts';
import { type Eta, estimateSubmission } from './estimate.ts';
import { createDefinitionCheck, findReplay, type SubmitDependencies } from './submit-batch.ts';

export interface DryRun {
  /** By the database's clock. */
  readonly at: Date;
  readonly correlationId: string | null;
  /** `jobId` is null where the batch itself would make the job. */
  readonly items: readonly ItemVerdict[];
  readonly eta: Eta | null;
}

/**
 * Throws a ProblemError `idempotency_key_reused` where the request key is known with another body, as a submission would. Where
 * it is known with the same one, the verdicts are those of the items as they are known now, and not the first answer again.
 */
export async function dryRunBatch(
  deps: SubmitDependencies,
  tenant: string,
  { correlationId, items }: Submission,
  requestKey: RequestKey | null,
): Promise<DryRun> {
  const { database, definitions } = deps;
  if (requestKey !== null) await findReplay(database, tenant, requestKey);
  const check = createDefinitionCheck(await definitions.current());
  const checked = items.map((item, index) => check(item, `/items/${index}`));
  const keyed = checked.map(({ job, faults }) =>
    job === null ? null : { key: job.key, fingerprint: job.fingerprint, acceptable: faults.length === 0 },
  );
  const keys = [...new Set(keyed.flatMap((item) => (item === null ? [] : [item.key])))];
  const known = await readKnownKeys(
    database,
    tenant,
    keys.map((key) => [key, null]),
  );
  const nowUs = await readClock(database);
  const decided = keyVerdicts(keyed, known);
  const scheduledOf = ({ job }: SubmittedItem) => job!.runAt !== null && Date.parse(job!.runAt) * 1_000 > nowUs;
  const verdicts = decided.map((each, index): ItemVerdict => {
    const { key, keySource, faults } = checked[index]!;
    const { verdict } = each;
    const base = { index, key, keySource, verdict, jobId: null, jobState: null, faults: [] };
    if (verdict === 'rejected') return { ...base, faults };
    const first = 'first' in each ? each.first : index;
    const known = 'known' in each ? each.known : null;
    const jobId = known?.jobId ?? null;
    if (verdict === 'conflict') return { ...base, jobId, faults: [reusedKey(index)] };
    const jobState = known === null ? (scheduledOf(checked[first]!) ? 'scheduled' : 'ready') : known.jobState;
    return { ...base, jobId, jobState };
  });
  return { at: new Date(Math.floor(nowUs / 1_000)), correlationId, items: verdicts, eta: await etaOf() };

  async function etaOf(): Promise<Eta | null> {
    const behind = verdicts.filter(({ verdict, jobState }) => counts(verdict) && jobState !== null);
    const unfinished = behind.filter(({ jobState }) => !isEnded(jobState!));
    // Held is no end, and a person decides it.
    if (unfinished.length === 0 || unfinished.some(({ jobState }) => jobState === 'held')) return null;
    return estimateSubmission(database, {
      tenant,
      jobs: verdicts.flatMap(({ verdict }, index) => (verdict === 'accepted' ? [checked[index]!.job!] : [])),
      jobIds: [...new Set(unfinished.flatMap(({ jobId }) => jobId ?? []))],
      nowUs,
    });
  }
}

function counts(verdict: Verdict): boolean {
  return verdict === 'accepted' || verdict === 'duplicate';
}
