/** GET of a batch's events over a real socket, by a client that reads when it wants to and can be cut off. */
import { Agent, type IncomingMessage, request } from 'node:http';
import { createParser } from 'eventsource-parser';

export interface ReceivedEvent {
  readonly id: string;
  readonly event: 'progress' | 'job' | 'done';
  readonly data: Readonly<Record<string, unknown>>;
}

export class EventClient {
  readonly head: Promise<IncomingMessage>;
  readonly events: ReceivedEvent[] = [];
  readonly comments: string[] = [];
  retryMs: number | undefined;
  #ended = false;
  #tell: () => void = () => undefined;
  readonly #cut: () => void;

  /** @param read false: the answer is left where it is until `read` is called */
  constructor(
    url: string,
    batchId: string,
    { lastEventId, read = true }: { lastEventId?: string; read?: boolean } = {},
  ) {
    const sent = request(`${url}/v1/batches/${batchId}/events`, {
      agent: new Agent({ keepAlive: false }),
      headers: lastEventId === undefined ? {} : { 'last-event-id': lastEventId },
    });
    this.head = new Promise((resolve, reject) => {
      sent.on('response', resolve);
      sent.on('error', reject);
    });
    this.head.catch(() => undefined);
    sent.end();
    this.#cut = () => sent.destroy();
    if (read) void this.read().catch(() => undefined);
  }

  /** Reads to the end of the answer. */
  async read(): Promise<void> {
    const parser = createParser({
      onEvent: ({ id = '', event = '', data }) => {
        this.events.push({
          id,
          event: event as ReceivedEvent['event'],
          data: JSON.parse(data) as ReceivedEvent['data'],
        });
        this.#tell();
      },
      onComment: (comment) => this.comments.push(comment),
      onRetry: (ms) => {
        this.retryMs = ms;
      },
    });
    const head = await this.head;
    head.setEncoding('utf8');
    try {
      for await (const piece of head) parser.feed(String(piece));
    } finally {
      this.#ended = true;
      this.#tell();
    }
  }

  /** Resolves as soon as the condition holds; rejects at the end of the stream where it does not. */
  async until(holds: (events: readonly ReceivedEvent[]) => boolean): Promise<readonly ReceivedEvent[]> {
    while (!holds(this.events)) {
      if (this.#ended) throw new Error(`the stream ended after ${JSON.stringify(this.events)}`);
      await new Promise<void>((resolve) => {
        this.#tell = resolve;
      });
    }
    return this.events;
  }

  /** Resolves with all events when the stream has ended. */
  async all(): Promise<readonly ReceivedEvent[]> {
    await this.until(() => this.#ended);
    return this.events;
  }

  cut(): void {
    this.#cut();
  }
}

/** Keys of the jobs that `job` events were about, in their order. */
export function keysOf(events: readonly ReceivedEvent[]): unknown[] {
  return events.filter(({ event }) => event === 'job').map(({ data }) => data.idempotency_key);
}
