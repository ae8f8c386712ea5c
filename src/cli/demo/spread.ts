/**
 * Which worker made which calls, read from the attempts on record.
 */
import type { SluiceClient } from '../../client/index.ts';

interface JobWithAttempts {
  readonly attempts: ReadonlyArray<{ readonly worker_id: string }>;
}

/** Reads in flight at once: quick, and no burden on two cores. */
const readsAtOnce = 8;

/** Calls per worker id, throttled and failed ones included. Asks the services in turn. */
export async function callsByWorker(
  apis: readonly SluiceClient[],
  jobIds: readonly string[],
  signal: AbortSignal,
): Promise<Map<string, number>> {
  const calls = new Map<string, number>();
  const left = jobIds.entries();
  const read = async () => {
    for (const [i, id] of left) {
      const api = apis[i % apis.length] as SluiceClient;
      const job = await api.call<JobWithAttempts>('GET', `/v1/jobs/${id}`, { signal });
      for (const { worker_id } of job.attempts) calls.set(worker_id, (calls.get(worker_id) ?? 0) + 1);
    }
  };
  await Promise.all(Array.from({ length: readsAtOnce }, read));
  return calls;
}
