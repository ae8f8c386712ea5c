/** The database goes away under load, in every way a server can, and comes back: nothing is lost, nothing doubled. */
import t from 'tap';
import { openStage, survive } from '../support/outage.ts';
import { useOwnPostgres } from '../support/own-postgres.ts';

t.setTimeout(180_000);

t.test('the server', async (t) => {
  const postgres = await useOwnPostgres(t);
  const databaseUrl = postgres.connectionString;
  const stage = await openStage(t, databaseUrl);

  t.test('is stopped as by a crash, and started', (t) =>
    survive(t, stage, {
      name: 'stopped',
      databaseUrl,
      async begin() {
        await postgres.stop('immediate');
        return () => postgres.start();
      },
    }),
  );

  t.test('and all its sessions stand still for 5 seconds', (t) =>
    survive(t, stage, { name: 'frozen', databaseUrl, begin: () => postgres.freeze(), leastMs: 5_000 }),
  );

  // brianc/node-postgres#2386, #3202, #2439: without listeners the end of a session ends the process.
  t.test('ends every session, again and again', (t) =>
    survive(t, stage, {
      name: 'terminated',
      databaseUrl,
      shows: false,
      async begin() {
        let ended = 0;
        for (let times = 0; times < 5; times += 1) ended += await postgres.terminateSessions();
        t.ok(ended > 5, `${ended} sessions`);
        return () => undefined;
      },
    }),
  );

  // lidofinance/lido-keys-api#268: sessions that began read-only stay so after the setting is back.
  t.test('turns read-only for 5 seconds, as one that a fail-over has left behind', (t) =>
    survive(t, stage, {
      name: 'read-only',
      databaseUrl,
      leastMs: 5_000,
      async begin() {
        const name = new URL(databaseUrl).pathname.slice(1);
        await postgres.admin(`alter database ${name} set default_transaction_read_only = on`);
        await postgres.terminateSessions();
        return async () => {
          await postgres.admin(`alter database ${name} reset default_transaction_read_only`);
        };
      },
    }),
  );
});
