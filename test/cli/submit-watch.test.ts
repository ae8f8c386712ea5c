/** `sluice submit` and `sluice watch` as processes, against a service of this process: what they say, and their exit codes. */
import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import t, { type Test } from 'tap';
import { SluiceClient } from '../../src/client/index.ts';
import { createTestApp } from '../support/app.ts';
import { useIntake } from '../support/intake.ts';
import { inherited } from '../support/service.ts';
import { useUpstream } from '../support/upstream.ts';
import { startWorker } from '../support/worker.ts';

t.setTimeout(120_000);

const main = fileURLToPath(new URL('../../src/main.ts', import.meta.url));

interface Ended {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

function start(
  t: Test,
  args: readonly string[],
  env: Record<string, string>,
): { child: ChildProcess; ended: Promise<Ended> } {
  const child = spawn(process.execPath, ['--import', import.meta.resolve('tsx'), main, ...args], {
    env: { ...inherited(), ...env },
  });
  t.teardown(() => child.kill('SIGKILL'));
  let [stdout, stderr] = ['', ''];
  child.stdout.on('data', (piece: Buffer) => {
    stdout += piece;
  });
  child.stderr.on('data', (piece: Buffer) => {
    stderr += piece;
  });
  return { child, ended: new Promise((resolve) => child.on('close', (code) => resolve({ code, stdout, stderr }))) };
}

async function useService(t: Test, upstreamOptions: Parameters<typeof useUpstream>[1] = {}) {
  const intake = await useIntake(t);
  const upstream = await useUpstream(t, upstreamOptions);
  await intake.putUpstream('api', { base_url: upstream.url, allow_private_addresses: true, retry: { base_ms: 10 } });
  const url = await intake.app.app.listen({ host: '127.0.0.1', port: 0 });
  t.teardown(() => intake.app.app.server.closeAllConnections());
  const folder = await mkdtemp(join(tmpdir(), 'sluice-submit-'));
  t.teardown(() => rm(folder, { recursive: true, force: true }));
  const run = (...args: string[]) => start(t, args, { SLUICE_URL: url });
  const file = async (name: string, text: string) => {
    const path = join(folder, name);
    await writeFile(path, text);
    return path;
  };
  return { intake, url, run, file, folder };
}

const lineOf = (n: number, path = '/charges') =>
  `${JSON.stringify({ idempotency_key: `k-${n}`, path, body: { n } })}\n`;

t.test('a file is submitted and followed; the same command again is the same batch', async (t) => {
  const { intake, run, file } = await useService(t);
  await startWorker(t, intake);
  const path = await file('calls.ndjson', Array.from({ length: 50 }, (_, n) => lineOf(n)).join(''));
  const first = await run('submit', path, '--upstream', 'api', '--wait').ended;
  t.equal(first.code, 0, first.stderr);
  t.match(
    first.stdout,
    /^50 lines: accepted 50, duplicate 0, conflict 0, rejected 0\nbatch \S+ completed: 50 succeeded\n$/,
  );
  const again = await run('submit', path, '--upstream', 'api', '--json').ended;
  t.equal(again.code, 0);
  const result = JSON.parse(again.stdout) as { batch_id: string; replayed: number };
  t.match(result, { replayed: 50, counts: { total: 50, accepted: 50 }, status: 'completed', exit_code: 0 });
  t.equal(await intake.count('batches'), 1);
  const watched = await run('watch', result.batch_id).ended;
  t.same([watched.code, watched.stdout], [0, `batch ${result.batch_id} completed: 50 succeeded\n`]);
});

t.test('lines that are not taken are told with their number in the file, and the exit code says so', async (t) => {
  const { run, file } = await useService(t);
  const text = `\n${lineOf(0)}  \n{ no json\n${lineOf(0, '/other')}${lineOf(0)}${lineOf(1).trimEnd()}`;
  const { code, stdout, stderr } = await run('submit', await file('a.ndjson', text), '--upstream', 'api').ended;
  t.equal(code, 1);
  t.match(stdout, /^5 lines: accepted 2, duplicate 1, conflict 1, rejected 1\n/);
  t.match(stderr, /^line 4 rejected: malformed_json/m);
  t.match(stderr, /^line 5 \(k-0\) conflict: idempotency_key_reused: idempotency_key: the key is known/m);
});

t.test('jobs that fail are told, and the exit code says so; also from a pipe', async (t) => {
  const { intake, run } = await useService(t, { rules: [{ path: '/bad', answer: { status: 422, body: 'no' } }] });
  await startWorker(t, intake);
  const { child, ended } = run('submit', '-', '--upstream', 'api', '--wait', '--key', 'pipe-1');
  child.stdin?.end(lineOf(0) + lineOf(1, '/bad'));
  const { code, stdout, stderr } = await ended;
  t.equal(code, 1, stderr);
  t.match(stdout, /completed: 1 succeeded, 1 failed\n$/);
  t.match(stderr, /^k-1 failed(: rejected_by_upstream)?, answered 422 \(job /m);
});

t.test('what a fuse has stopped is told with what to do, and has its own exit code', async (t) => {
  const { intake, run, file } = await useService(t, {
    rules: [{ path: '/shut', answer: { status: 401, body: 'no' } }],
  });
  await startWorker(t, { ...intake, concurrency: 1 });
  const path = await file('a.ndjson', [0, 1, 2].map((n) => lineOf(n, '/shut')).join(''));
  const { code, stdout } = await run('submit', path, '--upstream', 'api', '--wait').ended;
  t.equal(code, 5, stdout);
  t.match(stdout, /What is left is held.* An answer 401 \(job .*POST \/v1\/batches\/\S+\/resume/);
});

t.test('an interrupted submission says how to go on, and goes on', async (t) => {
  const { intake, run, file } = await useService(t);
  const piped = run('submit', '-', '--upstream', 'api', '--key', 'night-1');
  piped.child.stdin?.write(lineOf(0) + lineOf(1));
  await intake.app.app.ready();
  while ((await intake.count('stored_items')) < 2) await new Promise(setImmediate);
  piped.child.kill('SIGINT');
  const { code, stderr } = await piped.ended;
  t.equal(code, 130);
  t.match(stderr, /batch \S+ is incomplete\. To go on with -, pipe the same lines again with --key 'night-1'/);
  const path = await file('a.ndjson', lineOf(0) + lineOf(1) + lineOf(2));
  const rest = await run('submit', path, '--upstream', 'api', '--key', 'night-1', '--json').ended;
  t.match(JSON.parse(rest.stdout), { replayed: 2, counts: { accepted: 3 }, status: 'processing' });
  t.equal(await intake.count('batches'), 1);
  const other = await file('b.ndjson', lineOf(7));
  const refused = await run('submit', other, '--upstream', 'api', '--key', 'night-1').ended;
  t.equal(refused.code, 4);
  t.match(refused.stderr, /resume_mismatch|is not the one that is stored/);
});

t.test(
  'rejected lines keep their verdict under the same key, which is told; under a new one they are judged anew',
  async (t) => {
    const { intake, run, file } = await useService(t);
    const later = (n: number) => lineOf(n).replace('{', '{"upstream":"later",');
    const path = await file('a.ndjson', lineOf(0) + later(1) + later(2) + later(3));
    const submit = (...more: string[]) => run('submit', path, '--upstream', 'api', ...more).ended;
    const first = await submit();
    t.match(first, { code: 1, stdout: /accepted 1, duplicate 0, conflict 0, rejected 3\n/ });
    t.match(first.stderr, /^line 2 \(k-1\) rejected: unknown_upstream: upstream: .*\n… and 2 more lines alike\n/);
    t.notMatch(first.stderr, /first time/);
    await intake.putUpstream('later');
    const again = await submit();
    t.match(again, { code: 1, stdout: /rejected 3\n/ });
    t.match(
      again.stderr,
      /^3 of the rejected lines have their verdicts of the first time.* give --key NEW .*duplicate/m,
    );
    t.match(await submit('--key', 'second'), { code: 0, stdout: /accepted 3, duplicate 1, conflict 0, rejected 0\n/ });
  },
);

t.test(
  'without a key it is told which variable to set; a key that only submits cannot follow, but all is stored',
  async (t) => {
    const { intake, file } = await useService(t);
    const adminKey = 'bootstrap-key-of-the-tests';
    const guarded = await createTestApp(t, intake.database, { adminKey });
    const url = await guarded.app.listen({ host: '127.0.0.1', port: 0 });
    t.teardown(() => guarded.app.server.closeAllConnections());
    const { key } = await new SluiceClient({ baseUrl: url, apiKey: adminKey }).admin.apiKeys.create({
      name: 'shop',
      scopes: ['submit'],
    });
    const path = await file('a.ndjson', lineOf(0) + lineOf(1));
    const submit = (env: Record<string, string>, ...more: string[]) =>
      start(t, ['submit', path, '--upstream', 'api', ...more], { SLUICE_URL: url, ...env }).ended;
    const [none, follows, asJson] = await Promise.all([
      submit({}),
      submit({ SLUICE_API_KEY: key }, '--wait', '--key', 'one'),
      submit({ SLUICE_API_KEY: key }, '--wait', '--key', 'two', '--json'),
    ]);
    t.match(none, { code: 4, stdout: '', stderr: /401.*\nsluice: set SLUICE_API_KEY to a key/ });
    t.match(follows, { code: 4, stdout: /^2 lines: accepted \d, duplicate \d, conflict 0, rejected 0\nbatch / });
    t.match(follows.stderr, /every line is stored in batch \S+; only following it \(--wait\) was refused: .* may read/);
    t.notMatch(follows.stderr, /To go on/);
    t.match(JSON.parse(asJson.stdout), {
      counts: { total: 2 },
      status: 'processing',
      error: { code: 'forbidden' },
      exit_code: 4,
    });
  },
);

t.test(
  'usage, an unreachable service and an unknown batch have codes of their own; each command has its help',
  async (t) => {
    const { intake, run, file, folder } = await useService(t);
    const array = await file('array.json', `[\n${lineOf(0).trimEnd()},\n${lineOf(1)}]\n`);
    const [wrongOption, noFile, noLines, isFolder, isArray, unknown, away, ...helps] = await Promise.all([
      run('submit', 'x', '--nonsense').ended,
      run('submit', '/nowhere/x.ndjson').ended,
      run('submit', await file('empty.ndjson', '')).ended,
      run('submit', folder).ended,
      run('submit', array, '--upstream', 'api').ended,
      run('watch', 'nonsense').ended,
      start(t, ['watch', 'x'], { SLUICE_URL: 'http://127.0.0.1:9999' }).ended,
      run('submit', '--help').ended,
      run('watch', '--help').ended,
    ]);
    t.equal(wrongOption?.code, 2);
    t.same([noFile?.code, /cannot read \/nowhere/.test(noFile?.stderr ?? '')], [2, true]);
    t.match(noLines, { code: 2, stdout: '', stderr: /^sluice: .*empty\.ndjson has no lines: .*\n$/ });
    t.match(isFolder, { code: 2, stdout: '', stderr: /^sluice: cannot read .*: it is a directory\n$/ });
    t.match(isArray, { code: 2, stdout: '', stderr: /^sluice: .*it is a JSON array.*\nsluice: .*jq -c/ });
    t.equal(await intake.count('batches'), 0, 'nothing of it was sent');
    t.same([unknown?.code, /404/.test(unknown?.stderr ?? '')], [4, true]);
    t.same([away?.code, /no answer from/.test(away?.stderr ?? '')], [3, true]);
    for (const help of helps) {
      t.equal(help.code, 0);
      t.match(help.stdout, /Exit codes:/);
    }
  },
);
