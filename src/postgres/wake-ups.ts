/**
 * Notifications of PostgreSQL, on a connection of their own: work was committed, definitions have changed.
 *
 * A notification is a hint that saves waiting, never the only way to learn of something: all of them may be lost while the
 * connection is away, so both callbacks are called after every connect, and callers poll besides.
 * A connection can die without a word (a firewall that forgot it), so it is asked at intervals whether it still listens.
 */
import pg from 'pg';
import type { Clock } from '../system/clock.ts';
import type { Logger } from '../system/logger.ts';
import { sessionOptions } from './database.ts';

const channels = { sluice_work: 'work', sluice_definitions: 'definitions' } as const;
type Subject = (typeof channels)[keyof typeof channels];

/** What a notification of an intake says. */
export const intakePayload = 'intake';

const usualHeartbeatMs = 10_000;
const firstPauseMs = 100;
const longestPauseMs = 5_000;

export interface WakeUpsOptions {
  readonly connectionString: string;
  readonly logger: Logger;
  readonly clock: Clock;
  /** Whether the worker of this process has been told of what this session took in, when it was committed. */
  readonly isTold?: (processId: number) => boolean;
  /** How often the connection is asked whether it still listens (10 s); half as long an answer is waited for. */
  readonly heartbeatMs?: number;
}

export class WakeUps {
  readonly #options: WakeUpsOptions;
  readonly #callbacks: Record<Subject, Array<() => void>> = { work: [], definitions: [] };
  readonly #stopping = new AbortController();
  #loop: Promise<void> | undefined;

  constructor(options: WakeUpsOptions) {
    this.#options = options;
  }

  /** Called when there may be work: after a notification, and after each connect. */
  onWork(callback: () => void): void {
    this.#callbacks.work.push(callback);
  }

  /** Called when definitions may have changed: after a notification, and after each connect. */
  onDefinitions(callback: () => void): void {
    this.#callbacks.definitions.push(callback);
  }

  /** Starts to listen; resolves after the first attempt, whether it succeeded or not: it goes on trying until `stop`. */
  start(): Promise<void> {
    return new Promise((attempted) => {
      this.#loop = this.#run(attempted);
    });
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    await this.#loop;
  }

  async #run(attempted: () => void): Promise<void> {
    const { logger, clock } = this.#options;
    const { signal } = this.#stopping;
    let failures = 0;
    while (!signal.aborted) {
      try {
        await this.#listen(() => {
          failures = 0;
          attempted();
        });
      } catch (err) {
        if (failures === 0) logger.warn({ err }, 'notifications of PostgreSQL are lost for now; polling goes on');
        failures += 1;
      }
      attempted();
      const pauseMs = Math.min(longestPauseMs, firstPauseMs * 2 ** Math.min(failures, 10));
      // Jittered, so that a fleet does not come back all at once.
      await clock.sleep(pauseMs * (0.5 + Math.random() / 2), signal);
    }
  }

  /** One connection from its start to its end; returns when stopped, throws when the connection does not do. */
  async #listen(onListening: () => void): Promise<void> {
    const { connectionString, clock, heartbeatMs = usualHeartbeatMs } = this.#options;
    const client = new pg.Client({
      ...sessionOptions(connectionString, 'sluice listen'),
      query_timeout: heartbeatMs / 2,
    });
    const wake = new AbortController();
    let lost: Error | undefined;
    client.on('error', (error) => {
      lost = error;
      wake.abort();
    });
    client.on('end', () => wake.abort());
    client.on('notification', ({ channel, payload, processId }) => {
      if (payload === intakePayload && this.#options.isTold?.(processId)) return;
      if (channel in channels) this.#call(channels[channel as keyof typeof channels]);
    });
    const stop = () => wake.abort();
    this.#stopping.signal.addEventListener('abort', stop);
    try {
      await client.connect();
      for (const channel of Object.keys(channels)) await client.query(`LISTEN ${channel}`);
      onListening();
      this.#call('work');
      this.#call('definitions');
      while (!this.#stopping.signal.aborted) {
        await clock.sleep(heartbeatMs, wake.signal);
        if (this.#stopping.signal.aborted) return;
        if (wake.signal.aborted) throw lost ?? new Error('the connection that listens has ended');
        await checkChannels(client);
      }
    } finally {
      this.#stopping.signal.removeEventListener('abort', stop);
      // A statement that is still out makes this cut the socket, so a dead connection cannot hold it up.
      await client.end().catch(() => undefined);
    }
  }

  #call(subject: Subject): void {
    for (const callback of this.#callbacks[subject]) callback();
  }
}

/** Asks the session itself: a pooler in between may have given us another one. */
async function checkChannels(client: pg.Client): Promise<void> {
  const { rows } = await client.query<{ channel: string }>('SELECT pg_listening_channels() AS channel');
  const listening = new Set(rows.map((row) => row.channel));
  for (const channel of Object.keys(channels)) {
    if (!listening.has(channel)) throw new Error(`the session no longer listens on ${channel}`);
  }
}
