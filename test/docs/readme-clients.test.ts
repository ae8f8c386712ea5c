/** The README's first batch from a program and from a shell: the program is run as it is written, the command as it is given. */
import { spawn } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import t from 'tap';
import { createTestDatabase } from '../support/database.ts';
import { fences, readDocument, section } from '../support/documents.ts';
import { inherited, startService } from '../support/service.ts';
import { shellCommands } from '../support/shell-commands.ts';
import { useUpstream } from '../support/upstream.ts';

t.setTimeout(120_000);

const blocks = fences(section(readDocument('README.md'), '## From a program, and from a shell'));
const root = new URL('../../', import.meta.url);

/** Runs it, and gives what it says, errors first: a terminal shows both. */
function run(args: readonly string[], cwd: string, env: Record<string, string>): Promise<string> {
  const child = spawn(process.execPath, ['--import', import.meta.resolve('tsx'), ...args], {
    cwd,
    env: { ...inherited(), ...env },
  });
  let [stdout, stderr] = ['', ''];
  child.stdout.on('data', (piece: Buffer) => {
    stdout += piece;
  });
  child.stderr.on('data', (piece: Buffer) => {
    stderr += piece;
  });
  return new Promise((resolve) => child.on('close', () => resolve(stderr + stdout)));
}

/** `…` stands for anything, and an id for any id. */
function patternOf(shown: string): RegExp {
  const text = shown.replaceAll(/[.*+?^${}()|[\]\\]/g, '\\$&').replaceAll('…', '.*');
  return new RegExp(`^${text.replaceAll(/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/g, '[0-9a-f-]{36}')}$`);
}

/** Jobs may end in another order than they began in. */
function sorted(text: string): string {
  return text.trim().split('\n').sort().join('\n');
}

t.test('the program and the commands do what is shown', async (t) => {
  const [{ connectionString }, upstream] = await Promise.all([createTestDatabase(t), useUpstream(t)]);
  const service = await startService(t, { databaseUrl: connectionString });
  await service.client.putUpstream('practice', upstream.url);
  const folder = await mkdtemp(join(tmpdir(), 'sluice-readme-'));
  t.teardown(() => rm(folder, { recursive: true, force: true }));
  const env = { SLUICE_URL: service.url };

  let said = '';
  let compared = 0;
  for (const { language, text } of blocks) {
    if (language === 'js') {
      // The sources stand for the package, so that no test passes on yesterday's build.
      const here = text
        .replace("'sluice/client'", `'${new URL('src/client/index.ts', root)}'`)
        .replace('http://127.0.0.1:3000', service.url);
      t.notOk(here.includes('sluice/client') || here.includes(':3000'), 'it imports the client and names the service');
      await writeFile(join(folder, 'first.mjs'), here);
    } else if (language === 'text') {
      t.match(sorted(said), patternOf(sorted(text)));
      compared += 1;
    } else {
      for (const { words, input } of shellCommands(text)) {
        const [program, ...rest] = words.map((word) => word(new Map()));
        if (program === 'cat' && input !== null) await writeFile(join(folder, rest[1]!), input);
        else if (program === 'node') said = await run(rest, folder, env);
        else if (program === 'npx' && rest[0] === 'sluice') {
          said = await run([fileURLToPath(new URL('src/main.ts', root)), ...rest.slice(1)], folder, env);
        } else throw new Error(`a command that this test does not know: ${program}`);
      }
    }
  }
  t.equal(compared, 2, 'answers compared');
});
