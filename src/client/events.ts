/**
 * Server-Sent Events of a batch. A connection that ends before the batch does is made again, from the last event that came;
 * only a bounded number of times without a new one.
 */
import { createParser, type EventSourceMessage } from 'eventsource-parser';
import { SluiceConnectionError, SluiceError } from './errors.ts';
import { pause, waitMs } from './retries.ts';
import type { CallOptions, Transport } from './transport.ts';

/** One event as it came: `data` is its JSON, parsed. */
export interface ServerEvent {
  readonly type: string;
  readonly id: string | undefined;
  readonly data: unknown;
}

export interface FollowOptions extends CallOptions {
  /** Id of the last event seen, to go on after it. */
  readonly lastEventId?: string | undefined;
}

/** Ends after an event of the type `last`, and where the service says that there is nothing more (204). */
export async function* followEvents(
  transport: Transport,
  path: string,
  last: string,
  { lastEventId, signal }: FollowOptions,
): AsyncGenerator<ServerEvent> {
  let seen = lastEventId;
  let failures = 0;
  let retryMs: number | undefined;
  for (;;) {
    let failure: SluiceError | SluiceConnectionError | undefined;
    try {
      const connection = connect(transport, path, seen, signal, (ms) => {
        retryMs = ms;
      });
      for await (const event of connection) {
        if (event === 'nothing more') return;
        failures = 0;
        if (event.id !== undefined) seen = event.id;
        yield event;
        if (event.type === last) return;
      }
    } catch (error) {
      signal?.throwIfAborted();
      if (!(error instanceof SluiceError || error instanceof SluiceConnectionError)) throw error;
      if (error instanceof SluiceError && error.status < 500 && error.status !== 429) throw error;
      failure = error;
    }
    failures += 1;
    if (failures >= transport.attempts) {
      throw failure ?? new SluiceConnectionError(`GET ${path}: the events end again and again before the batch does`);
    }
    const wantedMs = failure instanceof SluiceError ? failure.retryAfterMs : undefined;
    if (failure !== undefined && (wantedMs ?? 0) > transport.longestWaitMs) throw failure;
    await pause(waitMs(failures, wantedMs ?? retryMs), signal);
  }
}

async function* connect(
  transport: Transport,
  path: string,
  lastEventId: string | undefined,
  signal: AbortSignal | undefined,
  onRetry: (ms: number) => void,
): AsyncGenerator<ServerEvent | 'nothing more'> {
  const stop = new AbortController();
  const abort = () => stop.abort(signal?.reason);
  signal?.addEventListener('abort', abort, { once: true });
  try {
    const response = await transport.once('GET', path, {
      headers: {
        accept: 'text/event-stream',
        ...(lastEventId === undefined ? {} : { 'last-event-id': lastEventId }),
      },
      signal: stop.signal,
    });
    await transport.checked('GET', path, response, stop.signal);
    if (response.status === 204) {
      yield 'nothing more';
      return;
    }
    const messages: EventSourceMessage[] = [];
    const parser = createParser({ onEvent: (message) => messages.push(message), onRetry });
    const decoder = new TextDecoder();
    try {
      for await (const piece of (response.body ?? []) as AsyncIterable<Uint8Array>) {
        parser.feed(decoder.decode(piece, { stream: true }));
        for (const { event = 'message', id, data } of messages.splice(0)) {
          yield { type: event, id, data: JSON.parse(data) as unknown };
        }
      }
    } catch (error) {
      throw transport.connectionError(`GET ${path}`, error);
    }
  } finally {
    signal?.removeEventListener('abort', abort);
    stop.abort();
  }
}
