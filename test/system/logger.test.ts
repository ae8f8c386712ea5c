import { DrizzleQueryError } from 'drizzle-orm/errors';
import t from 'tap';
import { createLogger } from '../../src/system/logger.ts';

/** What a line says of an error. */
function logged(error: unknown) {
  const lines: string[] = [];
  createLogger('info', { write: (line) => lines.push(line) }).error({ err: error }, 'it failed');
  return { line: lines[0] ?? '', fields: JSON.parse(lines[0] ?? '{}') };
}

t.test('a line is JSON with an ISO time', async (t) => {
  const { fields } = logged(new Error('x'));
  t.match(fields.time, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
  t.equal(fields.msg, 'it failed');
});

t.test('of an error only what is on the list is told, of its causes too', async (t) => {
  // pinojs/pino#2478: paths to redact miss what is one level deeper; a list of what may be told does not.
  const cause = Object.assign(new Error('the cause'), { code: 'ECONNRESET', request: { authorization: 'S3CRET' } });
  const error = Object.assign(new TypeError('the error', { cause }), {
    detail: 'Key (key)=(S3CRET) already exists.',
    headers: { 'PRIVATE-TOKEN': 'S3CRET' },
  });
  const { line, fields } = logged(error);
  t.match(fields.err, { type: 'TypeError', message: 'the error', cause: { message: 'the cause', code: 'ECONNRESET' } });
  t.notMatch(line, 'S3CRET');
});

t.test('the parameters that drizzle puts into its message are left out, and its cause is told', async (t) => {
  const cause = Object.assign(new Error('duplicate key value'), { code: '23505', detail: 'Key (key)=(S3CRET)' });
  const { line, fields } = logged(new DrizzleQueryError('insert into x values ($1)', ['S3CRET'], cause));
  t.notMatch(line, 'S3CRET');
  t.match(fields.err, { message: 'a query failed', cause: { code: '23505' } });
  t.match(fields.err.stack, /^ {4}at /, 'and where it came from');
});

t.test('an aggregate tells its errors, a ring of causes ends, and what is no error is not told', async (t) => {
  t.match(logged(new AggregateError([new Error('one'), new Error('two')], 'both')).fields.err.errors, [
    { message: 'one' },
    { message: 'two' },
  ]);
  const ring = new Error('ring');
  ring.cause = ring;
  t.ok(logged(ring).line.length < 20_000);
  t.notMatch(logged({ password: 'S3CRET' }).line, 'S3CRET');
});
