/** Conflicts and lost connections inside a POST: repeated a few times, then 503 and when to come again, never a bare 500. */
import t from 'tap';
import { numberedItems } from '../support/client.ts';
import { faultPointsOf } from '../support/fault-points.ts';
import { defaults, type Problem, useIntake } from '../support/intake.ts';

const items = numberedItems('order', 5);

for (const sqlState of ['40001', '40P01']) {
  t.test(`${sqlState} three times inside a POST: repeated, and accepted`, async (t) => {
    const faultPoints = faultPointsOf(`intake.before_commit=${sqlState}*3`);
    const intake = await useIntake(t, { faultPoints });
    t.match(await intake.post({ defaults, items }), { status: 202, body: { counts: { accepted: 5 } } });
    t.equal(faultPoints.passed('intake.before_commit'), 4);
    t.equal(await intake.count('jobs'), 5);
  });

  t.test(`${sqlState} a fourth time: 503 that says when to come again, and nothing is stored`, async (t) => {
    const faultPoints = faultPointsOf(`intake.before_commit=${sqlState}*4`);
    const intake = await useIntake(t, { faultPoints });
    const answer = await intake.post<Problem>({ defaults, items });
    t.match(answer, {
      status: 503,
      headers: { 'content-type': 'application/problem+json', 'retry-after': /^[1-9]\d*$/ },
      body: { status: 503, code: 'database_unavailable' },
    });
    t.equal(faultPoints.passed('intake.before_commit'), 4, 'three repeats');
    for (const table of ['batches', 'batch_items', 'jobs', 'ready_jobs', 'idempotency_keys']) {
      t.equal(await intake.count(table), 0, table);
    }
    t.match(await intake.post({ defaults, items }), { status: 202, body: { counts: { accepted: 5 } } }, 'it is over');
  });
}

t.test('a connection that is lost before the commit is a 503; sent again, all is accepted', async (t) => {
  const intake = await useIntake(t, { faultPoints: faultPointsOf('intake.before_commit=57P01') });
  t.match(await intake.post({ defaults, items }), { status: 503, headers: { 'retry-after': /^[1-9]\d*$/ } });
  t.match(await intake.post({ defaults, items }), { status: 202, body: { counts: { accepted: 5, duplicate: 0 } } });
});

t.test('one that is lost after it is a 503 too; sent again, all is there', async (t) => {
  const intake = await useIntake(t, { faultPoints: faultPointsOf('intake.after_commit=57P01*2') });
  t.match(await intake.post({ defaults, items }), { status: 503, headers: { 'retry-after': /^[1-9]\d*$/ } });
  const keyed = { 'idempotency-key': 'import-7' };
  t.equal((await intake.post({ defaults, items }, keyed)).status, 503);
  t.match(
    await intake.post({ defaults, items }, keyed),
    { status: 202, body: { replayed: true, counts: { accepted: 0, duplicate: 5 } } },
    'under a key of the request, with the answer that was lost',
  );
  t.equal(await intake.count('jobs'), 5);
});
