import t from 'tap';
import { faultsInWords } from '../../src/domain/schema-faults.ts';

t.test('a line of faults names the fields', async (t) => {
  const lines: [pointer: string | undefined, code: string, message: string, line: string][] = [
    ['/query/key', 'required', 'is required', 'key is required'],
    ['/retry/cap_ms', 'invalid', 'must be a number', 'cap_ms must be a number'],
    ['/limit', 'invalid', 'too small: expected number to be >=1', 'limit: too small: expected number to be >=1'],
    ['/keys/3', 'invalid', 'must be a string', 'keys/3 must be a string'],
    ['/headers/a~1b~0', 'invalid', 'is given twice', 'a/b~ is given twice'],
    ['/path', 'invalid_path', 'path must start with /', 'path must start with /'],
    ['/base_url', 'base_url_private', '10.0.0.1 is not public', 'base_url: 10.0.0.1 is not public'],
    ['/limt', 'unknown_field', 'there is no field "limt"', 'there is no field "limt"'],
    ['/7', 'invalid', 'must be a string', '7 must be a string'],
    [undefined, 'invalid', 'must be an object', 'must be an object'],
    [`/${'x'.repeat(90)}`, 'invalid', 'is wrong', `${'x'.repeat(80)}… is wrong`],
  ];
  for (const [pointer, code, message, line] of lines) {
    t.equal(faultsInWords([pointer === undefined ? { code, message } : { pointer, code, message }]), line);
  }
  const many = Array.from({ length: 7 }, (_, i) => ({ pointer: `/f${i}`, code: 'required', message: 'is required' }));
  t.equal(
    faultsInWords(many),
    'f0 is required; f1 is required; f2 is required; f3 is required; f4 is required; and 2 more',
  );
});
