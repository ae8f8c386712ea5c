/** `sluice/client` is what the package gives away under that name. */
import { existsSync, readFileSync } from 'node:fs';
import t from 'tap';

const root = new URL('../../', import.meta.url);
const { exports, files, bin } = JSON.parse(readFileSync(new URL('package.json', root), 'utf8')) as {
  exports: Record<string, Record<string, string>>;
  files: string[];
  bin: Record<string, string>;
};

t.test('the name leads to what is built from the client, with its types, and both are packed', (t) => {
  t.equal(import.meta.resolve('sluice/client'), new URL('dist/client/index.js', root).href);
  const { types = '', default: program = '' } = exports['./client'] ?? {};
  t.equal(types, program.replace(/\.js$/, '.d.ts'));
  t.ok(existsSync(new URL(program.replace('./dist/', 'src/').replace(/\.js$/, '.ts'), root)));
  t.ok(existsSync(new URL(bin.sluice!.replace('dist/', 'src/').replace(/\.js$/, '.ts'), root)));
  // What the program reads beside its own code.
  t.same([...files].sort(), ['dist', 'drizzle', 'openapi']);
  t.end();
});
