/**
 * POST /v1/batches as a stream over a real socket, by a client that decides itself when it writes, when it reads, and when
 * it is cut off.
 */
import { Agent, type ClientRequest, type IncomingMessage, request } from 'node:http';
import type { Test } from 'tap';
import type { BatchStatus, VerdictItem } from './client.ts';
import type { Intake } from './intake.ts';

export type StreamedVerdict = VerdictItem & { readonly replayed?: true };

export interface StreamAnswer {
  readonly status: number;
  readonly headers: IncomingMessage['headers'];
  readonly verdicts: readonly StreamedVerdict[];
  readonly summary: BatchStatus | undefined;
  /** Problem of a stream that failed, or of a request that was refused. */
  readonly error: { readonly code: string; readonly status: number; readonly detail: string } | undefined;
}

export interface StreamOptions {
  readonly key?: string;
  /** With its `?`. */
  readonly query?: string;
  readonly headers?: Readonly<Record<string, string>>;
}

export class StreamClient {
  readonly request: ClientRequest;
  /** Resolves with the head of the answer. */
  readonly head: Promise<IncomingMessage>;

  constructor(url: string, { key, query = '?upstream=api&path=/charges', headers = {} }: StreamOptions = {}) {
    this.request = request(`${url}/v1/batches${query}`, {
      method: 'POST',
      // As most clients do it: the connection is kept, though it is used only once.
      agent: new Agent({ keepAlive: true }),
      headers: {
        'content-type': 'application/x-ndjson',
        ...(key === undefined ? {} : { 'idempotency-key': key }),
        ...headers,
      },
    });
    this.head = new Promise((resolve, reject) => {
      this.request.on('response', resolve);
      this.request.on('error', reject);
    });
    // Not everybody waits for it.
    this.head.catch(() => undefined);
    this.request.flushHeaders();
  }

  /** Resolves when the service's side has taken it, as far as that can be known. */
  async write(data: string | Buffer): Promise<void> {
    await new Promise<void>((resolve, reject) =>
      this.request.write(data, (error) => (error ? reject(error) : resolve())),
    );
  }

  end(): void {
    this.request.end();
  }

  /** Cuts the connection. */
  cut(): void {
    this.request.destroy();
  }

  /** Lines of the answer as they come. */
  async *lines(): AsyncGenerator<Record<string, unknown>> {
    const head = await this.head;
    let rest = '';
    head.setEncoding('utf8');
    for await (const piece of head) {
      const lines = `${rest}${piece}`.split('\n');
      rest = lines.pop()!;
      for (const line of lines) yield JSON.parse(line) as Record<string, unknown>;
    }
    if (rest !== '') yield JSON.parse(rest) as Record<string, unknown>;
  }

  /** Reads the answer to its end. */
  async answer(): Promise<StreamAnswer> {
    const { statusCode: status = 0, headers } = await this.head;
    const lines: Record<string, unknown>[] = [];
    for await (const line of this.lines()) lines.push(line);
    if (status !== 202) {
      return {
        status,
        headers,
        verdicts: [],
        summary: undefined,
        error: lines[0] as unknown as StreamAnswer['error'],
      };
    }
    const last = lines.at(-1) ?? {};
    return {
      status,
      headers,
      verdicts: lines.filter((line) => 'verdict' in line) as unknown as StreamedVerdict[],
      summary: last.summary as BatchStatus | undefined,
      error: last.error as StreamAnswer['error'],
    };
  }
}

/** Streams to an app that listens until `t` ends. */
export async function listen(t: Test, { app }: Intake): Promise<(options?: StreamOptions) => StreamClient> {
  const url = await app.app.listen({ host: '127.0.0.1', port: 0 });
  return (options) => {
    const client = new StreamClient(url, options);
    t.teardown(() => client.cut());
    return client;
  };
}

/** Sends all of it, then reads. */
export async function sendStream(client: StreamClient, data: string | Buffer): Promise<StreamAnswer> {
  client.request.end(data);
  return client.answer();
}

/** A line for each key, with a small body. */
export function linesOf(prefix: string, count: number, from = 0): string {
  return Array.from(
    { length: count },
    (_, i) => `${JSON.stringify({ idempotency_key: `${prefix}-${from + i}`, body: { number: from + i } })}\n`,
  ).join('');
}
