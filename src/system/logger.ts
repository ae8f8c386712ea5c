/**
 * JSON lines on stdout, one per thing that happened.
 *
 * Of an error only an allow-list goes into a line: type, message, code, stack, and the same of its causes. Errors of
 * drivers and clients carry whole requests, parameters and row values (drizzle's message holds the parameters of the
 * query), and those hold what our users send.
 */
import { type DestinationStream, destination, type Logger, pino, stdTimeFunctions } from 'pino';

export type { Logger };

/** How many causes are followed: enough for wrapped driver errors, and an end where causes form a ring. */
const maxCauses = 5;

/**
 * A logger that writes synchronously, so that the last line before an exit is not lost. `level`: a pino level.
 * `stream`: where to, if not to stdout.
 */
export function createLogger(level: string, stream: DestinationStream = destination({ fd: 1, sync: true })): Logger {
  return pino({ level, timestamp: stdTimeFunctions.isoTime, serializers: { err: describeError } }, stream);
}

interface ErrorDescription {
  type: string;
  message: string;
  code?: string;
  stack?: string;
  cause?: ErrorDescription;
  errors?: ErrorDescription[];
}

/** What a log line may say of an error; see the head of this file. */
export function describeError(error: unknown): ErrorDescription {
  return describe(error, maxCauses);
}

function describe(error: unknown, causesLeft: number): ErrorDescription {
  if (!(error instanceof Error)) return { type: typeof error, message: 'thrown, and not an Error' };
  // DrizzleQueryError: its message repeats the query and every parameter; its cause says what went wrong.
  const holdsParameters = 'params' in error && 'query' in error;
  const description: ErrorDescription = {
    type: error.name,
    message: holdsParameters ? 'a query failed' : error.message,
  };
  if ('code' in error && typeof error.code === 'string') description.code = error.code;
  if (error.stack !== undefined) {
    description.stack = holdsParameters ? framesOf(error.stack) : error.stack;
  }
  if (causesLeft > 0) {
    if (error.cause !== undefined) description.cause = describe(error.cause, causesLeft - 1);
    if (error instanceof AggregateError) {
      description.errors = error.errors.slice(0, maxCauses).map((each) => describe(each, 0));
    }
  }
  return description;
}

/** A stack opens with the message; only the frames are wanted here. */
function framesOf(stack: string): string {
  return stack
    .split('\n')
    .filter((line) => line.startsWith('    at '))
    .join('\n');
}
