/** Counts the lines of the answer to a stream as they come, without keeping them. */
import type { IncomingMessage } from 'node:http';
import { systemClock as clock } from '../src/system/clock.ts';

interface Summary {
  readonly batch_id: string;
  readonly counts: Readonly<Record<string, number>>;
  readonly jobs: Readonly<Record<string, number>>;
}

export class AnswerReader {
  verdicts = 0;
  replayed = 0;
  inOrder = true;
  firstMs: number | undefined;
  summary: Summary | undefined;

  async read(head: IncomingMessage): Promise<void> {
    let rest = '';
    head.setEncoding('utf8');
    for await (const piece of head) {
      const lines = `${rest}${piece}`.split('\n');
      rest = lines.pop()!;
      for (const line of lines) this.#take(line);
    }
  }

  #take(line: string): void {
    if (line.startsWith('{"index":')) {
      this.firstMs ??= clock.monotonicMs();
      if (!line.startsWith(`{"index":${this.verdicts},`)) this.inOrder = false;
      this.verdicts += 1;
      if (line.endsWith('"replayed":true}')) this.replayed += 1;
      return;
    }
    const { summary, error } = JSON.parse(line) as { summary?: Summary; error?: unknown };
    this.summary = summary;
    if (error !== undefined) console.error('the stream failed:', JSON.stringify(error));
  }
}
