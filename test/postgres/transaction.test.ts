import t, { type Test } from 'tap';
import { DatabaseUnavailableError } from '../../src/postgres/database.ts';
import { inTransaction } from '../../src/postgres/transaction.ts';
import { createTestDatabase } from '../support/database.ts';

async function setup(t: Test, { max = 2 }: { max?: number } = {}) {
  const { database } = await createTestDatabase(t, { max });
  await database.query('CREATE TABLE things (name text PRIMARY KEY, n integer NOT NULL DEFAULT 0)');
  const names = async () =>
    (await database.query<{ name: string }>('SELECT name FROM things ORDER BY name')).map((row) => row.name);
  return { database, names };
}

t.test('what the work wrote is there once it has returned, and nothing of it once it has thrown', async (t) => {
  const { database, names } = await setup(t, { max: 1 });
  const result = await inTransaction(database, async (client) => {
    await client.query('INSERT INTO things VALUES ($1)', ['kept']);
    return 7;
  });
  t.equal(result, 7);
  const own = new Error('own');
  await t.rejects(
    inTransaction(database, async (client) => {
      await client.query('INSERT INTO things VALUES ($1)', ['dropped']);
      throw own;
    }),
    own,
  );
  t.same(await names(), ['kept']);
});

t.test('after many transactions of which a third fails, no session is left in one', async (t) => {
  const { database } = await setup(t);
  const ends = await Promise.allSettled(
    Array.from({ length: 200 }, (_, index) =>
      inTransaction(database, async (client) => {
        await client.query('INSERT INTO things VALUES ($1)', [`t${index}`]);
        if (index % 3 === 0) await client.query('SELECT 1 / 0');
      }),
    ),
  );
  t.equal(ends.filter((end) => end.status === 'rejected').length, 67);
  t.same(
    await database.query(
      `SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'`,
    ),
    [],
  );
  t.equal(database.pool.idleCount, database.pool.totalCount);
  t.equal(database.pool.waitingCount, 0);
});

t.test('a COMMIT that goes out behind the last statement ends what has failed, and keeps nothing of it', async (t) => {
  const { database, names } = await setup(t, { max: 1 });
  const store = (name: string) =>
    inTransaction(database, async (client) => {
      await client.query('INSERT INTO things VALUES ($1)', [`before ${name}`]);
      return client.last<{ name: string }>('INSERT INTO things VALUES ($1) RETURNING name', [name]);
    });
  t.same(await store('a'), [{ name: 'a' }]);
  await t.rejects(
    inTransaction(database, async (client) => {
      await client.query(`INSERT INTO things VALUES ('dropped')`);
      await client.last(`INSERT INTO things VALUES ('a')`);
    }),
    { code: '23505' },
  );
  // What goes out behind one that fails fails with it, and the first error is the one that is told.
  await t.rejects(
    inTransaction(database, async (client) => {
      const first = client.query(`INSERT INTO things VALUES ('a')`);
      await Promise.all([first, client.last(`INSERT INTO things VALUES ('behind')`)]);
    }),
    { code: '23505' },
  );
  await t.rejects(
    inTransaction(database, async (client) => {
      await client.last('SELECT 1');
      await client.query(`INSERT INTO things VALUES ('late')`);
    }),
    { message: /transaction is over/ },
  );
  t.same(await store('b'), [{ name: 'b' }], 'on the same connection');
  t.same(await names(), ['a', 'b', 'before a', 'before b']);
});

t.test(
  'of statements that leave together the error of the first that failed is told, whoever hears of one first',
  async (t) => {
    const { database } = await setup(t, { max: 1 });
    const slowly = async <T>(answer: Promise<T>): Promise<T> => {
      try {
        return await answer;
      } catch (error) {
        // As through several functions that wait for one another.
        for (let turns = 0; turns < 5; turns += 1) await null;
        throw error;
      }
    };
    const store = () =>
      inTransaction(database, (client) =>
        Promise.all([
          slowly(client.query('SELECT 1')),
          slowly(client.query(`INSERT INTO things VALUES ('a')`)),
          client.query(`INSERT INTO things VALUES ('b')`),
        ]),
      );
    await store();
    await t.rejects(store(), { code: '23505' });
    await database.query('SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY');
    await t.rejects(store(), DatabaseUnavailableError, 'a server that has become a standby is away, not broken');
  },
);

t.test('what goes out with the BEGIN finds the opening in its transaction, and nowhere else', async (t) => {
  const { database } = await setup(t, { max: 1 });
  const opening = { text: `SELECT set_config('things.open', 'yes', true)`, name: 'open-things' };
  const isOpen = `SELECT current_setting('things.open', true) = 'yes' AS open`;
  const seen = await inTransaction(
    database,
    async (client) => {
      const [rows] = await Promise.all([client.query<{ open: boolean }>(isOpen), client.begun]);
      return rows;
    },
    { opening },
  );
  t.same(seen, [{ open: true }]);
  await database.query(opening.text);
  t.not((await database.query<{ open: boolean | null }>(isOpen))[0]?.open, true, 'as if the BEGIN had been refused');
});

t.test('a statement that comes after the end is refused, not run outside of the transaction', async (t) => {
  const { database, names } = await setup(t, { max: 1 });
  let late: Promise<unknown> = Promise.resolve();
  await t.rejects(
    inTransaction(database, async (client) => {
      // As with Promise.all: one fails, the other goes on and writes afterwards.
      late = client.query('SELECT pg_sleep(0.05)').then(
        () => client.query(`INSERT INTO things VALUES ('stray')`),
        () => client.query(`INSERT INTO things VALUES ('stray')`),
      );
      late.catch(() => undefined);
      throw new Error('first');
    }),
    { message: 'first' },
  );
  await t.rejects(late, { message: /transaction is over/ });
  t.same(await names(), []);
});

t.test('work that swallows an error of the database is not taken for committed', async (t) => {
  const { database, names } = await setup(t, { max: 1 });
  await t.rejects(
    inTransaction(database, async (client) => {
      await client.query(`INSERT INTO things VALUES ('lost')`);
      await client.query('SELECT 1 / 0').catch(() => undefined);
    }),
    { message: /rolled back/ },
  );
  t.same(await names(), []);
});

t.test('two transactions that deadlock both succeed in the end', async (t) => {
  const { database } = await setup(t);
  await database.query(`INSERT INTO things VALUES ('a'), ('b')`);
  let waiting = 2;
  let meet: () => void = () => undefined;
  const met = new Promise<void>((resolve) => {
    meet = resolve;
  });
  let runs = 0;
  const cross = (first: string, second: string) =>
    inTransaction(database, async (client) => {
      runs += 1;
      await client.query('UPDATE things SET n = n + 1 WHERE name = $1', [first]);
      // The first time both hold their first row before they ask for the other's.
      waiting -= 1;
      if (waiting === 0) meet();
      await met;
      await client.query('UPDATE things SET n = n + 1 WHERE name = $1', [second]);
    });
  await Promise.all([cross('a', 'b'), cross('b', 'a')]);
  t.same(await database.query('SELECT name, n FROM things ORDER BY name'), [
    { name: 'a', n: 2 },
    { name: 'b', n: 2 },
  ]);
  t.ok(runs > 2, 'there was a deadlock to be repeated');
});

t.test('a serialization failure is repeated three times, then it is an unavailable database', async (t) => {
  const { database } = await setup(t, { max: 1 });
  const failing = (times: number) => {
    let runs = 0;
    const done = inTransaction(database, async (client) => {
      runs += 1;
      if (runs <= times) await client.query(`DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END $$`);
      return runs;
    });
    return { done, runs: () => runs };
  };
  t.equal(await failing(3).done, 4);
  const hopeless = failing(4);
  await t.rejects(hopeless.done, { name: 'DatabaseUnavailableError', cause: { code: '40001' } });
  t.equal(hopeless.runs(), 4);
});

t.test('other errors are not repeated', async (t) => {
  const { database } = await setup(t, { max: 1 });
  let runs = 0;
  await t.rejects(
    inTransaction(database, async (client) => {
      runs += 1;
      await client.query('SELECT 1 / 0');
    }),
    { code: '22012' },
  );
  t.equal(runs, 1);
});

t.test('a session that is ended in mid-transaction leaves nothing behind, and the pool goes on', async (t) => {
  const { database, names } = await setup(t, { max: 1 });
  await t.rejects(
    inTransaction(database, async (client) => {
      await client.query(`INSERT INTO things VALUES ('half')`);
      await client.query('SELECT pg_terminate_backend(pg_backend_pid())');
    }),
    DatabaseUnavailableError,
  );
  t.same(await names(), []);
});
