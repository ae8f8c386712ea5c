import { spawn } from 'node:child_process';
import { chmod, mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import t, { type Test } from 'tap';
import type { Exit } from '../../src/cli/demo/replica.ts';
import { createEmptyDatabase, serverOfThisRun } from '../support/database.ts';
import { inherited } from '../support/service.ts';

t.setTimeout(120_000);

const entry = fileURLToPath(new URL('../../src/main.ts', import.meta.url));

/** `sluice demo` as a process group of its own, with a folder for temporary files of its own, to see what it leaves behind. */
async function startDemo(t: Test, args: readonly string[], env: Record<string, string> = {}) {
  const folder = await mkdtemp(join(tmpdir(), 'sluice-demo-test-'));
  await chmod(folder, 0o755);
  t.teardown(() => rm(folder, { recursive: true, force: true }));
  const child = spawn(process.execPath, ['--import', import.meta.resolve('tsx'), entry, 'demo', ...args], {
    env: { ...inherited(), TMPDIR: folder, ...env },
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  let onOutput = () => {};
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (part) => {
      output += part;
      onOutput();
    });
  }
  const exited = new Promise<Exit>((resolve) => child.once('close', (code, signal) => resolve({ code, signal })));
  t.teardown(() => t.passing() || t.comment(output));
  return {
    exited,
    output: () => output,
    /** Resolves when the output holds this text, or the process has ended. */
    async prints(text: string): Promise<void> {
      const printed = new Promise<void>((resolve) => {
        onOutput = () => output.includes(text) && resolve();
        onOutput();
      });
      await Promise.race([printed, exited]);
    },
    /** As Ctrl-C in a terminal: to every process of the group. */
    interrupt: () => process.kill(-(child.pid as number), 'SIGINT'),
    leftovers: async () => (await readdir(folder)).filter((name) => name.startsWith('sluice-demo-')),
  };
}

t.test(
  'with two replicas on an embedded PostgreSQL: four verdicts, progress, proof, exit 0, and nothing stays',
  async (t) => {
    const demo = await startDemo(t, ['--items', '60', '--limit', '30', '--replicas', '2']);
    t.same(await demo.exited, { code: 0, signal: null });
    const output = demo.output();
    for (const verdict of ['accepted', 'duplicate', 'conflict', 'rejected']) t.match(output, verdict);
    t.match(output, /60 of 60 items accepted/);
    t.match(output, /60\/60/, 'progress to the end');
    t.match(output, /ok {3}most starts in any 1000 ms +\d+ +of 30 allowed/);
    t.match(output, /ok {3}effects +62 +of 62 keys accepted/);
    t.match(output, /Calls by worker\n(.*http:.*\n){2}/);
    t.match(output, /Passed in/);
    t.same(await demo.leftovers(), []);
  },
);

t.test('twice on the database of DATABASE_URL: the second run is not disturbed by the first', async (t) => {
  const { connectionString } = await createEmptyDatabase(t);
  for (const run of [1, 2]) {
    const demo = await startDemo(t, ['--items', '20'], { DATABASE_URL: connectionString });
    t.same(await demo.exited, { code: 0, signal: null }, `run ${run}`);
    t.match(demo.output(), /the one of DATABASE_URL/);
  }
});

t.test('Ctrl-C in the middle: exit 130, and no process and no folder stays', async (t) => {
  const demo = await startDemo(t, ['--items', '200', '--limit', '10', '--replicas', '2']);
  await demo.prints('The main batch');
  const services = [...demo.output().matchAll(/http:\/\/127\.0\.0\.1:\d+/g)].map(([url]) => url);
  t.equal(services.length, 3, 'the upstream and two services');
  demo.interrupt();
  t.same(await demo.exited, { code: 130, signal: null });
  for (const url of services) await t.rejects(fetch(url), `${url} is gone`);
  t.same(await demo.leftovers(), []);
});

t.test('a database that is not there: says so, exits 1 and keeps the logs', async (t) => {
  const nowhere = new URL(await serverOfThisRun());
  nowhere.pathname = '/not_there';
  const demo = await startDemo(t, ['--items', '1'], { DATABASE_URL: nowhere.href });
  t.same(await demo.exited, { code: 1, signal: null });
  t.match(demo.output(), /The demo failed: a service process ended \(1\) before it was ready/);
  t.match(demo.output(), /database "not_there" does not exist/);
  const [folder] = /\/\S+\/logs/.exec(demo.output()) as RegExpExecArray;
  t.same(await readdir(folder as string), ['replica-1.log']);
});
