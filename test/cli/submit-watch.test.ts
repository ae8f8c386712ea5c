/** `sluice submit` and `sluice watch` as processes, against a service of this process: what they say, and their exit codes. */
import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import t, { type Test } from 'tap';
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
  return { intake, url, run, file };
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
  while ((await intake.count('batch_items')) < 2) await new Promise(setImmediate);
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
  'usage, an unreachable service and an unknown batch have codes of their own; each command has its help',
  async (t) => {
    const { run } = await useService(t);
    const [wrongOption, noFile, unknown, away, ...helps] = await Promise.all([
      run('submit', 'x', '--nonsense').ended,
      run('submit', '/nowhere/x.ndjson').ended,
      run('watch', 'nonsense').ended,
      start(t, ['watch', 'x'], { SLUICE_URL: 'http://127.0.0.1:9999' }).ended,
      run('submit', '--help').ended,
      run('watch', '--help').ended,
    ]);
    t.equal(wrongOption?.code, 2);
    t.same([noFile?.code, /cannot read \/nowhere/.test(noFile?.stderr ?? '')], [2, true]);
    t.same([unknown?.code, /404/.test(unknown?.stderr ?? '')], [4, true]);
    t.same([away?.code, /no answer from/.test(away?.stderr ?? '')], [3, true]);
    for (const help of helps) {
      t.equal(help.code, 0);
      t.match(help.stdout, /Exit codes:/);
    }
  },
);
