/** Conflicts and lost connections under what people and receivers decide about jobs: repeated, or a 503 that can be asked again. */
import t, { type Test } from 'tap';
import { faultPointsOf } from '../support/fault-points.ts';
import { type Intake, useIntake } from '../support/intake.ts';

interface Decision {
  readonly name: string;
  readonly method: 'POST' | 'PUT';
  readonly url: (jobId: string) => string;
  readonly leads: string;
}

const decisions: readonly Decision[] = [
  { name: 'cancel', method: 'POST', url: (id) => `/v1/jobs/${id}/cancel`, leads: 'cancelled' },
  { name: 'retry', method: 'POST', url: (id) => `/v1/jobs/${id}/retry`, leads: 'ready' },
  { name: 'receipt', method: 'PUT', url: () => '/v1/receipts?key=K', leads: 'succeeded' },
];

/** One job, scheduled, or held where it shall be retried. */
async function setup(t: Test, { name, method, url }: Decision, plan: string) {
  const faultPoints = faultPointsOf(plan);
  const intake = await useIntake(t, { faultPoints });
  const [item] = await intake.submit([{ idempotency_key: 'K', run_at: '2999-01-01T00:00:00Z' }]);
  const jobId = item!.job_id!;
  if (name === 'retry') {
    await intake.database.query(
      `update sluice.parked_jobs set state = 'held', reason = 'outcome_unknown', due_at = null`,
    );
    await intake.database.query('update sluice.jobs set run_at = null');
  }
  const before = await stateOf(intake);
  const decide = async () => {
    const { statusCode, headers } = await intake.app.app.inject({ method, url: url(jobId), payload: {} });
    return { status: statusCode, retryAfter: headers['retry-after'] };
  };
  return { intake, before, decide, faultPoints };
}

async function stateOf({ database }: Intake): Promise<string> {
  const rows = await database.query<{ state: string }>(
    `select state from sluice.parked_jobs union all select state from sluice.done_jobs
      union all select 'ready' from sluice.ready_jobs`,
  );
  return rows.map(({ state }) => state).join();
}

for (const decision of decisions) {
  t.test(`${decision.name}: three conflicts are repeated, a fourth is a 503 that changes nothing`, async (t) => {
    const { intake, before, decide, faultPoints } = await setup(
      t,
      decision,
      'decision.before_commit=40001,40P01*3,57P01,40001*3',
    );
    t.match(await decide(), { status: 503, retryAfter: /^[1-9]\d*$/ });
    t.equal(faultPoints.passed('decision.before_commit'), 4);
    t.equal(await stateOf(intake), before);
    t.match(await decide(), { status: 503 }, 'a connection that is lost');
    t.equal(await stateOf(intake), before);
    t.match(await decide(), { status: 200 });
    t.equal(await stateOf(intake), decision.leads);
  });

  t.test(`${decision.name}: committed, and the answer lost: 503, and asked again it says so`, async (t) => {
    const { intake, decide } = await setup(t, decision, 'decision.after_commit=57P01');
    t.match(await decide(), { status: 503, retryAfter: /^[1-9]\d*$/ });
    t.equal(await stateOf(intake), decision.leads);
    t.match(await decide(), { status: 409 });
    t.equal(await stateOf(intake), decision.leads);
  });
}
