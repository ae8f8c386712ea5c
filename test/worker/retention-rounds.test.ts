/** When retention steps, by a clock of the test's own. */
import t from 'tap';
import { type Clock, systemClock } from '../../src/system/clock.ts';
import { createLogger } from '../../src/system/logger.ts';
import { RetentionRounds } from '../../src/worker/retention-rounds.ts';
import type { BatchAnswer } from '../support/client.ts';
import { eventually } from '../support/eventually.ts';
import { defaults, type Intake, useIntake } from '../support/intake.ts';
import { ageBatch, endJob } from '../support/old-rows.ts';
import { startWorker } from '../support/worker.ts';

const minuteMs = 60_000;

/** A batch with one job, created that long ago; `endJob` ends it. */
async function oldBatch(intake: Intake, key: string, age: string): Promise<void> {
  const { body } = await intake.post<BatchAnswer>({ defaults, items: [{ idempotency_key: key }] });
  await ageBatch(intake.database, body.batch_id, age);
}

t.test('a round a minute, and a walk from the oldest on an hour', async (t) => {
  const intake = await useIntake(t);
  const { database, count } = intake;
  let nowMs = 0;
  const clock: Clock = { ...systemClock, monotonicMs: () => nowMs };
  const lines: string[] = [];
  const logger = createLogger('info', { write: (line) => lines.push(line) });
  const policy = { retentionDays: 30, keyRetentionDays: 7 };
  const rounds = new RetentionRounds({ database, clock, logger, policy });
  const turnAt = async (ms: number) => {
    nowMs = ms;
    await rounds.turn();
    return count('batches');
  };
  await oldBatch(intake, 'straggler', '90 days');
  await oldBatch(intake, 'first', '80 days');
  await endJob(database, 'first', '70 days');
  t.equal(await turnAt(0), 1, 'the first round is at once');
  t.match(JSON.parse(lines.at(-1)!), { keys: 1, batches: 1, jobs: 1 });

  await endJob(database, 'straggler', '31 days');
  await oldBatch(intake, 'second', '70 days');
  await endJob(database, 'second', '60 days');
  t.equal(await turnAt(0.7 * minuteMs), 2, 'none is due');
  t.equal(await turnAt(1.3 * minuteMs), 1, 'the second batch is after the first');
  for (let minutes = 3; minutes < 57; minutes += 2) await turnAt(minutes * minuteMs);
  t.equal(await count('batches'), 1, 'the straggler is not asked after in each round');
  await turnAt(61 * minuteMs);
  t.equal(await turnAt(63 * minuteMs), 0, 'but in the next walk');
  t.equal(lines.length, 3, 'rounds that find nothing say nothing');
});

t.test('where nothing is kept, what ends later does not wait for an hour', async (t) => {
  const intake = await useIntake(t);
  const { database, count } = intake;
  let nowMs = 0;
  const clock: Clock = { ...systemClock, monotonicMs: () => nowMs };
  const policy = { retentionDays: 0, keyRetentionDays: 0 };
  const rounds = new RetentionRounds({ database, clock, logger: createLogger('silent'), policy });
  await oldBatch(intake, 'k', '1 second');
  await rounds.turn();
  t.equal(await count('batches'), 1);
  await endJob(database, 'k', '0 seconds');
  for (let minutes = 2; minutes < 7; minutes += 2) {
    nowMs = minutes * minuteMs;
    await rounds.turn();
  }
  t.equal(await count('batches'), 0);
  t.equal(await count('idempotency_keys'), 0);
});

t.test('a worker does it by itself', async (t) => {
  const intake = await useIntake(t);
  await oldBatch(intake, 'k', '90 days');
  await endJob(intake.database, 'k', '60 days');
  await startWorker(t, { connectionString: intake.connectionString });
  await eventually('the batch to go', async () => (await intake.count('batches')) === 0);
  t.equal(await intake.count('jobs'), 0);
});
