/**
 * Cuts a stream of lines into the chunks that are stored in one transaction each: at most 1,000 lines, at most 250 ms after
 * the first of them came, and of bounded size. While a chunk is being stored the next one is read, and no more than that: so
 * the database's pace is the client's, and memory does not grow with the stream.
 */
import type { SubmittedItem } from '../domain/submission.ts';
import type { Clock } from '../system/clock.ts';
import { WakeSignal } from '../system/wake-signal.ts';

/** A line that is not blank. */
export interface StreamLine {
  /** Hex SHA-256: two lines are the same where these are. */
  readonly sha256: string;
  /** What it takes in memory, about. */
  readonly bytes: number;
  /** What it asks for; worked out when asked, since a line that is stored already needs no more than its SHA-256. */
  item(): SubmittedItem;
}

const mostLines = 1_000;
const longestMs = 250;
/**
 * The longest line, alone. On its way to PostgreSQL it is held in about ten forms, so this is what the memory of a stream is
 * made of: with 4 MiB, lines of 1 MiB took a process to 440 MB, so they do to 280.
 */
const mostBytes = 1_048_576;

/**
 * Gives the chunks in order; what came before the source failed is given before that is thrown. Once `signal` aborts, its
 * reason is thrown, and the rest of the source is read to its end and dropped.
 */
export async function* chunkLines(
  source: AsyncIterable<readonly StreamLine[]>,
  { clock, signal }: { clock: Clock; signal: AbortSignal },
): AsyncGenerator<readonly StreamLine[]> {
  let waiting: StreamLine[] = [];
  let bytes = 0;
  /** When the first of them came. */
  let sinceMs = 0;
  let over: { readonly error: unknown } | undefined;
  /** Nobody takes chunks any more. */
  let left = false;
  const come = new WakeSignal(clock);
  const room = new WakeSignal(clock);
  const isStopped = () => left || signal.aborted;
  const isFull = () => waiting.length >= mostLines || bytes >= mostBytes;

  const read = async () => {
    for await (const lines of source) {
      if (isStopped() || lines.length === 0) continue;
      if (waiting.length === 0) sinceMs = clock.monotonicMs();
      for (const line of lines) {
        waiting.push(line);
        bytes += line.bytes;
      }
      come.set();
      while (isFull() && !isStopped()) await room.wait(Number.POSITIVE_INFINITY);
    }
  };
  const stop = () => {
    come.set();
    room.set();
  };
  signal.addEventListener('abort', stop);
  void read().then(
    () => {
      over = { error: undefined };
      come.set();
    },
    (error: unknown) => {
      over = { error };
      come.set();
    },
  );

  try {
    while (true) {
      signal.throwIfAborted();
      const ageMs = clock.monotonicMs() - sinceMs;
      if (waiting.length > 0 && (isFull() || over !== undefined || ageMs >= longestMs)) {
        const chunk = takeChunk(waiting);
        waiting = waiting.slice(chunk.length);
        bytes = waiting.reduce((sum, line) => sum + line.bytes, 0);
        sinceMs = clock.monotonicMs();
        room.set();
        yield chunk;
      } else if (over === undefined) {
        await come.wait(waiting.length === 0 ? Number.POSITIVE_INFINITY : longestMs - ageMs);
      } else if (over.error === undefined) {
        return;
      } else {
        throw over.error;
      }
    }
  } finally {
    left = true;
    room.set();
    signal.removeEventListener('abort', stop);
  }
}

function takeChunk(lines: readonly StreamLine[]): readonly StreamLine[] {
  let bytes = 0;
  let count = 0;
  for (const line of lines) {
    bytes += line.bytes;
    if (count > 0 && bytes > mostBytes) break;
    count += 1;
    if (count === mostLines) break;
  }
  return lines.slice(0, count);
}
