/** What the README says of the key at the upstream: its command gives what goes out. */
import { spawnSync } from 'node:child_process';
import t from 'tap';
import { outboundKey } from '../../src/domain/outbound-request.ts';
import { fences, readDocument, section } from '../support/documents.ts';

const [command, shown] = fences(section(readDocument('README.md'), '## The key at the upstream')).map(
  ({ text }) => text,
);
const example = ' acme ord-1';

function printed(...args: string[]): string {
  const script = command!.trim().slice(0, -example.length);
  return spawnSync('sh', ['-c', `${script} "$@"`, 'sh', ...args], { encoding: 'utf8' }).stdout.trim();
}

t.test('the command computes the key that goes out, where that is a hash', async (t) => {
  t.ok(command!.trim().endsWith(example));
  t.equal(printed('acme', 'ord-1'), shown!.trim());
  const given = { keySource: 'given' } as const;
  for (const [tenant, key] of [
    ['acme', 'ord-1'],
    ['default', 'sluice-1'],
    ['default', 'with a space'],
    ['default', 'é😀'],
    ['a.b', 'x'.repeat(255)],
  ] as const) {
    t.equal(printed(tenant, key), outboundKey({ tenant, key, ...given }), `${tenant} ${key}`);
  }
  t.equal(printed('acme', 'ord-1', '2'), outboundKey({ tenant: 'acme', key: 'ord-1', ...given, freshKeys: 2 }));
  t.equal(printed('default', 'ord-1', '1'), outboundKey({ tenant: 'default', key: 'ord-1', ...given, freshKeys: 1 }));
});

t.test('and what the text says of the others', async (t) => {
  const bare = (key: string, keySource: 'given' | 'derived' = 'given') =>
    outboundKey({ tenant: 'default', key, keySource }) === key;
  t.same([bare('!~'), bare('ord-1'), bare('x'.repeat(255)), bare('sluice-1', 'derived')], [true, true, true, true]);
  t.same([bare('sluice-1'), bare('a b'), bare('é')], [false, false, false]);
});
